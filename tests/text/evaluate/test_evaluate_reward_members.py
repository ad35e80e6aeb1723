"""Answers on their way to reward functions, models and servers."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from reward_servers import Reply, served_rewards

from hone.core.conversation import Message, TranscriptBuilder
from hone.core.episodes import ScoreStatus
from hone.core.errors import ConfigError, DataError, UserCodeError
from hone.core.judging import ScorerInput
from hone.models.language.config import ModelConfig
from hone.models.language.hf_checkpoint import save_model
from hone.models.language.init import new_model
from hone.models.language.scalar_head import TokenScorer, load_scalar_head, new_scalar_head
from hone.models.language.tokenizers import character_tokenizer
from hone.models.packing import pack_rows
from hone.rewards.config import RewardFunction, RewardsConfig, UserCodeConfig
from hone.rewards.scorer import RewardScorer
from hone.rewards.scores import RewardScores
from hone.rewards.workers import FunctionSignature, RewardBatch
from hone.text.evaluate.reward_members import ModelLoader, load_reward_scorer, reward_scorer

COUNTS = """
def company(completions):
    return [float(len(completions))] * len(completions)
"""


def no_model(path: str, weights: str) -> TokenScorer:
    raise AssertionError(f"{path} {weights}")


def scorer_with(config: RewardsConfig, *, workers: int = 1) -> RewardScorer:
    return reward_scorer(config, limits=UserCodeConfig(workers=workers), load=no_model)


def test_a_function_of_groups_sees_all_answers_to_a_prompt_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    use = f"{tmp_path / 'counts.py'}:company"
    config = RewardsConfig(functions=[RewardFunction(use=use, unit="group")])
    judge = scorer_with(config, workers=2)
    try:
        tickets = [
            judge.submit(
                [
                    ScorerInput(
                        prompt=f"question {count}",
                        text=str(number),
                        columns={},
                        messages=(),
                        transcript=TranscriptBuilder(np.zeros(1, np.int32)),
                    )
                    for number in range(count)
                ]
            )
            for count in (4, 2, 3)
        ]
        assert judge.gather(tickets).score.tolist() == [4.0] * 4 + [2.0] * 2 + [3.0] * 3
    finally:
        judge.close()


CONVERSATION = """
def written(completions, messages, tokens):
    return [float(len(one) * 100 + sum(ids)) for one, ids in zip(messages, tokens, strict=True)]

def last_word(completion, messages):
    assert messages[-1] == {"role": "assistant", "content": completion}
    return float(len(messages))

def anything(completions, **columns):
    return [float(len(columns)) for _ in completions]

def turns(completions, messages):
    return [[float(one["content"]) for one in each if one["role"] == "assistant"] for each in messages]

def turn_of_each(completion, messages):
    return {"score": (1, 2.5), "reason": "by turn"}

def whole(completions):
    return [10.0] * len(completions)

def three(completions):
    return [[1.0, 2.0, 3.0] for _ in completions]

def words(completions):
    return [[1.0, "good"] for _ in completions]
"""


def scorer_of(folder: Path, *names: str, **settings: object) -> RewardScorer:
    (folder / "rewards.py").write_text(CONVERSATION)
    functions = [{"use": f"{folder / 'rewards.py'}:{name}", **settings} for name in names]
    return scorer_with(RewardsConfig.model_validate({"functions": functions}))


def conversation(*answers: str, **columns: object) -> ScorerInput:
    """Answers with a reply of the environment after each but the last; token 7 for each message."""
    messages: list[Message] = []
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "tool", "content": "next"}]
    return ScorerInput(
        prompt="?",
        text=answers[-1],
        columns=columns,
        messages=tuple(messages[:-1]),
        transcript=TranscriptBuilder(np.full(len(messages), 7, np.int32)),
        id="question 3",
    )


def scores_of(scorer: RewardScorer, *answers: ScorerInput) -> RewardScores:
    try:
        scorer.check(answers[0].columns.keys())
        return scorer.gather([scorer.submit(answers)])
    finally:
        scorer.close()


def test_functions_that_name_messages_and_tokens_get_the_conversation(tmp_path: Path) -> None:
    scorer = scorer_of(tmp_path, "written", "anything")
    scores = scores_of(scorer, conversation("a", "b", mine=1), conversation("c", mine=2))
    assert scores.functions["written"].tolist() == [3 * 100 + 4 * 7, 1 * 100 + 2 * 7]
    assert scores.functions["anything"].tolist() == [2.0, 2.0], "the prompts and the dataset's column, as ever"
    assert scores.turn_scores == {}


def test_a_function_of_one_answer_gets_its_own_conversation(tmp_path: Path) -> None:
    scores = scores_of(scorer_of(tmp_path, "last_word"), conversation("a", "b", "c"), conversation("d"))
    assert scores.score.tolist() == [5.0, 1.0]


def test_a_datasets_own_column_goes_before_the_conversation(tmp_path: Path) -> None:
    own = [{"role": "assistant", "content": "a"}]
    assert scores_of(scorer_of(tmp_path, "last_word"), conversation("b", "a", messages=own)).score.tolist() == [1.0]


def test_only_named_parts_of_the_conversation_are_sent(tmp_path: Path) -> None:
    batch = RewardBatch(prompts=["?"], completions=["a"], columns={"mine": [1]}, conversation={"tokens": lambda: [[7]]})
    plain = FunctionSignature(
        form="batch", columns=frozenset({"mine"}), required_columns=frozenset(), takes_any_column=True
    )
    assert batch.columns_for(plain) == {"mine": [1]}
    assert batch.columns_for(replace(plain, columns=frozenset({"tokens"}))) == {"mine": [1], "tokens": [[7]]}


def test_turn_scores_add_up_to_the_score_and_a_whole_score_counts_for_the_last_turn(tmp_path: Path) -> None:
    scorer = scorer_of(tmp_path, "turns", "whole", weight=0.5)
    scores = scores_of(scorer, conversation("1", "2", "4"), conversation("8"))
    assert scores.functions["turns"].tolist() == [7.0, 8.0]
    assert scores.score.tolist() == [8.5, 9.0]
    assert scores.turn_scores == {0: [0.5, 1.0, 7.0], 1: [9.0]}


def test_turn_scores_of_one_answer_may_have_a_reason(tmp_path: Path) -> None:
    scores = scores_of(scorer_of(tmp_path, "turn_of_each"), conversation("1", "2"))
    assert (scores.score.tolist(), scores.reasons, scores.turn_scores) == ([3.5], ("by turn",), {0: [1.0, 2.5]})


def test_a_turn_score_that_is_not_finite_makes_the_answer_missing(tmp_path: Path) -> None:
    scores = scores_of(scorer_of(tmp_path, "turns"), conversation("1", "nan"), conversation("2", "3"))
    assert scores.status.tolist() == [ScoreStatus.UNSCORABLE, ScoreStatus.SCORED]
    assert scores.reasons[0] == "the function returned [1.0, nan]"
    assert scores.turn_scores == {1: [2.0, 3.0]}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("three", r"gave 3 turn scores \[1.0, 2.0, 3.0\] to an answer to prompt 'question 3' of 2 turns"),
        ("words", r"returned a list \(\[1.0, 'good'\]\) where a number or None is expected"),
    ],
)
def test_turn_scores_that_do_not_fit_stop_the_run(tmp_path: Path, name: str, fault: str) -> None:
    with pytest.raises(UserCodeError, match=fault):
        scores_of(scorer_of(tmp_path, name), conversation("1", "2"))


def test_a_bound_holds_for_the_sum_of_the_turns(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="gave 7, outside its bounds"):
        scores_of(scorer_of(tmp_path, "turns", bounds=[0.0, 5.0]), conversation("1", "2", "4"))


SHAPE = ModelConfig(vocab_size=20, hidden_size=8, intermediate_size=16, layers=1, heads=2, max_positions=16)


def model_folder(folder: Path, alphabet: str = "abc") -> Path:
    new_scalar_head(new_model(SHAPE, seed=1), seed=1).save(folder)
    character_tokenizer([alphabet]).save(folder)
    return folder


def loader(alphabet: str = "abc") -> ModelLoader:
    return partial(load_reward_scorer, device="cpu", tokenizer=character_tokenizer([alphabet]))


def scores_by(rewards: list[dict[str, object]], *answers: ScorerInput) -> RewardScores:
    config = RewardsConfig.model_validate({"functions": rewards})
    return scores_of(reward_scorer(config, limits=UserCodeConfig(workers=1), load=loader()), *answers)


def tokens_of(*tokens: int) -> ScorerInput:
    return replace(conversation("a"), transcript=TranscriptBuilder(np.array(tokens, np.int32)))


def test_a_model_scores_the_last_token_of_the_whole_conversation(tmp_path: Path) -> None:
    answers = [tokens_of(3, 4, 5), tokens_of(6), tokens_of(*range(16)), tokens_of(*range(17))]
    rewards = [{"kind": "model", "path": str(model_folder(tmp_path)), "weight": -2.0, "micro_batch_tokens": 4}]
    scores = scores_by(rewards, *answers)
    model = load_scalar_head(tmp_path)
    slow = []
    for answer in answers[:3]:
        packed = pack_rows([answer.tokens])
        slow.append(-2.0 * model.scores(packed, torch.tensor([len(answer.tokens) - 1])).item())
    np.testing.assert_allclose(scores.score[:3], slow, rtol=0, atol=1e-5)
    assert scores.functions["model"][0] == pytest.approx(slow[0] / -2.0, abs=1e-5)
    assert scores.status[3] == ScoreStatus.UNSCORABLE
    assert scores.reasons[3] == "17 tokens; the reward model reads 16"


def test_a_model_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="another vocabulary than the policy"):
        scores_by([{"kind": "model", "path": str(model_folder(tmp_path, "abd"))}], tokens_of(1))


def test_a_policy_is_no_reward_model(tmp_path: Path) -> None:
    save_model(new_model(SHAPE, seed=0), tmp_path, tokenizer_from=None)
    with pytest.raises(DataError, match=r"score\.weight is missing"):
        scores_by([{"kind": "model", "path": str(tmp_path)}], tokens_of(1))


def test_a_server_gets_the_answers_and_its_scores_are_kept() -> None:
    reply = {"scores": [1.5, None, [1.0, 2.0]], "reasons": ["good", "", "by turn"]}
    answers = [conversation("a", day=date(2026, 1, 2)), conversation("b", day=None), conversation("c", "d", day=None)]
    with served_rewards(lambda body: (200, reply)) as served:
        scores = scores_by([{"kind": "server", "url": served.url, "weight": 2.0}], *answers)
    (request,) = served.requests
    assert request["path"] == "/score"
    assert request["prompts"] == ["?", "?", "?"]
    assert request["completions"] == ["a", "b", "d"]
    assert [len(messages) for messages in request["messages"]] == [1, 1, 3]
    assert request["columns"] == {"day": [{"~": "date", "of": "2026-01-02"}, None, None]}
    assert request["ids"] == ["question 3"] * 3
    assert scores.score[[0, 2]].tolist() == [3.0, 6.0]
    assert scores.status.tolist() == [ScoreStatus.SCORED, ScoreStatus.UNSCORABLE, ScoreStatus.SCORED]
    assert scores.reasons == ("good", "the server returned None", "by turn")
    assert scores.turn_scores == {2: [2.0, 4.0]}


def test_a_request_that_fails_for_a_moment_is_repeated() -> None:
    replies: Iterator[Reply] = iter([(503, {}), (200, {"scores": [4.0]})])
    with served_rewards(lambda body: next(replies)) as served:
        assert scores_by([{"kind": "server", "url": served.url}], conversation("a")).score.tolist() == [4.0]


@pytest.mark.parametrize("status", [0, 400, 503])
def test_without_a_reply_a_score_is_missing_with_the_reason(status: int) -> None:
    with served_rewards(lambda body: (status, {"error": "no such model"})) as served:
        url = served.url if status else "http://127.0.0.1:9/score"  # nobody listens there
        scores = scores_by([{"kind": "server", "url": url, "attempts": 2}], conversation("a"), conversation("b"))
    assert scores.status.tolist() == [ScoreStatus.ERROR] * 2
    assert np.isnan(scores.score).all()
    assert (f"status {status}" if status else "ConnectionRefusedError") in scores.reasons[0]
    assert len(served.requests) == {0: 0, 400: 1, 503: 2}[status]


def test_a_server_that_says_nothing_runs_into_the_deadline() -> None:
    release = Event()
    with served_rewards(lambda body: (200, {"scores": [float(release.wait(600))]})) as served:
        reward = {"kind": "server", "url": served.url, "attempts": 1, "deadline_s": 0.2}
        scores = scores_by([reward], conversation("a"))
        release.set()
    assert "no answer within 0.2 s" in scores.reasons[0]


@pytest.mark.parametrize("reply", [{}, {"scores": [1.0]}, {"scores": ["a", "b"]}, {"scores": [[1.0, 2.0], 0.0]}])
def test_a_servers_reply_that_breaks_the_contract_stops_the_run(reply: object) -> None:
    with served_rewards(lambda body: (200, reply)) as served, pytest.raises(UserCodeError) as fault:
        scores_by([{"kind": "server", "url": served.url, "name": "judge"}], conversation("a"), conversation("b"))
    assert f"reward server 'judge' ({served.url})" in str(fault.value)


def test_a_server_that_gives_nan_stops_the_run_and_one_that_is_constant_is_told() -> None:
    broken = served_rewards(lambda body: (200, {"scores": [1.0, float("nan")]}))
    with broken as served, pytest.raises(UserCodeError, match="gave NaN to 1 of 2 answers"):
        scores_by([{"kind": "server", "url": served.url}], conversation("a"), conversation("b"))
    with served_rewards(lambda body: (200, {"scores": [3.0] * len(body["ids"])})) as served:
        config = RewardsConfig.model_validate({"functions": [{"kind": "server", "url": served.url}]})
        scorer = reward_scorer(config, limits=UserCodeConfig(workers=1), load=loader())
        scores_of(scorer, *[conversation("a")] * 16)
    assert "gave all of the first 16 answers the same score, 3" in scorer.notes()[0]


def test_all_kinds_add_up_in_the_order_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(CONVERSATION)
    model = {"kind": "model", "path": str(model_folder(tmp_path / "model")), "weight": 3.0}
    with served_rewards(lambda body: (200, {"scores": [0.5] * len(body["ids"])})) as served:
        server = {"kind": "server", "url": served.url, "weight": 0.5}
        whole = {"use": f"{tmp_path / 'rewards.py'}:whole"}
        scores = scores_by([whole, model, server, whole, {**server, "name": "whole"}], tokens_of(3, 4), tokens_of(5))
    assert list(scores.functions) == ["whole", "model", "server", "whole#2", "whole#3"]
    own = [values.tolist() for values in scores.functions.values()]
    assert (own[0], own[2], own[3], own[4]) == ([10.0] * 2, [0.5] * 2, [10.0] * 2, [0.5] * 2)
    np.testing.assert_allclose(scores.score, 20.0 + 0.5 + 3.0 * np.array(own[1]))


def test_a_reward_that_cannot_score_makes_the_sum_missing_and_stops_the_run(tmp_path: Path) -> None:
    model = {"kind": "model", "path": str(model_folder(tmp_path / "model"))}
    server = {"kind": "server", "url": "http://127.0.0.1:9", "attempts": 1}
    config = RewardsConfig.model_validate({"functions": [model, server]})
    scorer = reward_scorer(config, limits=UserCodeConfig(), load=loader())
    try:
        for _ in range(2):
            scores = scorer.gather([scorer.submit([tokens_of(3)])])
            assert scores.status.tolist() == [ScoreStatus.ERROR]
            assert np.isfinite(scores.functions["model"]).all()
            assert scores.reasons[0].startswith("server: POST http://127.0.0.1:9")
        with pytest.raises(UserCodeError, match="no answer in 3 batches in a row has a score"):
            scorer.gather([scorer.submit([tokens_of(3)])])
    finally:
        scorer.close()


@pytest.mark.parametrize("change", [{"url": "nowhere"}, {"api_key_env": "HONE_NO_SUCH_KEY"}])
def test_an_address_that_cannot_be_one_is_found_before_the_run(change: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"nowhere|HONE_NO_SUCH_KEY"):
        scores_by([{"kind": "server", "url": "http://127.0.0.1:9", **change}], conversation("a"))
