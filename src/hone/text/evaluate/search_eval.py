"""Accuracy of searches at test time by tokens: every plan beside single answers, votes, and the best that there was.

A pool of whole answers is drawn once; what selecting among fewer of them is worth is the mean over all subsets. Plans
that select after each step are searched for real. All plans answer the same problems, so that differences are paired.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.generation import Completion, GenerationSession, Request, SamplingParams, generate
from hone.core.judging import Scorer
from hone.estimators.means import mean_interval, paired_difference
from hone.run.store.search import ORACLE, PlanScore, SearchRecord
from hone.text.evaluate.search_scorers import score_texts, scorer_input
from hone.text.search import estimates
from hone.text.search.plans import BeamPlan, TreesPlan
from hone.text.search.searching import EMPTY, Candidate, Searching, SearchTools, extended
from hone.text.tasks.world import Prompt

Floats = NDArray[np.float64]
_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """What is compared, and by what means."""

    pool: int
    """Whole answers to each problem."""
    sizes: Sequence[int]
    """Numbers of answers among which the plans on whole answers select, ascending; none above `pool`."""
    step_plans: Sequence[BeamPlan | TreesPlan]
    sampling: SamplingParams
    tools: SearchTools
    scorer_name: str = ""
    scorer_is_truth: bool = False
    """The scorer knows the right answers, so that nothing it does is a fault of a model."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Answers to P problems, N each."""

    candidates: Sequence[Sequence[Candidate]]
    texts: Sequence[Sequence[str]]
    truth: Floats
    """`[P, N]`."""
    scores: Floats | None
    """`[P, N]` of the scorer."""
    drawn_s: float
    scored_s: float
    scorer_reads: bool
    """The scorer is a network, which reads tokens."""
    prompt_tokens: Floats
    """`[P]` tokens of each prompt."""

    @property
    def sequences(self) -> list[list[bytes]]:
        """Answers as keys: equal ones are scored once."""
        return [[one.tokens.tobytes() for one in some] for some in self.candidates]

    @property
    def lengths(self) -> Floats:
        """`[P, N]` tokens of each answer."""
        return np.array([[float(len(one.tokens)) for one in some] for some in self.candidates])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanValues:
    """Accuracy of one plan on each problem, and what it cost in the mean."""

    family: str
    size: str
    values: Floats
    """`[P]`."""
    drawn_tokens: float
    scored_tokens: float
    seconds: float

    @property
    def plan(self) -> str:
        return f"{self.family}:{self.size}"

    def row(self) -> PlanScore:
        """The row of the table, with its interval."""
        found = mean_interval(self.values)
        return PlanScore(
            plan=self.plan,
            family=self.family,
            mean=found.mean,
            low=found.low,
            high=found.high,
            drawn_tokens=self.drawn_tokens,
            scored_tokens=self.scored_tokens,
            seconds=self.seconds,
        )


def sizes_up_to(pool: int, wanted: Sequence[int]) -> list[int]:
    """Powers of two up to `pool`, and the `wanted` numbers, ascending."""
    powers = [1 << n for n in range(pool.bit_length())]
    return sorted({size for size in (*powers, *wanted, pool) if size <= pool})


def evaluate_search(
    session: GenerationSession, prompts: Sequence[Prompt], truth: Scorer, settings: SearchSettings
) -> SearchRecord:
    """Search the answers of `prompts` by every plan; `truth` says which are right.

    Raises DataError if no answer could be judged, or if `settings.tools.step` never occurs in the answers while a plan
    selects after each step.
    """
    prompts, pool = _draw_pool(session, prompts, truth, settings)
    if settings.step_plans:
        _require_steps(pool, settings.tools.step)
    plans = _pool_plans(pool, settings)
    for plan in settings.step_plans:
        plans.append(_searched(session, plan, prompts, truth, settings))
    told = [plan for plan in plans if not np.isnan(plan.values).any()]
    lost = [
        f"{plan.plan}: {int(np.isnan(plan.values).sum())} selected answers could not be judged; it is left out"
        for plan in plans
        if np.isnan(plan.values).any()
    ]
    notes = [] if settings.scorer_is_truth else [*_constant_note(pool), *hurting_notes(told)]
    return SearchRecord(
        problems=len(prompts),
        scorer=settings.scorer_name,
        auc=math.nan if pool.scores is None else auc(pool.scores, pool.truth),
        plans=tuple(plan.row() for plan in told),
        notes=(*lost, *notes),
    )


def auc(scores: Floats, truth: Floats) -> float:
    """Chance that a right answer scores higher than a wrong one, ties counted half; NaN without both kinds.

    (R - c (c + 1) / 2) / (c w) for the sum R of the ranks of c right answers among w wrong ones (Mann and Whitney,
    1947). Answers without a score are left out; an answer is right from a truth of 0.5 on.
    """
    known = ~np.isnan(scores)
    values, right = scores[known], truth[known] >= 0.5
    count, wrong = int(right.sum()), int((~right).sum())
    if not count or not wrong:
        return math.nan
    _, of, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[of]
    return float((ranks[right].sum() - count * (count + 1) / 2) / (count * wrong))


def hurting_notes(plans: Sequence[PlanValues]) -> list[str]:
    """Sentences about selecting by the scorer that did worse than the majority vote of as many answers, or than a
    smaller plan of its own family; each difference has a paired 95% interval without 0."""
    by_name = {plan.plan: plan for plan in plans}
    notes: list[str] = []
    for family in ("best_of", "weighted_vote"):
        some = [plan for plan in plans if plan.family == family]
        for plan in some[-1:]:
            vote = by_name.get(f"majority:{plan.size}")
            if vote is not None and (difference := _worse(vote, plan)):
                notes.append(
                    f"selecting hurts: {plan.plan} is below the majority vote of the same answers, {difference}"
                )
    for family in dict.fromkeys(plan.family for plan in plans if plan.family not in (ORACLE, "majority", "likeliest")):
        some = [plan for plan in plans if plan.family == family]
        if len(some) < 2:
            continue
        largest = max(some, key=lambda plan: plan.drawn_tokens)
        best = max(some, key=lambda plan: plan.values.mean())
        if best.drawn_tokens < largest.drawn_tokens and (difference := _worse(best, largest)):
            notes.append(f"more search hurts: {largest.plan} is below {best.plan}, {difference}")
    return notes


def _constant_note(pool: _Pool) -> list[str]:
    known = None if pool.scores is None else pool.scores[~np.isnan(pool.scores)]
    if known is None or (len(known) and known.min() < known.max()):
        return []
    if not len(known):
        return [f"the scorer gives none of {pool.truth.size} answers a score: selecting by it is no selection"]
    return [
        f"the scorer gives all {len(known)} answers the same score, {known[0]:.4g}: selecting by it is no selection"
    ]


def _worse(before: PlanValues, after: PlanValues) -> str:
    """The difference in words if `after` is worse on the same problems; empty otherwise."""
    found = paired_difference(before.values, after.values)
    if found.high >= 0:
        return ""
    means = f"{after.values.mean():.3f} against {before.values.mean():.3f}"
    return f"{means} (difference {found.difference:.3f}, 95% interval {found.low:.3f} to {found.high:.3f})"


# ---------------------------------------------------------------------------------------------------- whole answers


def _draw_pool(
    session: GenerationSession, prompts: Sequence[Prompt], truth: Scorer, settings: SearchSettings
) -> tuple[list[Prompt], _Pool]:
    """Answers of the pool, judged and scored; problems with an answer that cannot be judged are left out."""
    asked = _requests(prompts, settings, samples=settings.pool)
    began = time.perf_counter()
    drawn: dict[str, list[Completion]] = {request.id: [] for request in asked}
    for completion in generate(session, asked):
        drawn[completion.request_id].append(completion)
    drawn_s = time.perf_counter() - began
    whole = [[_candidate(one) for one in sorted(some, key=lambda one: one.sample_index)] for some in drawn.values()]
    inputs = [
        [scorer_input(prompt, one, settings.tools.decode) for one in some]
        for prompt, some in zip(prompts, whole, strict=True)
    ]
    right = np.stack(score_texts(truth, inputs))
    kept = np.flatnonzero(~np.isnan(right).any(axis=1)).tolist()
    if not kept:
        raise DataError(f"none of {len(prompts)} problems has only answers that could be scored: there is no accuracy")
    scores, reads, scored_s = None, False, 0.0
    if settings.tools.scorer is not None:
        began = time.perf_counter()
        found = settings.tools.scorer.score(list(zip(asked, whole, strict=True)))
        scored_s = time.perf_counter() - began
        scores, reads = np.stack([one.values for one in found]), any(one.tokens_read.any() for one in found)
    return [prompts[place] for place in kept], _Pool(
        candidates=[whole[place] for place in kept],
        texts=[[one.text for one in inputs[place]] for place in kept],
        truth=right[kept],
        scores=None if scores is None else scores[kept],
        drawn_s=drawn_s / len(prompts),
        scored_s=scored_s / len(prompts),
        scorer_reads=reads,
        prompt_tokens=np.array([float(len(prompts[place].tokens)) for place in kept]),
    )


def _requests(prompts: Sequence[Prompt], settings: SearchSettings, *, samples: int) -> list[Request]:
    return [
        Request(id=prompt.id, prompt=prompt.tokens, samples=samples, sampling=settings.sampling) for prompt in prompts
    ]


def _candidate(one: Completion) -> Candidate:
    return extended(EMPTY, one, finish=one.finish_reason)


def _pool_plans(pool: _Pool, settings: SearchSettings) -> list[PlanValues]:
    """Plans on whole answers, by family and size."""
    answers = [[settings.tools.answer_of(text) for text in some] for some in pool.texts]
    likeliest = np.array([[one.mean_logp for one in some] for some in pool.candidates])
    families: dict[str, tuple[Callable[[int], Floats], bool]] = {
        ORACLE: (lambda k: estimates.pass_at(pool.truth, k), False),
        "majority": (lambda k: estimates.vote(answers, pool.truth, k, seed=settings.seed), False),
        "likeliest": (lambda k: estimates.best_of(likeliest, pool.truth, k), False),
    }
    if pool.scores is not None:
        scores = pool.scores
        families["best_of"] = (lambda k: estimates.best_of(scores, pool.truth, k), True)
        families["weighted_vote"] = (
            lambda k: estimates.vote(answers, pool.truth, k, weights=scores, seed=settings.seed),
            True,
        )
    sizes = [size for size in settings.sizes if size > 1]
    found = [_pool_plan(pool, ORACLE, 1, pool.truth.mean(axis=1), scored=False)]
    for family, (values, scored) in families.items():
        found += [_pool_plan(pool, family, size, values(size), scored=scored) for size in sizes]
    return found


def _pool_plan(pool: _Pool, family: str, size: int, values: Floats, *, scored: bool) -> PlanValues:
    share, read = size / pool.truth.shape[1], 0.0
    if scored and pool.scorer_reads:
        read = float(estimates.distinct(pool.sequences, pool.lengths + pool.prompt_tokens[:, None], size).mean())
    return PlanValues(
        family=family,
        size=str(size),
        values=values,
        drawn_tokens=float(pool.lengths.mean()) * size,
        scored_tokens=read,
        seconds=share * (pool.drawn_s + (pool.scored_s if scored else 0.0)),
    )


# ----------------------------------------------------------------------------------------------------- step by step


def _require_steps(pool: _Pool, step: str) -> None:
    texts = [text for some in pool.texts for text in some]
    if not any(step in text for text in texts):
        shown = "; ".join(repr(text[:80]) for text in dict.fromkeys(texts[:: max(1, len(texts) // _EXAMPLES)]))
        raise DataError(
            f"evaluation.search.step = {step!r} never occurs in {len(texts)} answers, so that there are no steps to "
            f"select after; answers are, for example: {shown}; name the text that ends a step, or leave beam and trees "
            "out"
        )


def _searched(
    session: GenerationSession,
    plan: BeamPlan | TreesPlan,
    prompts: Sequence[Prompt],
    truth: Scorer,
    settings: SearchSettings,
) -> PlanValues:
    search = Searching(session, plan, settings.tools)
    began = time.perf_counter()
    found = {one.request_id: one for one in generate(search, _requests(prompts, settings, samples=1))}
    seconds = time.perf_counter() - began
    inputs = [[scorer_input(prompt, _candidate(found[prompt.id]), settings.tools.decode)] for prompt in prompts]
    family, _, size = str(plan).partition(":")
    costs = list(search.costs.values())
    return PlanValues(
        family=family,
        size=size,
        values=np.concatenate(score_texts(truth, inputs)),
        drawn_tokens=float(np.mean([cost.drawn_tokens for cost in costs])),
        scored_tokens=float(np.mean([cost.scored_tokens for cost in costs])),
        seconds=seconds / len(prompts),
    )
