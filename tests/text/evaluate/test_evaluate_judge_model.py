"""A local judge on the engine: the same replies as behind a server, whatever is asked together with it."""

import json
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from judge_servers import Body, judge_server

from hone.core.conversation import TranscriptBuilder
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError, LostResourceError
from hone.core.generation import Request, SamplingParams, generate
from hone.core.judging import ScorerInput
from hone.models.language.config import ModelConfig
from hone.models.language.hf_checkpoint import save_model
from hone.models.language.init import new_model
from hone.models.language.scalar_head import ScalarHeadModel
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, byte_tokenizer
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.scorer import RewardScorer
from hone.rewards.scores import RewardScores
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.evaluate.reward_members import reward_scorer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small judge of bytes, with a chat template."""
    path = tmp_path_factory.mktemp("judge")
    tokenizer = byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
    shape = ModelConfig(
        vocab_size=tokenizer.size, hidden_size=16, intermediate_size=24, layers=1, heads=2, max_positions=1200
    )
    save_model(new_model(shape, seed=3), path, tokenizer_from=None)
    tokenizer.save(path)
    return path


def scorer(by: dict[str, Any], cache: Path | None = None, **settings: object) -> RewardScorer:
    ask = {"kind": "rubric", "criteria": [{"name": "truth", "text": "It is true."}]}
    judge = {"kind": "judge", "by": by, "ask": ask, "max_tokens": 12, "cache": None if cache is None else str(cache)}
    return reward_scorer(
        RewardsConfig.model_validate({"functions": [{**judge, **settings}]}), limits=UserCodeConfig(), load=no_model
    )


def no_model(path: str, weights: str) -> ScalarHeadModel:
    raise AssertionError(f"{path} {weights}")


def answers(*texts: str) -> list[ScorerInput]:
    transcript = TranscriptBuilder(np.zeros(1, np.int32))
    said = [({"role": "assistant", "content": text},) for text in texts]
    return [
        ScorerInput(prompt="q", text=text, columns={}, messages=one, transcript=transcript)
        for text, one in zip(texts, said, strict=True)
    ]


def scores_of(judge: RewardScorer, *groups: list[ScorerInput]) -> RewardScores:
    try:
        return judge.gather([judge.submit(group) for group in groups])
    finally:
        judge.close()


def test_replies_are_those_of_the_same_model_behind_a_server(folder: Path, tmp_path: Path) -> None:
    policy, lock = open_policy(ModelSource(path=str(folder)), seed=0, device="cpu", temperature=1.0), Lock()
    engine = make_engine(policy, slots=4, longest_prompt=1100, max_tokens=12, seed=0)

    def reply(body: Body) -> str:
        tokens = policy.tokenizer.apply_chat(body["messages"])
        sampling = SamplingParams(max_tokens=body["max_tokens"], greedy=True)
        with lock:
            (answer,) = generate(engine, [Request(id=str(body["seed"]), prompt=tokens, samples=1, sampling=sampling)])
        return answer.text(policy.tokenizer.decode)

    group = answers("4", "five", "a longer answer")
    with judge_server(reply) as server:
        served = scores_of(scorer({"kind": "server", "url": server.url, "model": "wise"}), group)
    local = scores_of(scorer({"kind": "model", "path": str(folder)}, tmp_path), group)
    assert local.status.tolist() == [ScoreStatus.UNSCORABLE] * 3, "random weights give no verdict"
    shown = [reason.split("the reply is not JSON")[1] for reason in local.reasons]
    assert shown == [reason.split("the reply is not JSON")[1] for reason in served.reasons]
    assert all(reason.startswith("the reply was cut off at max_tokens = 12") for reason in local.reasons)
    kept = [json.loads(path.read_text())["reply"] for path in tmp_path.rglob("*.json")]
    assert {one["written_tokens"] for one in kept} == {12}
    assert all(one["read_tokens"] > 500 for one in kept)


def test_a_reply_does_not_depend_on_its_batch_and_comes_back_from_the_cache(folder: Path, tmp_path: Path) -> None:
    by = {"kind": "model", "path": str(folder), "max_concurrent": 2}
    group = answers("4", "five", "a longer answer", "4")
    together = scores_of(scorer(by, tmp_path / "one", temperature=1.0), group)
    alone = [scores_of(scorer(by, tmp_path / "two", temperature=1.0), [one]).reasons[0] for one in group]
    assert list(together.reasons) == alone
    again = scorer(by, tmp_path / "one", temperature=1.0)
    assert scores_of(again, group).reasons == together.reasons
    assert again.metrics()["time/judge/judge/requests"] == 0
    assert again.metrics()["time/judge/judge/cached"] == 3


def test_a_question_beyond_the_context_is_unscorable_and_a_budget_stops(folder: Path) -> None:
    by = {"kind": "model", "path": str(folder)}
    scores = scores_of(scorer(by), answers("x" * 900, "4"))
    assert "does not fit the judge's context of 1200" in scores.reasons[0]
    with pytest.raises(LostResourceError, match=r"budget\.requests = 1"):
        scores_of(scorer(by, budget={"requests": 1}), answers("4", "5"))


def test_a_folder_without_a_model_is_found_by_the_plan(folder: Path, tmp_path: Path) -> None:
    assert scorer({"kind": "model", "path": str(folder)}).check([]) == []
    with pytest.raises(DataError, match="nothing"):
        scorer({"kind": "model", "path": str(tmp_path / "nothing")}).check([])
