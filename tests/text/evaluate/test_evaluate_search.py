"""Searches in an evaluation: scorers against slow versions, accuracy by tokens, notes, and settings that cannot be."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted_session import ScriptedSession, decode
from search_parts import TOKENIZER, ScriptedScorer, request, scorer_model

from hone.core.errors import DataError
from hone.core.generation import Request, SamplingParams, generate
from hone.models.language.scalar_head import ScoredTokens
from hone.models.packing import pack_rows
from hone.text.evaluate.search_eval import PlanValues, SearchSettings, auc, evaluate_search, hurting_notes, sizes_up_to
from hone.text.evaluate.search_scorers import AGGREGATES, ModelCandidateScorer, VerifierCandidateScorer, step_ends
from hone.text.search.plans import BeamPlan, BestOfPlan, TreesPlan, WeightedVotePlan
from hone.text.search.searching import Candidate, CandidateScores, Searching, SearchTools
from hone.text.tasks.world import Prompt

TABLE = np.array([[0.3, 0.2, 0.3, 0.2], [0.4, 0.2, 0.3, 0.1], [0.4, 0.3, 0.0, 0.3], [0, 0, 0, 1], [0.4, 0.4, 0.1, 0.1]])
PROMPTS = [
    Prompt(id=f"q{n}", content="ab"[: 1 + n % 2], tokens=np.array([9], np.int32), columns={"answer": "b"})
    for n in range(12)
]


def candidate(text: str, *, finish: str | None = "eos") -> Candidate:
    tokens = TOKENIZER.encode(text)
    if finish == "eos":
        tokens = np.append(tokens, np.int32(TOKENIZER.eos_id))
    empty = np.zeros(len(tokens), np.float32)
    return Candidate(
        tokens=tokens.astype(np.int32),
        logp=empty,
        version=empty.astype(np.int32),
        step_ends=(len(tokens),),
        finish=finish,  # pyright: ignore[reportArgumentType]
    )


# ------------------------------------------------------------------------------------------------------- scorers


@given(st.lists(st.sampled_from(["a", "b;", ";a", "=;=", "; ", ";"]), max_size=8), st.sampled_from([";", "=;", "; "]))
def test_ends_of_steps_in_tokens_of_several_characters(pieces: list[str], step: str):
    def text_of(tokens: Sequence[int]) -> str:
        return "".join(pieces[token] for token in np.asarray(tokens).tolist())

    text = text_of(list(range(len(pieces))))
    expected, start = set[int](), 0
    while (place := text.find(step, start)) >= 0:
        start = place + len(step)
        expected.add(next(n for n in range(len(pieces)) if len("".join(pieces[: n + 1])) >= start))
    assert step_ends(np.arange(len(pieces), dtype=np.int32), step, text_of) == sorted(expected)


@pytest.mark.parametrize("reads", ["last", "steps"])
@pytest.mark.parametrize("steps", ["weakest", "product", "last"])
@torch.no_grad()
def test_a_reward_model_scores_candidates_as_one_by_one(reads: ScoredTokens, steps: str):
    model = scorer_model(reads)
    texts = ["ab;", "a;b;ab", "", ";;a", "a;b;ab", "ab"]
    candidates = [candidate(text, finish="eos" if n % 2 else "length") for n, text in enumerate(texts) if text]
    scorer = ModelCandidateScorer(
        model=model,
        decode=TOKENIZER.decode,
        step=";" if reads == "steps" else None,
        aggregate=AGGREGATES[steps],
        micro_batch_tokens=16,
    )
    asked = [(request("q0", "a"), candidates[:2]), (request("q1", "ba"), candidates[2:])]
    found = scorer.score(asked)
    for (one, some), scores in zip(asked, found, strict=True):
        for each, value in zip(some, scores.values.tolist(), strict=True):
            tokens = np.concatenate([one.prompt, each.tokens])
            text = TOKENIZER.decode(each.tokens)
            places = {n for n, character in enumerate(text) if character == ";"} if reads == "steps" else set()
            packed = pack_rows([tokens])
            at = torch.tensor([len(one.prompt) + n for n in sorted({*places, len(each.tokens) - 1})])
            chances = torch.sigmoid(model.scores(packed, at).double())
            expected = {"weakest": chances.min(), "product": chances.prod(), "last": chances[-1]}[steps]
            assert value == pytest.approx(float(expected), abs=1e-6)


def test_equal_sequences_are_read_once_and_too_long_ones_have_no_score():
    scorer = ModelCandidateScorer(model=scorer_model(), decode=TOKENIZER.decode, step=None, context=5)
    same, long = candidate("ab;"), candidate("abababab")
    (found,) = scorer.score([(request(), [same, long, same])])
    assert found.tokens_read.tolist() == [5, 0, 0]
    assert found.values[0] == found.values[2]
    assert math.isnan(found.values[1])


def test_a_model_that_gives_nan_stops_the_search():
    model = scorer_model()
    with torch.no_grad():
        model.score.weight.fill_(math.nan)
    scorer = ModelCandidateScorer(model=model, decode=TOKENIZER.decode, step=None, name="runs/orm")
    with pytest.raises(DataError, match="runs/orm: the reward model gives NaN for 2 of 2 places"):
        scorer.score([(request(), [candidate("a"), candidate("b")])])


def test_verifiers_judge_beginnings_by_rules_of_their_own():
    scorer = VerifierCandidateScorer(
        prompts={prompt.id: prompt for prompt in PROMPTS},
        whole=ScriptedScorer({"a;": 0.0, "b": 1.0}),
        beginnings=ScriptedScorer({"a;": 0.5}),
        decode=TOKENIZER.decode,
    )
    some = [candidate("a;"), candidate("a;", finish=None), candidate("b"), candidate("ab", finish=None)]
    first, second = scorer.score([(request("q0"), some), (request("q1"), some[1:2])])
    assert first.values[:3].tolist() == [0.0, 0.5, 1.0]
    assert math.isnan(first.values[3])
    assert second.values.tolist() == [0.5]
    assert not first.tokens_read.any()


# ----------------------------------------------------------------------------------------------------- evaluation


class LetterScorer:
    """The share of the letter b, as a noisy idea of the truth."""

    def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
        found: list[CandidateScores] = []
        for one, some in asked:
            texts = [decode(each.tokens) for each in some]
            values = np.array([text.count("b") / max(len(text), 1) for text in texts])
            read = np.array([len(one.prompt) + len(each.tokens) for each in some], np.int64)
            found.append(CandidateScores(values=values, tokens_read=read))
        return found


def settings(**changes: object) -> SearchSettings:
    made = SearchSettings(
        pool=8,
        sizes=sizes_up_to(8, [6]),
        step_plans=[BeamPlan(width=2, branch=2), TreesPlan(trees=2, branch=2)],
        sampling=SamplingParams(max_tokens=10),
        tools=SearchTools(decode=decode, scorer=LetterScorer(), answer_of=lambda text: text[-1:], step=";"),
        scorer_name="letters",
    )
    return replace(made, **changes)  # pyright: ignore[reportArgumentType]


def test_accuracy_by_tokens_of_every_plan():
    found = evaluate_search(ScriptedSession(TABLE), PROMPTS, ScriptedScorer(), settings())
    by_name = {plan.plan: plan for plan in found.plans}
    sizes = (2, 4, 6, 8)
    families = ("pass", "majority", "likeliest", "best_of", "weighted_vote")
    assert list(by_name) == [
        "pass:1", *(f"{family}:{size}" for family in families for size in sizes), "beam:2x2", "trees:2x2"
    ]  # fmt: skip
    assert (found.problems, found.scorer) == (12, "letters")
    assert 0.5 < found.auc <= 1
    for family in families[1:]:
        for size in sizes:
            assert by_name[f"{family}:{size}"].mean <= by_name[f"pass:{size}"].mean + 1e-9
            assert by_name[f"{family}:{size}"].drawn_tokens == by_name[f"pass:{size}"].drawn_tokens
    sampling = SamplingParams(max_tokens=10)
    asked = [Request(id=p.id, prompt=p.tokens, samples=8, sampling=sampling) for p in PROMPTS]
    pool = list(generate(ScriptedSession(TABLE), asked))
    assert by_name["pass:1"].mean == pytest.approx(np.mean([decode(one.tokens).endswith("b") for one in pool]))
    assert by_name["pass:8"].drawn_tokens == pytest.approx(sum(len(one.tokens) for one in pool) / len(PROMPTS))
    distinct = {(one.request_id, one.tokens.tobytes()): 1 + len(one.tokens) for one in pool}
    assert by_name["best_of:8"].scored_tokens == pytest.approx(sum(distinct.values()) / len(PROMPTS))
    assert by_name["majority:8"].scored_tokens == 0


@pytest.mark.parametrize("plan", [BestOfPlan(n=8), WeightedVotePlan(n=8)])
def test_the_estimate_at_the_whole_pool_is_what_a_search_selects(plan: BestOfPlan | WeightedVotePlan):
    made = settings(pool=8, sizes=[8], step_plans=[])
    estimate = evaluate_search(ScriptedSession(TABLE), PROMPTS, ScriptedScorer(), made)
    search = Searching(ScriptedSession(TABLE), plan, made.tools)
    asked = [Request(id=p.id, prompt=p.tokens, samples=1, sampling=made.sampling) for p in PROMPTS]
    right = np.mean([decode(one.tokens).endswith("b") for one in generate(search, asked)])
    told = next(one for one in estimate.plans if one.plan == str(plan))
    assert told.mean == pytest.approx(right, abs=0.09)  # ties: the search takes the first, the estimate the mean


def test_an_oracle_reaches_what_was_there_and_gets_no_blame():
    class Oracle:
        def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
            return [
                CandidateScores(
                    values=np.array([float(decode(one.tokens).endswith("b")) for one in some]),
                    tokens_read=np.zeros(len(some), np.int64),
                )
                for _, some in asked
            ]

    made = settings(tools=replace(settings().tools, scorer=Oracle()), step_plans=[], scorer_is_truth=True)
    found = evaluate_search(ScriptedSession(TABLE), PROMPTS, ScriptedScorer(), made)
    by_name = {plan.plan: plan for plan in found.plans}
    assert found.auc == 1.0
    assert found.notes == ()
    assert all(by_name[f"best_of:{size}"].mean == pytest.approx(by_name[f"pass:{size}"].mean) for size in (2, 4, 6, 8))


def test_a_step_that_never_occurs_is_refused_with_examples():
    made = settings(tools=replace(settings().tools, step="\n"))
    with pytest.raises(DataError, match=r"evaluation.search.step = '\\n' never occurs in 96 answers.*for example: '"):
        evaluate_search(ScriptedSession(TABLE), PROMPTS, ScriptedScorer(), made)
    evaluate_search(ScriptedSession(TABLE), PROMPTS, ScriptedScorer(), replace(made, step_plans=[]))


def test_problems_that_cannot_be_judged_are_left_out():
    short = ScriptedScorer({"a": 0.0, "b": 1.0, "": 0.0})
    with pytest.raises(DataError, match="none of 12 problems has only answers that could be scored"):
        evaluate_search(ScriptedSession(TABLE), PROMPTS, short, settings())
    made = settings(pool=1, sizes=[1], step_plans=[])
    found = evaluate_search(ScriptedSession(TABLE), PROMPTS, short, made)
    assert 0 < found.problems < 12


def test_a_constant_scorer_is_told():
    class Constant(LetterScorer):
        def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
            return [replace(one, values=np.full(len(one.values), 0.25)) for one in super().score(asked)]

    made = settings(tools=replace(settings().tools, scorer=Constant()))
    found = evaluate_search(ScriptedSession(TABLE), PROMPTS, ScriptedScorer(), made)
    assert "the scorer gives all 96 answers the same score, 0.25: selecting by it is no selection" in found.notes
    assert found.auc == 0.5


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, math.nan]), st.booleans()), min_size=1, max_size=12))
def test_auc_against_all_pairs(rows: list[tuple[float, bool]]):
    scores, truth = np.array([score for score, _ in rows]), np.array([float(right) for _, right in rows])
    pairs = [
        (a > b) + (a == b) / 2
        for (a, x) in rows for (b, y) in rows if x and not y and not math.isnan(a) and not math.isnan(b)
    ]  # fmt: skip
    found = auc(scores, truth)
    assert math.isnan(found) if not pairs else found == pytest.approx(np.mean(pairs))


def plan_values(name: str, share: float, tokens: float = 10.0) -> PlanValues:
    """A plan that is right on the first `share` of 100 problems."""
    family, _, size = name.partition(":")
    values = (np.arange(100) < 100 * share).astype(float)
    return PlanValues(family=family, size=size, values=values, drawn_tokens=tokens, scored_tokens=0.0, seconds=0.0)


def test_selecting_that_hurts_is_told_and_noise_is_not():
    vote, good, bad = plan_values("majority:8", 0.5), plan_values("best_of:8", 0.52), plan_values("best_of:8", 0.3)
    assert hurting_notes([vote, good]) == []
    (note,) = hurting_notes([vote, bad])
    assert note.startswith(
        "selecting hurts: best_of:8 is below the majority vote of the same answers, 0.300 against 0.5"
    )
    falls = [plan_values("best_of:2", 0.6, 20), plan_values("best_of:8", 0.4, 80)]
    (note,) = hurting_notes(falls)
    assert note.startswith(
        "more search hurts: best_of:8 is below best_of:2, 0.400 against 0.600 (difference -0.200, 95%"
    )
    assert hurting_notes([plan_values("best_of:2", 0.6, 20), plan_values("best_of:8", 0.59, 80)]) == []
    (note,) = hurting_notes([plan_values("beam:1x4", 0.6, 20), plan_values("beam:4x4", 0.4, 80)])
    assert "beam:4x4 is below beam:1x4" in note
    assert hurting_notes([plan_values("majority:2", 0.6, 20), plan_values("majority:8", 0.4, 80)]) == []
