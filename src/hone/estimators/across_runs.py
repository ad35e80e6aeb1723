"""Statistics over several runs of an algorithm: interquartile means, improvement, profiles, steps to a threshold.

Estimates over seeds, and over tasks that have seeds each. A `stratum` is the scores of the runs of one task; resampling
draws runs within their task, so that every task keeps its weight (Agarwal et al., Deep Reinforcement Learning at the
Edge of the Statistical Precipice, 2021).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.random import generator
from hone.estimators.means import Estimate

Floats: TypeAlias = NDArray[np.float64]
Strata: TypeAlias = Sequence[Floats]
"""Per task the scores of its runs `[n_t]`."""
Statistic: TypeAlias = Callable[[Sequence[Floats]], Floats]
"""Strata, each with any number of leading axes `[..., n_t]` -> `[...]`."""

DRAWS = 2000


def interquartile_mean(strata: Sequence[Floats]) -> Floats:
    """Interquartile mean: the mean of all scores of all tasks without the lowest and the highest quarter.

    floor(n / 4) scores go at each end, so that three runs or fewer give the plain mean. `[..., n_t]` each -> `[...]`.
    """
    pooled = np.sort(np.concatenate(strata, axis=-1), axis=-1)
    count = pooled.shape[-1]
    return pooled[..., count // 4 : count - count // 4].mean(axis=-1)


def pooled_mean(strata: Sequence[Floats]) -> Floats:
    """Mean of all scores: `[..., n_t]` each -> `[...]`."""
    return np.concatenate(strata, axis=-1).mean(axis=-1)


def pooled_median(strata: Sequence[Floats]) -> Floats:
    """Median over tasks of their mean scores; with one task the median of its runs. `[..., n_t]` each -> `[...]`."""
    if len(strata) == 1:
        return np.median(strata[0], axis=-1)
    return np.median(np.stack([scores.mean(axis=-1) for scores in strata]), axis=0)


def stratified_bootstrap(
    strata: Strata, statistic: Statistic, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """The statistic with its percentile bootstrap interval (Efron, 1979), runs drawn again within their task.

    `Estimate.mean` is the statistic itself. Where a task has one run there is nothing to draw: low and high are NaN.
    Raises ValueError without scores.
    """
    _require_scores(strata)
    result = float(statistic(strata))
    if min(map(len, strata)) < 2:
        return Estimate(mean=result, low=math.nan, high=math.nan, n=_runs(strata))
    low, high = _interval(statistic(_drawn(strata, draws, seed, "runs")), level)
    return Estimate(mean=result, low=low, high=high, n=_runs(strata))


def probability_of_improvement(after: Sequence[Floats], before: Sequence[Floats]) -> Floats:
    """Mean over tasks of P(X > Y) + P(X = Y) / 2, a run X of `after` against a run Y of `before`.

    The Mann-Whitney statistic as a share of its pairs (Mann & Whitney, 1947). `[..., n_t]` each -> `[...]`.
    """
    shares: list[Floats] = []
    for x, y in zip(after, before, strict=True):
        higher = x[..., :, None] > y[..., None, :]
        equal = x[..., :, None] == y[..., None, :]
        shares.append((higher + 0.5 * equal).mean(axis=(-2, -1)))
    return np.mean(shares, axis=0)


def improvement_probability(
    after: Strata, before: Strata, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """`probability_of_improvement` with its interval; the same tasks in the same order, and any number of runs of each.

    An interval above 1/2 means that `after` is better more often than not; NaN where a task has one run.
    """
    _require_scores(after)
    _require_scores(before)
    if len(after) != len(before):
        raise ValueError(f"{len(after)} tasks cannot be compared with {len(before)}")
    result, n = float(probability_of_improvement(after, before)), _runs(after) + _runs(before)
    if min(map(len, [*after, *before])) < 2:
        return Estimate(mean=result, low=math.nan, high=math.nan, n=n)
    shares = probability_of_improvement(_drawn(after, draws, seed, "after"), _drawn(before, draws, seed, "before"))
    low, high = _interval(shares, level)
    return Estimate(mean=result, low=low, high=high, n=n)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceProfile:
    """Share of runs above each threshold, with its interval. All `[T]`."""

    thresholds: Floats
    share: Floats
    low: Floats
    high: Floats


def performance_profile(
    strata: Strata, thresholds: Floats, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> PerformanceProfile:
    """Mean over tasks of the share of runs above each of `thresholds` `[T]` (Agarwal et al., 2021; Dolan & More, 2002).

    One profile above another everywhere is stochastic dominance; where they cross, neither is better in every respect.
    The interval holds pointwise.
    """
    _require_scores(strata)
    share = _above(strata, thresholds)
    if min(map(len, strata)) < 2:
        unknown = np.full(len(thresholds), np.nan)
        return PerformanceProfile(thresholds=thresholds, share=share, low=unknown, high=unknown)
    drawn = _above(_drawn(strata, draws, seed, "profile"), thresholds)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return PerformanceProfile(thresholds=thresholds, share=share, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveBand:
    """A curve at S points with its interval. All `[S]`; NaN where no run has a value."""

    middle: Floats
    low: Floats
    high: Floats


def curve_band(curves: Floats, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> CurveBand:
    """Interquartile mean of runs `[n, S]` at each place, with its bootstrap interval: whole runs are drawn again, so
    that the interval of one place goes with that of the next. NaN in a column leaves that run out there."""
    luck = generator(seed, "curve", *curves.shape).random((draws, len(curves)))
    middle, low, high = (np.full(curves.shape[1], np.nan) for _ in range(3))
    for place in range(curves.shape[1]):
        column = curves[:, place]
        there = column[np.isfinite(column)]
        if not len(there):
            continue
        middle[place] = interquartile_mean([there])
        if len(there) > 1:
            picks = (luck[:, : len(there)] * len(there)).astype(np.int64)
            low[place], high[place] = _interval(interquartile_mean([there[picks]]), level)
    return CurveBand(middle=middle, low=low, high=high)


# ------------------------------------------------------------------------------------------ time to a threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToThresholdEstimate:
    """Median time to a threshold with its interval; infinite if fewer than half of the runs reached it."""

    median: float
    low: float
    high: float
    reached: int
    n: int


def survival(times: Floats, reached: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Distinct times of arrival `[k]` and the share of runs that is not there yet after each `[k]`.

    S(t) = prod over t_i <= t of 1 - d_i / n_i: d_i arrive at t_i of n_i still under way (Kaplan & Meier, 1958). A run
    that ended before it arrived (`reached` False at its last step `times`) counts as under way until then, and is
    not called a failure: leaving it out, or taking its budget for its time, would flatter an algorithm that fails.
    """
    order = np.unique(times[reached])
    under_way = (times[None, :] >= order[:, None]).sum(axis=1)
    arrived = ((times[None, :] == order[:, None]) & reached[None, :]).sum(axis=1)
    still: Floats = 1.0 - arrived / np.maximum(under_way, 1)
    return order, np.multiply.accumulate(still)


def median_time(times: Floats, reached: NDArray[np.bool_]) -> float:
    """First time at which at most half of the runs are still under way; infinite when there is none."""
    order, left = survival(times, reached)
    there = np.flatnonzero(left <= 0.5 + 1e-12)
    return float(order[there[0]]) if len(there) else math.inf


def time_to_threshold(
    times: Floats, reached: NDArray[np.bool_], *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> TimeToThresholdEstimate:
    """`median_time` of runs `[n]` with a bootstrap interval; its ends may be infinite, and are NaN for one run."""
    if not len(times):
        raise ValueError("no runs whose time could be taken")
    low = high = math.nan
    if len(times) > 1:
        picks = generator(seed, "arrival", len(times)).integers(0, len(times), size=(draws, len(times)))
        drawn = np.sort([median_time(times[pick], reached[pick]) for pick in picks])
        # Not `quantile`, which would interpolate between a time and infinity.
        low = float(drawn[math.floor((1 - level) / 2 * (draws - 1))])
        high = float(drawn[math.ceil((1 + level) / 2 * (draws - 1))])
    return TimeToThresholdEstimate(
        median=median_time(times, reached), low=low, high=high, reached=int(reached.sum()), n=len(times)
    )


# ------------------------------------------------------------------------------------------ drawing again


def _drawn(strata: Strata, draws: int, seed: int, stream: str) -> list[Floats]:
    """Each stratum as `[draws, n_t]`, its runs drawn with replacement."""
    drawn: list[Floats] = []
    for place, scores in enumerate(strata):
        random = generator(seed, "across runs", stream, place, len(scores))
        drawn.append(scores[random.integers(0, len(scores), size=(draws, len(scores)))])
    return drawn


def _above(strata: Sequence[Floats], thresholds: Floats) -> Floats:
    """`[..., n_t]` each -> `[..., T]`."""
    return np.mean([(scores[..., None] > thresholds).mean(axis=-2) for scores in strata], axis=0)


def _interval(values: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _runs(strata: Strata) -> int:
    return sum(map(len, strata))


def _require_scores(strata: Strata) -> None:
    if not strata or not all(map(len, strata)):
        raise ValueError(f"no scores: the tasks have {[len(scores) for scores in strata]} runs")
