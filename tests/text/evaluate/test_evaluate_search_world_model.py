"""A world model asked at decision time: scores against reading one by one, refusals, and the config."""

from pathlib import Path

import numpy as np
import pytest
import torch
from search_parts import TOKENIZER, config, request

from hone.core.errors import DataError
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, Tokenizer, character_tokenizer
from hone.models.packing import pack_rows
from hone.text.evaluate.evaluation_request import SearchConfig, SearchWorldModelScorer
from hone.text.evaluate.search_scorers import WorldModelCandidateScorer, open_world_model_scorer
from hone.text.search.searching import Candidate
from hone.text.tasks.dataset import Example, ExampleDataset, build_examples
from hone.text.tasks.world import Prompt

CHATTY = character_tokenizer(["ab;"], chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)


def candidate(text: str, tokenizer: Tokenizer = TOKENIZER) -> Candidate:
    tokens = tokenizer.encode(text)
    empty = np.zeros(len(tokens), np.float32)
    return Candidate(
        tokens=tokens, logp=empty, version=empty.astype(np.int32), step_ends=(len(tokens),), finish="stop"
    )  # fmt: skip


def world_model(tokenizer: Tokenizer = TOKENIZER, *, max_positions: int = 64) -> TokenPolicy:
    return TokenPolicy(new_model(config(max_positions, tokenizer), seed=3), tokenizer)


def prompt(id_: str, content: object, wanted: str) -> Prompt:
    return Prompt(id=id_, content=content, tokens=np.array([0], np.int32), columns={"wanted": wanted})  # type: ignore[arg-type]


@torch.no_grad()
def slow(model: TokenPolicy, begun: np.ndarray, reply: np.ndarray) -> float:
    row = np.concatenate([begun, reply]).astype(np.int32)
    packed = pack_rows([row])
    at = torch.arange(len(begun), len(row))
    return float(model.token_logprobs(packed, at - 1, packed.tokens[at]).logp.double().sum().exp())


@pytest.mark.parametrize("budget", [1, 9, 1000])
def test_scores_are_those_of_reading_one_by_one_and_equal_actions_are_read_once(budget: int) -> None:
    model = world_model()
    scorer = WorldModelCandidateScorer(
        model=model, prompts={"q0": prompt("q0", "a", "ab"), "q1": prompt("q1", "b;", ";")}, wanted="wanted",
        micro_batch_tokens=budget,
    )  # fmt: skip
    texts = {"q0": ["a;", "b;", "a;", ";"], "q1": ["a;", "a;"]}
    asked = [(request(name, "ab"[n]), [candidate(text) for text in texts[name]]) for n, name in enumerate(texts)]
    for (name, own), found in zip(texts.items(), scorer.score(asked), strict=True):
        begun, reply = request(name, "a" if name == "q0" else "b").prompt, "ab" if name == "q0" else ";"
        expected = [
            slow(model, np.concatenate([begun, TOKENIZER.encode(text)]), TOKENIZER.encode(reply)) for text in own
        ]
        assert found.values == pytest.approx(expected, rel=1e-5)
        sizes = [1 + len(text) + len(reply) for text in own]
        assert found.tokens_read.tolist() == [
            size * (own.index(t) == n) for n, (t, size) in enumerate(zip(own, sizes, strict=True))
        ]


def test_in_a_conversation_the_wanted_answer_is_the_next_message() -> None:
    model = world_model(CHATTY)
    messages = [{"role": "user", "content": "a"}]
    begun, said = CHATTY.apply_chat(messages), candidate("b", CHATTY)
    scorer = WorldModelCandidateScorer(model=model, prompts={"q0": prompt("q0", messages, "b;")}, wanted="wanted")
    asked = request("q0")
    asked = type(asked)(id="q0", prompt=begun, samples=1, sampling=asked.sampling)
    (found,) = scorer.score([(asked, [said])])
    reply = CHATTY.continue_chat(messages, [{"role": "user", "content": "b;"}], answer=said.tokens)
    assert found.values[0] == pytest.approx(slow(model, np.concatenate([begun, said.tokens]), reply), rel=1e-5)


def test_an_action_beyond_the_context_has_no_score() -> None:
    scorer = WorldModelCandidateScorer(
        model=world_model(max_positions=6), prompts={"q0": prompt("q0", "a", "ab")}, wanted="wanted"
    )
    (found,) = scorer.score([(request(), [candidate("abab"), candidate("ab")])])
    assert np.isnan(found.values[0]) and found.values[1] > 0


def dataset(wanted: object) -> ExampleDataset:
    rows = [
        Example(id=str(n), prompt="a", completion=None, columns={"wanted": value}, row=n, source="rows.jsonl")
        for n, value in enumerate(["ab", wanted])
    ]
    return build_examples(rows, source="rows.jsonl")


def test_what_it_cannot_answer_is_refused(tmp_path: Path) -> None:
    world_model().save(tmp_path)
    asked = SearchWorldModelScorer(kind="world_model", path=str(tmp_path), wanted="wanted")
    prompts = [prompt("0", "a", "ab"), prompt("1", "a", "")]
    with pytest.raises(DataError, match=r"wanted = 'goal': rows.jsonl has no such column; it has wanted"):
        open_world_model_scorer(asked.model_copy(update={"wanted": "goal"}), prompts, dataset(""))
    with pytest.raises(DataError, match=r"wanted = 'wanted' is empty in 1 rows, such as 1"):
        open_world_model_scorer(asked, prompts, dataset(""))
    scorer = open_world_model_scorer(asked, prompts[:1], dataset("b"))
    scorer.require_vocabulary(TOKENIZER)
    with pytest.raises(DataError, match="another vocabulary than the policy"):
        scorer.require_vocabulary(CHATTY)
    with pytest.raises(DataError, match=str(tmp_path / "nowhere")):
        open_world_model_scorer(asked.model_copy(update={"path": str(tmp_path / "nowhere")}), prompts[:1], dataset("b"))


def test_it_is_named_in_a_config() -> None:
    found = SearchConfig.model_validate(
        {"plans": ["best_of:8"], "scorer": {"kind": "world_model", "path": "runs/world", "wanted": "goal"}}
    )
    assert found.scorer is not None and found.scorer.name == "p(goal) under runs/world"
