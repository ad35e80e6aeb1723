"""Calibration of a scorer: how well sigmoid(score) is a probability, and how well scores tell good from bad.

Belongs here: figures of scores and labels, as data. Labels are 0 or 1, or probabilities in between (k of K
continuations that were right).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hone.estimators.means import Estimate

Floats = NDArray[np.float64]
DEFAULT_BINS = 10
_LOG_TEMPERATURES = (-5.0, 5.0)
"""Natural logarithms of the temperatures that are looked among."""
_ROUNDS = 60
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Scores whose probabilities lie in one bin."""

    low: float
    high: float
    predicted: float
    """Mean probability; NaN in an empty bin."""
    observed: float
    """Mean label; NaN in an empty bin."""
    n: int


def probabilities(logits: Floats) -> Floats:
    """sigmoid(logits) `[n]`, without overflow."""
    return np.exp(-np.logaddexp(0.0, -logits))


def cross_entropy(logits: Floats, labels: Floats) -> float:
    """Mean of -y log sigmoid(z) - (1 - y) log(1 - sigmoid(z)), in nats; `logits`, `labels` `[n]`."""
    return float(np.mean(np.logaddexp(0.0, logits) - labels * logits))


def reliability_table(predicted: Floats, labels: Floats, *, bins: int = DEFAULT_BINS) -> list[ReliabilityBin]:
    """Observed against predicted probability in `bins` bins of equal width over [0, 1] (Murphy and Winkler, 1977)."""
    place = np.minimum((predicted * bins).astype(np.int64), bins - 1)
    counts = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        means, observed = (
            np.bincount(place, weights=values, minlength=bins) / counts for values in (predicted, labels)
        )
    return [
        ReliabilityBin(
            low=number / bins,
            high=(number + 1) / bins,
            predicted=float(means[number]),
            observed=float(observed[number]),
            n=int(counts[number]),
        )
        for number in range(bins)
    ]


def expected_calibration_error(table: list[ReliabilityBin]) -> float:
    """ECE: mean over the scores of |observed - predicted| of their bin (Naeini et al., 2015). Raises ValueError for an
    empty table."""
    total = sum(one.n for one in table)
    if not total:
        raise ValueError("no scores: no calibration error")
    return sum(one.n * abs(one.observed - one.predicted) for one in table if one.n) / total


def fitted_temperature(logits: Floats, labels: Floats) -> float:
    """The temperature T > 0 that minimises the cross-entropy of sigmoid(logits / T) (Guo et al., 2017).

    Found by golden section on log T between e^-5 and e^5: the cross-entropy is convex in 1 / T, and so has one minimum.
    An end of this range means that there is none: scores that separate the labels perfectly want T = 0, and scores
    without information T = infinity.
    """
    low, high = _LOG_TEMPERATURES

    def cost(log_temperature: float) -> float:
        return cross_entropy(logits * math.exp(-log_temperature), labels)

    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    left_cost, right_cost = cost(left), cost(right)
    for _ in range(_ROUNDS):
        if left_cost <= right_cost:
            high, right, right_cost = right, left, left_cost
            left = high - _GOLDEN * (high - low)
            left_cost = cost(left)
        else:
            low, left, left_cost = left, right, right_cost
            right = low + _GOLDEN * (high - low)
            right_cost = cost(right)
    return math.exp(left if left_cost <= right_cost else right)


def area_under_curve(scores: Floats, labels: Floats) -> float:
    """AUC: P(a good one scores more than a bad one) + P(they tie) / 2, for labels above and not above 1/2; NaN where
    all labels are alike (Hanley and McNeil, 1982)."""
    good = labels > 0.5
    positives, negatives = int(good.sum()), int((~good).sum())
    if not positives or not negatives:
        return math.nan
    return float((mean_ranks(scores)[good].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def area_interval(scores: Floats, labels: Floats, *, level: float = 0.95) -> Estimate:
    """AUC with the normal interval of Hanley and McNeil (1982), within 0 and 1; `n` values.

    Variance (A(1 - A) + (P - 1)(Q1 - A^2) + (N - 1)(Q2 - A^2)) / (P N), Q1 = A / (2 - A), Q2 = 2 A^2 / (1 + A), of P
    good and N bad ones.
    """
    area, count = area_under_curve(scores, labels), len(scores)
    if math.isnan(area):
        return Estimate(mean=area, low=area, high=area, n=count)
    positives = int((labels > 0.5).sum())
    negatives = count - positives
    spread = (positives - 1) * (area / (2 - area) - area**2) + (negatives - 1) * (2 * area**2 / (1 + area) - area**2)
    deviation = math.sqrt(max(0.0, area * (1 - area) + spread) / (positives * negatives))
    half = NormalDist().inv_cdf(0.5 + level / 2) * deviation
    return Estimate(mean=area, low=max(0.0, area - half), high=min(1.0, area + half), n=count)


def rank_correlation(first: Floats, second: Floats) -> float:
    """Spearman's correlation of two columns `[n]`; NaN where one of them is constant."""
    ranks, others = mean_ranks(first), mean_ranks(second)
    ranks, others = ranks - ranks.mean(), others - others.mean()
    size = math.sqrt(float((ranks**2).sum() * (others**2).sum()))
    return math.nan if size == 0 else float((ranks * others).sum() / size)


def mean_ranks(values: Floats) -> Floats:
    """Ranks `[n]` from 1, equal values sharing the mean of theirs."""
    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[number]
