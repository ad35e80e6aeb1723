"""Searches on a real engine, and settings and scorers that cannot be used."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from scripted_session import ScriptedSession
from search_parts import TOKENIZER, ScriptedScorer, config, request, scorer_model

from hone.core.errors import DataError
from hone.core.generation import SamplingParams, generate
from hone.engine.engine import EmbeddedEngine
from hone.models.language.init import new_model
from hone.models.language.scalar_head import new_scalar_head
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.rewards.config import UserCodeConfig
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.evaluation_request import SearchConfig
from hone.text.evaluate.reward_members import load_reward_scorer
from hone.text.evaluate.search_eval import OpenedSearch
from hone.text.evaluate.search_scorers import ModelCandidateScorer, VerifierCandidateScorer
from hone.text.evaluate.text_eval import EvaluationConfig, TextEvaluation
from hone.text.search.plans import BeamPlan, BestOfPlan
from hone.text.search.searching import EMPTY, Searching, SearchTools, extended
from hone.text.tasks.dataset import build_examples
from hone.text.tasks.world import Prompt

TABLE = np.array([[0.3, 0.2, 0.3, 0.2], [0.4, 0.2, 0.3, 0.1], [0.4, 0.3, 0.0, 0.3], [0, 0, 0, 1], [0.4, 0.4, 0.1, 0.1]])


def policy() -> TokenPolicy:
    return TokenPolicy(new_model(config(), seed=1), TOKENIZER, 1.0)


# ---------------------------------------------------------------------------------------------------- real engine


def engine_of(slots: int) -> EmbeddedEngine:
    return make_engine(policy(), slots=slots, longest_prompt=40, max_tokens=16, seed=5)


def searched(slots: int, plan: BeamPlan | BestOfPlan) -> dict[tuple[str, int], str]:
    scorer = ModelCandidateScorer(model=scorer_model(), decode=TOKENIZER.decode, step=None)
    search = Searching(engine_of(slots), plan, SearchTools(decode=TOKENIZER.decode, scorer=scorer, step=";"))
    asked = [
        replace(request(f"q{n}", "ab;" * 10), samples=2, sampling=SamplingParams(max_tokens=16, temperature=1.5))
        for n in range(3)
    ]
    return {(one.request_id, one.sample_index): TOKENIZER.decode(one.tokens) for one in generate(search, asked)}


@pytest.mark.parametrize("plan", [BeamPlan(width=2, branch=3), BestOfPlan(n=4)])
def test_searches_on_the_engine_do_not_depend_on_its_slots(plan: BeamPlan | BestOfPlan):
    assert searched(1, plan) == searched(16, plan)


def test_beginnings_are_found_in_the_prefix_cache():
    engine, scorer = engine_of(4), ModelCandidateScorer(model=scorer_model(), decode=TOKENIZER.decode, step=None)
    search = Searching(
        engine, BeamPlan(width=2, branch=2), SearchTools(decode=TOKENIZER.decode, scorer=scorer, step=";")
    )
    long = replace(request("q0", "ab;" * 11), sampling=SamplingParams(max_tokens=16))
    assert list(generate(search, [long]))
    assert engine.stats.cached_tokens > 0


# ------------------------------------------------------------------------------------------------------ bad input


SCORER = {"path": "runs/orm"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"plans": []}, "at least 1"),
        ({"plans": ["beam:1x4"]}, "beam:1x4 select by scores: give a scorer, or leave only majority:N"),
        ({"plans": ["best_of:4", "best_of:4"], "scorer": SCORER}, "plans name best_of:4 twice"),
        ({"plans": ["bestof:4"], "scorer": SCORER}, "'bestof:4' is no search plan; did you mean best_of"),
        ({"plans": ["majority:4"], "answer": "("}, "answer = '.' is no regular expression"),
        ({"plans": ["majority:4"], "step": ""}, "step"),
        ({"plans": ["majority:4"], "temperature": 0.0}, "temperature"),
        ({"plans": ["beam:2x2"], "scorer": {"path": "orm", "steps": "mean"}}, "steps"),
        ({"plans": ["beam:2x2"], "scorer": {"kind": "verifier", "functions": []}}, "functions"),
        ({"plans": ["beam:2x2"], "scorer": {"kind": "oracle"}}, "oracle"),
    ],
)
def test_settings_that_cannot_be(table: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        SearchConfig.model_validate(table)


def test_plans_are_read_in_both_forms():
    both = SearchConfig.model_validate(
        {"plans": ["beam:1x4", {"kind": "trees", "trees": 2, "branch": 2}, "majority:16"], "scorer": SCORER}
    )
    assert [str(plan) for plan in both.plans] == ["beam:1x4", "trees:2x2", "majority:16"]
    assert (both.pool, len(both.step_plans)) == (16, 2)
    assert SearchConfig.model_validate(both.model_dump()) == both


def opened(folder: Path) -> OpenedSearch:
    evaluation = EvaluationConfig.model_validate(
        {
            "task": {"source": "held.jsonl"},
            "rewards": {"functions": [{"use": "exact_match"}]},
            "max_tokens": 30,
            "search": {"plans": ["best_of:2"], "scorer": {"path": str(folder)}},
        }
    )
    prompts = [Prompt(id="short", content="a", tokens=np.zeros(2, np.int32), columns={}),
               Prompt(id="the longest", content="b", tokens=np.zeros(9, np.int32), columns={})]  # fmt: skip
    exam = TextEvaluation(
        config=evaluation,
        examples=build_examples([], source="held.jsonl"),
        prompts=prompts,
        scorer=ScriptedScorer(),
        close=lambda: None,
        warnings=[],
    )
    assert evaluation.search is not None
    return OpenedSearch(
        config=evaluation.search,
        exam=exam,
        load=lambda path, weights: load_reward_scorer(path, weights, device="cpu", tokenizer=TOKENIZER),
        limits=UserCodeConfig(),
    )


def test_a_scorer_with_a_shorter_context_is_refused_with_the_longest_row(tmp_path: Path):
    scorer_model(max_positions=38).save(tmp_path)
    TOKENIZER.save(tmp_path)
    with pytest.raises(
        DataError, match="reads 38 tokens; prompt the longest has 9 and an answer up to 30, together 39"
    ):
        opened(tmp_path).scorer(TOKENIZER.decode)


def test_a_scorer_with_another_tokenizer_or_two_classes_is_refused(tmp_path: Path):
    other = character_tokenizer(["xyz"])
    new_scalar_head(new_model(config(tokenizer=other), seed=0), seed=0).save(tmp_path / "other")
    other.save(tmp_path / "other")
    with pytest.raises(DataError, match="the reward model has another vocabulary than the policy"):
        opened(tmp_path / "other").scorer(TOKENIZER.decode)
    scorer_model().save(tmp_path / "two")
    text = (tmp_path / "two" / "config.json").read_text().replace('"0": "LABEL_0"', '"0": "LABEL_0", "1": "LABEL_1"')
    (tmp_path / "two" / "config.json").write_text(text)
    with pytest.raises(DataError, match="a classifier of 2 labels"):
        opened(tmp_path / "two").scorer(TOKENIZER.decode)


def test_a_verifier_of_a_config_is_opened_and_closed(tmp_path: Path):
    search = opened(tmp_path)
    table = {"kind": "verifier", "functions": [{"use": "hone.lab.tasks.chain_of_sums:right_chain"}]}
    search.config = SearchConfig.model_validate({"plans": ["best_of:2"], "scorer": table})
    try:
        assert isinstance(search.scorer(TOKENIZER.decode), VerifierCandidateScorer)
        assert len(search.opened) == 1
    finally:
        search.close()
    assert not search.opened
    assert search.config.scorer is not None
    assert search.config.scorer.name == "right_chain"


def test_the_beginning_of_an_answer_is_extended_by_steps():
    (drawn,) = generate(ScriptedSession(TABLE), [replace(request(), sampling=SamplingParams(max_tokens=3))])
    one = extended(EMPTY, drawn, finish=None)
    two = extended(one, drawn, finish="length")
    assert two.step_ends == (len(drawn.tokens), 2 * len(drawn.tokens))
    assert two.mean_logp == pytest.approx(float(drawn.logp.mean()))
    assert EMPTY.mean_logp == 0.0
