"""Search procedures as coroutines of rounds: each asks for continuations and gets them back with their scores.

Belongs here: what is drawn next and what is kept; no engine, no scorer, no clock. `Searching` runs them.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.text.search.candidates import EMPTY, Candidate
from hone.text.search.plans import BeamPlan, BestOfPlan, MajorityPlan, PoolPlan, StepPlan, TreesPlan
from hone.text.search.select import best, majority, weighted_vote


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Continuations to be drawn at the same time."""

    beginnings: Sequence[Candidate]
    """What is continued; `EMPTY` continues the prompt."""
    samples: int
    """Continuations of each beginning."""
    number: int
    """Number of the round, from 0: draws are keyed by it and by the place of the continuation."""
    whole: bool
    """Draw to the end of the answer, and not to the end of the next step."""
    scored: bool
    """The continuations are to be scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The continuations of a round: all of the first beginning, then all of the second ..."""

    candidates: Sequence[Candidate]
    scores: NDArray[np.float64]
    """`[n]`; NaN where a candidate could not be scored, and everywhere if no scores were asked for."""


Procedure: TypeAlias = Generator[Round, RoundResult, Candidate]
"""Yields rounds, receives their results, returns the selected answer."""


def procedure(plan: PoolPlan | StepPlan, answer_of: Callable[[Candidate], str]) -> Procedure:
    """The procedure of a plan; `answer_of` gives the final answer that is voted on.

    Where one answer is under way at a time, there is nothing to select: it is drawn whole, as without a search.
    """
    if plan.answers == 1:
        return pool_search(1, lambda _: 0, scored=False)
    match plan:
        case BestOfPlan():
            return pool_search(plan.n, lambda result: best(result.scores))
        case MajorityPlan():
            return pool_search(plan.n, lambda result: majority(_answers(result, answer_of)), scored=False)
        case BeamPlan():
            return step_search(trees=1, width=plan.width, branch=plan.branch, steps=plan.steps)
        case TreesPlan():
            return step_search(trees=plan.trees, width=1, branch=plan.branch, steps=plan.steps)
        case _:
            return pool_search(plan.n, lambda result: weighted_vote(_answers(result, answer_of), result.scores))


def pool_search(n: int, select: Callable[[RoundResult], int], *, scored: bool = True) -> Procedure:
    """Draw `n` whole answers and return the one that `select` picks."""
    result = yield Round(beginnings=[EMPTY], samples=n, number=0, whole=True, scored=scored)
    return result.candidates[select(result)]


def step_search(*, trees: int, width: int, branch: int, steps: int) -> Procedure:
    """Beam search in `trees` independent trees, each of `width` beginnings with `branch` continuations of one step.

    Answers that have ended keep their place in the beam as long as their score does. A search ends when every kept
    answer has ended, and returns the best of them; after `steps` steps, open ones are first written to their ends.
    """
    kept: list[list[tuple[Candidate, float]]] = [[(EMPTY, np.nan)] for _ in range(trees)]
    for number in range(steps + 1):
        open_ = [[one for one, _ in tree if one.finish is None] for tree in kept]
        if not any(open_):
            break
        whole = number == steps
        samples = 1 if whole else branch * (1 if number else width)
        result = yield Round(
            beginnings=[one for tree in open_ for one in tree],
            samples=samples,
            number=number,
            whole=whole,
            scored=True,
        )
        drawn = iter(zip(result.candidates, result.scores.tolist(), strict=True))
        for place, tree in enumerate(kept):
            grown = [next(drawn) for _ in range(samples * len(open_[place]))]
            kept[place] = best_first([*(pair for pair in tree if pair[0].finish is not None), *grown])[:width]
    return best_first([pair for tree in kept for pair in tree])[0][0]


def best_first(pairs: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
    """Candidates with scores, the highest first, NaN last, equal ones in their order."""
    scores = np.array([score for _, score in pairs])
    order = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")
    return [pairs[place] for place in order.tolist()]


def _answers(result: RoundResult, answer_of: Callable[[Candidate], str]) -> list[str]:
    return [answer_of(one) for one in result.candidates]
