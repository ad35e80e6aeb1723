"""Confidence intervals of off-policy estimates. Rows of one unit may depend on each other; units are independent.

normal      estimate +- z s.e., the variance over sums of units (Liang and Zeger, 1986): right for large samples
bernstein   empirical Bernstein bound of Maurer and Pontil (2009): holds for every n, several times as wide
bootstrap   percentiles over units drawn with replacement (Efron, 1979; Field and Welsh, 2007)
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from hone.core.decisions import Floats, Ints
from hone.core.random import generator
from hone.decide.estimators.terms import EstimatorTerms

IntervalKind = Literal["normal", "bernstein", "bootstrap"]
DRAWS = 1000
_PICKS = 1 << 20
"""Units drawn at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueInterval:
    """Interval of a value."""

    low: float
    high: float


def _unit_sums(values: Floats, unit: Ints) -> Floats:
    """Sums of `values` `[n]` over the rows of each unit that has rows `[U]`."""
    count = int(unit.max()) + 1 if len(unit) else 0
    sums = np.bincount(unit, weights=values, minlength=count).astype(np.float64)
    return sums[np.bincount(unit, minlength=count) > 0]


def standard_error(influence: Floats, unit: Ints) -> float:
    """Standard error of the mean of `influence` `[n]`, rows clustered by unit: sqrt(U / (U - 1) sum S_u^2) / n, S_u the
    sum of a unit's deviations from the mean (Liang and Zeger, 1986). Infinite for fewer than 2 units."""
    sums = _unit_sums(influence - influence.mean(), unit) if len(unit) else np.zeros(0)
    units = len(sums)
    if units < 2:
        return math.inf
    return math.sqrt(units / (units - 1) * float((sums**2).sum())) / len(influence)


def normal_interval(influence: Floats, unit: Ints, *, level: float) -> ValueInterval:
    """Estimate +- z s.e. for contributions `[n]`."""
    half = NormalDist().inv_cdf(0.5 + level / 2) * standard_error(influence, unit)
    centre = float(influence.mean())
    return ValueInterval(low=centre - half, high=centre + half)


def bernstein_interval(influence: Floats, unit: Ints, *, level: float, span: float) -> ValueInterval:
    """Empirical Bernstein: mean +- (sqrt(2 V ln(4/alpha) / U) + 7 R ln(4/alpha) / (3 (U - 1))) over the U units' own
    totals, each alpha/2 on a side (Maurer and Pontil, 2009, theorem 4).

    `span` is the range R of one row's contribution, known before the data. A unit's total is scaled by U / n, so its
    range is `span` times the most rows of a unit times U / n. Infinite for fewer than 2 units.
    """
    totals = _unit_sums(influence, unit)
    units, centre = len(totals), float(influence.mean())
    if units < 2:
        return ValueInterval(low=-math.inf, high=math.inf)
    scale, rows = units / len(influence), int(np.bincount(unit).max())
    room = math.log(4 / (1 - level))
    variance = float(np.var(totals * scale, ddof=1))
    half = math.sqrt(2 * variance * room / units) + 7 * span * rows * scale * room / (3 * (units - 1))
    return ValueInterval(low=centre - half, high=centre + half)


def bootstrap_interval(
    terms: EstimatorTerms, unit: Ints, *, level: float, draws: int = DRAWS, seed: int = 0
) -> ValueInterval:
    """Percentile bootstrap of an estimator: whole units are drawn with replacement, and ratios are taken anew."""
    steps = terms.numerator.shape[1]
    columns = [np.ones(len(unit)), terms.base, *terms.numerator.T, *terms.denominator.T]
    sums = np.stack([_unit_sums(column, unit) for column in columns], axis=1)
    units = len(sums)
    if not units:
        return ValueInterval(low=math.nan, high=math.nan)
    random, most = generator(seed, "off-policy bootstrap", units), max(1, _PICKS // units)
    values: list[Floats] = []
    for done in range(0, draws, most):
        picks = random.integers(0, units, size=(min(most, draws - done), units))
        counts = np.stack([np.bincount(row, minlength=units) for row in picks]).astype(np.float64)
        drawn = counts @ sums
        above, below = drawn[:, 2 : 2 + steps], drawn[:, 2 + steps :]
        ratios = np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)
        values.append(drawn[:, 1] / drawn[:, 0] + ratios.sum(axis=1))
    low, high = np.nanquantile(np.concatenate(values), [(1 - level) / 2, (1 + level) / 2])
    return ValueInterval(low=float(low), high=float(high))
