"""Means with intervals, and the comparison of two policies on the same questions."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hone.core.random import generator

_PICKS = 1 << 20
"""Resampled scores held at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifferenceEstimate:
    """after - before on the same questions."""

    difference: float
    low: float
    high: float
    p_value: float
    """Two-sided, of the hypothesis that neither is better."""
    n: int


def wilson_interval(successes: int, n: int, *, level: float = 0.95) -> Estimate:
    """Interval of a proportion by inverting the score test (Wilson, 1927); honest near 0 and 1, where +- 2 s.e. is not.

    centre = (p + z^2/2n) / (1 + z^2/n), half width = z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n).
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"{successes} successes of {n} make no proportion")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # Without a success, or a failure, an end is exact: the difference would be rounding.
    low = max(0.0, centre - half) if successes else 0.0
    return Estimate(mean=p, low=low, high=min(1.0, centre + half) if successes < n else 1.0, n=n)


def bootstrap_mean(scores: NDArray[np.float64], *, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Estimate:
    """Percentile bootstrap of the mean of `scores` `[n]` (Efron, 1979), for scores that are not 0 or 1."""
    if not len(scores):
        raise ValueError("no scores to take the mean of")
    random, n = generator(seed, "bootstrap", len(scores)), len(scores)
    most = max(1, _PICKS // n)
    means = np.concatenate(
        [
            scores[random.integers(0, n, size=(min(most, draws - done), n))].mean(axis=1)
            for done in range(0, draws, most)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(mean=float(scores.mean()), low=float(low), high=float(high), n=len(scores))


def mean_interval(scores: NDArray[np.float64], *, level: float = 0.95) -> Estimate:
    """`wilson_interval` where every score is 0 or 1, `bootstrap_mean` otherwise. `scores` `[n]`."""
    if len(scores) and bool(np.isin(scores, (0.0, 1.0)).all()):
        return wilson_interval(int(scores.sum()), len(scores), level=level)
    return bootstrap_mean(scores, level=level)


def paired_difference(
    before: NDArray[np.float64], after: NDArray[np.float64], *, level: float = 0.95
) -> PairedDifferenceEstimate:
    """Compare two policies question by question: `before`, `after` `[n]`.

    The interval is a bootstrap of the mean difference; the p-value is the exact sign test on the questions where the
    scores differ (McNemar's exact test for 0/1 scores), which assumes nothing about the scores' distribution.
    """
    if before.shape != after.shape:
        raise ValueError(f"{len(before)} scores before and {len(after)} after are not pairs")
    differences = after - before
    estimate = bootstrap_mean(differences, level=level)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    return PairedDifferenceEstimate(
        difference=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        p_value=sign_test(better, worse),
        n=len(differences),
    )


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact p-value of `better` against `worse` under a fair coin; 1 when nothing differs.

    min(1, 2 P(X <= min(better, worse))), X ~ Binomial(better + worse, 1/2).
    """
    n, fewer = better + worse, min(better, worse)
    if n == 0:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / 2**n)
