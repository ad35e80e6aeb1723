"""Results of scoring: scores, statuses of missing ones, and the results of several functions combined.

Belongs here: plain data on numpy. A failed reward is a missing value (NaN with a status), never a 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import ScoreStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """One function's result for one answer, as checked by the trainer."""

    score: float
    """NaN unless scored."""
    status: ScoreStatus
    reason: str = ""
    seconds: float = 0.0
    not_applicable: bool = False
    """The function returned None: it does not apply to this answer. Not a failure where another function scores it."""
    turns: tuple[float, ...] | None = None
    """The score of each assistant turn, which add up to `score`; None where only the answer has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardScores:
    """Results for n answers."""

    score: NDArray[np.float64]
    """`[n]` weighted sum over the functions; NaN where missing."""
    status: NDArray[np.uint8]
    """`[n]` values of `ScoreStatus`."""
    reasons: tuple[str, ...]
    """`[n]` a function's own reason, or the error; empty where there is none."""
    seconds: NDArray[np.float64]
    """`[n]` seconds spent in the functions."""
    functions: Mapping[str, NDArray[np.float64]]
    """Each function's own score `[n]`, unweighted; NaN where it gave none."""
    tracebacks: tuple[str, ...] = ()
    """Exceptions of the user's code that had not been seen before, one traceback for each distinct error."""
    turn_scores: Mapping[int, Sequence[float]] = field(default_factory=dict[int, Sequence[float]])
    """Weighted scores of all turns, by the place of the answer, which add up to its score; answers without turn scores
    are left out."""

    def __len__(self) -> int:
        return len(self.score)


def result_from_value(
    value: float | Sequence[float] | None, *, reason: str = "", seconds: float = 0.0, source: str = "the function"
) -> RewardResult:
    """The result for a value that `source` returned: a finite number is a score, as is the sum of turn scores."""
    if value is None:
        missing = reason or f"{source} returned None"
        return RewardResult(
            score=np.nan, status=ScoreStatus.UNSCORABLE, reason=missing, seconds=seconds, not_applicable=True
        )
    turns = tuple(value) if isinstance(value, Sequence) else None
    score = sum(value) if isinstance(value, Sequence) else value
    if not math.isfinite(score):
        missing = f"{source} returned {value}"
        return RewardResult(score=np.nan, status=ScoreStatus.UNSCORABLE, reason=missing, seconds=seconds, turns=turns)
    return RewardResult(score=score, status=ScoreStatus.SCORED, reason=reason, seconds=seconds, turns=turns)


def failed_result(status: ScoreStatus, reason: str, *, seconds: float = 0.0) -> RewardResult:
    """A result without a score."""
    return RewardResult(score=np.nan, status=status, reason=reason, seconds=seconds)


def within_range(
    results: Sequence[RewardResult], max_abs_score: float, ids: Sequence[str] = ()
) -> Sequence[RewardResult]:
    """Results of n answers, where a score or a turn's score beyond `max_abs_score` is a missing one; `ids` name the
    answers' prompts."""
    checked = list(results)
    for index, result in enumerate(results):
        turns = (result.turns or ()) if result.status is ScoreStatus.SCORED else ()
        if any(abs(score) > max_abs_score for score in (result.score, *turns)):
            score = f"{result.score:g}" if result.turns is None else f"{list(result.turns)}"
            place = f" for prompt {ids[index]!r}" if index < len(ids) and ids[index] else ""
            reason = f"the score {score}{place} is beyond user_code.max_abs_score = {max_abs_score:g}"
            checked[index] = failed_result(ScoreStatus.UNSCORABLE, reason)
    return checked


def combine_results(
    by_function: Mapping[str, Sequence[RewardResult]],
    weights: Sequence[float],
    *,
    tracebacks: Sequence[str] = (),
    max_abs_score: float = np.inf,
    ids: Sequence[str] = (),
) -> RewardScores:
    """Several functions' results for the same n answers as one: the sum of `weight * score`.

    A score beyond `max_abs_score` counts as a failure, and a sum beyond it is missing; `ids` name the answers' prompts.

    A function that returned None does not apply, and is left out of the sum. A function that failed (exception, hang,
    NaN) makes the answer's score missing: a sum that lacks a term is on another scale. All left out: missing.
    Where some function scored single turns, the score of one that did not counts for the last turn.
    """
    by_function = {name: within_range(column, max_abs_score, ids) for name, column in by_function.items()}
    names = list(by_function)
    rows = list(zip(*by_function.values(), strict=True))
    totals = within_range([_combine_row(row, names, weights) for row in rows], max_abs_score, ids)
    return RewardScores(
        score=np.array([total.score for total in totals], dtype=np.float64),
        status=np.array([total.status for total in totals], dtype=np.uint8),
        reasons=tuple(total.reason for total in totals),
        seconds=np.array([total.seconds for total in totals], dtype=np.float64),
        functions={name: np.array([v.score for v in column]) for name, column in by_function.items()},
        tracebacks=tuple(tracebacks),
        turn_scores={
            index: turns
            for index, (row, total) in enumerate(zip(rows, totals, strict=True))
            if total.status is ScoreStatus.SCORED and (turns := _combine_turns(row, weights))
        },
    )


def _combine_row(row: Sequence[RewardResult], names: Sequence[str], weights: Sequence[float]) -> RewardResult:
    seconds = sum(result.seconds for result in row)
    named = [(name, result.reason) for name, result in zip(names, row, strict=True) if result.reason]
    reason = named[0][1] if len(row) == 1 and named else "; ".join(f"{name}: {text}" for name, text in named)
    failures = [
        result.status for result in row if result.status is not ScoreStatus.SCORED and not result.not_applicable
    ]
    if failures:
        return failed_result(max(failures), reason, seconds=seconds)
    parts = [weight * result.score for weight, result in zip(weights, row, strict=True) if not result.not_applicable]
    if not parts:
        return failed_result(ScoreStatus.UNSCORABLE, reason, seconds=seconds)
    return result_from_value(float(sum(parts)), reason=reason, seconds=seconds)


def _combine_turns(row: Sequence[RewardResult], weights: Sequence[float]) -> list[float]:
    """The weighted score of each turn; empty where no function scored turns."""
    count = max((len(result.turns) for result in row if result.turns is not None), default=0)
    turns = np.zeros(count)
    for weight, result in zip(weights, row, strict=True):
        if count and not result.not_applicable:
            turns += weight * np.array(result.turns or [0.0] * (count - 1) + [result.score])
    return turns.tolist()
