"""Estimators of a policy's value from single decisions, each as row-wise terms.

Every estimator here has the form

    value = mean(base) + sum over t of sum(numerator[:, t]) / sum(denominator[:, t])

with a denominator of 1 in each row, or of weights where it normalises itself. One interval, one bootstrap and one
paired comparison therefore serve all of them. With w = target probability / propensity, r the reward, q a model of it:

    ips       w r                                Horvitz and Thompson, 1952
    snips     w r / mean(w)                      Hajek, 1971; Swaminathan and Joachims, 2015
    clipped   min(w, M) r                        Ionides, 2008
    dm        sum over a of pi(a) q(a)           direct method
    dr        dm + w (r - q)                     Dudik, Langford and Li, 2011
    sndr      dm + w (r - q) / mean(w)           the same, self-normalised
    switch    dm + [w <= M] w (r - q)            Wang, Agarwal and Dudik, 2017
    mrdr      dr, q fitted with the rows' weights w^2      Farajtabar, Chow and Ghavamzadeh, 2018

Confidence intervals of off-policy estimates. Rows of one unit may depend on each other; units are independent.

normal      estimate +- z s.e., the variance over sums of units (Liang and Zeger, 1986), longer on the side of a skew
            (Johnson, 1978): right for large samples
bernstein   empirical Bernstein bound of Maurer and Pontil (2009): holds for every n, several times as wide
bootstrap   percentiles over units drawn with replacement (Efron, 1979; Field and Welsh, 2007)
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

from hone.core.clock import counted
from hone.core.decisions import Bools, Floats, Ints
from hone.core.random import generator

# ------------------------------------------------------------------------------------------------------------- feedback


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFeedback:
    """n logged decisions with known rewards, and the target policy's distribution in each of their contexts."""

    contexts: Floats
    """`[n, d]`."""
    action: Ints
    """`[n]` executed action, below K."""
    logp: Floats
    """`[n]` nats: log-probability of the executed action under the behaviour policy."""
    reward: Floats
    """`[n]`."""
    target_logp: Floats
    """`[n, K]` nats: the target policy's distribution; -inf for an action that is not offered or never taken."""
    unit: Ints
    """`[n]` numbers of the units. Rows of one unit may depend on each other; units are independent."""
    behaviour_logp: Floats | None = None
    """`[n, K]` nats: the behaviour policy's whole distribution; None: only the executed actions' is known."""
    offered: Bools | None = None
    """`[n, K]` the action could be taken; None: known only of those that the target takes."""

    def __len__(self) -> int:
        return len(self.action)

    @property
    def weight(self) -> Floats:
        """Importance weights `[n]`: target / behaviour probability of the executed action."""
        return np.exp(self.target_logp[np.arange(len(self)), self.action] - self.logp)

    @property
    def target(self) -> Floats:
        """Target probabilities `[n, K]`."""
        return np.exp(self.target_logp)

    def rows(self, chosen: Ints) -> "LoggedFeedback":
        """Some of the rows, by their numbers."""
        known, offered = self.behaviour_logp, self.offered
        return replace(
            self,
            contexts=self.contexts[chosen],
            action=self.action[chosen],
            logp=self.logp[chosen],
            reward=self.reward[chosen],
            target_logp=self.target_logp[chosen],
            unit=self.unit[chosen],
            behaviour_logp=None if known is None else known[chosen],
            offered=None if offered is None else offered[chosen],
        )

    def more_robust_weights(self) -> Floats:
        """Weights `[n]` of the rows in the fit of MRDR's model: w^2.

        The variance of DR given the contexts is E[w^2 (r - q)^2] less the square of the correction's mean; the model
        that minimises the first term minimises this upper bound (Farajtabar, Chow and Ghavamzadeh, 2018).
        """
        return self.weight**2


def effective_sample_size(weight: Floats) -> float:
    """Effective sample size (sum w)^2 / sum w^2 of weights `[n]`: the rows of equal weight that are worth as much
    (Kish, 1965). 0 where all weights are 0, NaN where one is not finite."""
    largest = float(weight.max(initial=0.0))
    if largest == 0:
        return 0.0
    shares = weight / largest  # squares of large weights have no room in a float
    return float(shares.sum()) ** 2 / float((shares**2).sum())


# ---------------------------------------------------------------------------------------------------------------- terms


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorTerms:
    """Row-wise terms of an estimator, for n rows (decisions or episodes)."""

    base: Floats
    """`[n]` averaged as they are."""
    numerator: Floats
    """`[n, T]`."""
    denominator: Floats
    """`[n, T]`."""

    def rows(self, chosen: Ints) -> "EstimatorTerms":
        """Terms of some of the rows, by their numbers."""
        return EstimatorTerms(
            base=self.base[chosen], numerator=self.numerator[chosen], denominator=self.denominator[chosen]
        )

    @property
    def ratios(self) -> Floats:
        """Sum of the numerator over the sum of the denominator `[T]`; NaN where the denominator adds up to 0."""
        above, below = self.numerator.sum(axis=0), self.denominator.sum(axis=0)
        return np.divide(above, below, out=np.full(len(below), np.nan), where=below != 0)

    @property
    def value(self) -> float:
        """The estimate."""
        return float(self.base.mean() + self.ratios.sum())

    @property
    def influence(self) -> Floats:
        """Contribution of each row `[n]`: their mean is the estimate, their spread its variance to first order.

        base + sum over t of (ratio + (numerator - ratio denominator) / mean(denominator)), the linearisation of the
        ratio (delta method).
        """
        ratios = self.ratios
        means = self.denominator.mean(axis=0)
        scale = np.divide(1.0, means, out=np.full(len(means), np.nan), where=means != 0)
        return self.base + (ratios + (self.numerator - ratios * self.denominator) * scale).sum(axis=1)


def _terms(base: Floats | None, numerator: Floats, denominator: Floats | None) -> EstimatorTerms:
    return EstimatorTerms(
        base=np.zeros(len(numerator)) if base is None else base,
        numerator=numerator[:, None],
        denominator=(np.ones(len(numerator)) if denominator is None else denominator)[:, None],
    )


def inverse_propensity(logged: LoggedFeedback) -> EstimatorTerms:
    """IPS: mean of w r. Unbiased where the behaviour policy takes every action that the target takes (Horvitz and
    Thompson, 1952)."""
    return _terms(None, logged.weight * logged.reward, None)


def self_normalised(logged: LoggedFeedback) -> EstimatorTerms:
    """SNIPS: sum w r / sum w. Consistent, within the range of the rewards, equivariant to a shift of them (Hajek, 1971;
    Swaminathan and Joachims, 2015)."""
    return _terms(None, logged.weight * logged.reward, logged.weight)


def clipped_inverse_propensity(logged: LoggedFeedback, *, max_weight: float) -> EstimatorTerms:
    """Clipped IPS: mean of min(w, M) r. For rewards of at least 0 it is never above IPS: biased low, of less variance
    (Ionides, 2008)."""
    return _terms(None, np.minimum(logged.weight, max_weight) * logged.reward, None)


def direct_method(logged: LoggedFeedback, predicted: Floats) -> EstimatorTerms:
    """DM: mean of sum over a of pi(a|x) q(x, a), `predicted` `[n, K]`. Wrong wherever the model is, and its interval
    knows nothing of that: the verdict is never better than `weak`."""
    return _terms(_expected(logged, predicted), np.zeros(len(logged)), None)


def doubly_robust(logged: LoggedFeedback, predicted: Floats) -> EstimatorTerms:
    """DR: DM + mean of w (r - q(x, a)). Unbiased if the propensities are right, or if the model is (Dudik, Langford and
    Li, 2011); `predicted` `[n, K]` must not have been fitted on the row that it predicts."""
    return _terms(_expected(logged, predicted), logged.weight * _residual(logged, predicted), None)


def self_normalised_doubly_robust(logged: LoggedFeedback, predicted: Floats) -> EstimatorTerms:
    """SNDR: DM + sum w (r - q) / sum w; `predicted` `[n, K]`."""
    return _terms(_expected(logged, predicted), logged.weight * _residual(logged, predicted), logged.weight)


def switch_doubly_robust(logged: LoggedFeedback, predicted: Floats, *, max_weight: float) -> EstimatorTerms:
    """Switch-DR: DM, corrected by w (r - q) only where w <= M: the model is trusted where weights would be large (Wang,
    Agarwal and Dudik, 2017); `predicted` `[n, K]`."""
    weight = logged.weight
    corrected = weight * _residual(logged, predicted) * (weight <= max_weight)
    return _terms(_expected(logged, predicted), corrected, None)


def _expected(logged: LoggedFeedback, predicted: Floats) -> Floats:
    return (logged.target * predicted).sum(axis=1)


def _residual(logged: LoggedFeedback, predicted: Floats) -> Floats:
    return logged.reward - predicted[np.arange(len(logged)), logged.action]


# ------------------------------------------------------------------------------------------------------------ intervals


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


def unit_deviations(influence: Floats, unit: Ints) -> Floats:
    """Sums over each unit's rows of their deviations from the mean of `influence` `[n]` -> `[U]`."""
    return _unit_sums(influence - influence.mean(), unit) if len(unit) else np.zeros(0)


def standard_error(influence: Floats, unit: Ints) -> float:
    """Standard error of the mean of `influence` `[n]`, rows clustered by unit: sqrt(U / (U - 1) sum S_u^2) / n, S_u the
    sum of a unit's deviations from the mean (Liang and Zeger, 1986). Infinite for fewer than 2 units."""
    sums = unit_deviations(influence, unit)
    units = len(sums)
    if units < 2:
        return math.inf
    return math.sqrt(units / (units - 1) * float((sums**2).sum())) / len(influence)


def normal_interval(influence: Floats, unit: Ints, *, level: float) -> ValueInterval:
    """Estimate +- z s.e. for contributions `[n]`; the end that a skew makes too short is moved outwards.

    With g = sum S_u^3 / (sum S_u^2)^(3/2), the skewness over the root of the number of units, that end lies
    (1 + 2 z^2) |g| / 2 s.e. farther out, three times the correction of Johnson (1978): a log that holds few of its
    large values has a mean, a standard error and a skewness that are all too small.
    """
    z, error = NormalDist().inv_cdf(0.5 + level / 2), standard_error(influence, unit)
    centre, sums = float(influence.mean()), unit_deviations(influence, unit)
    largest = float(np.abs(sums).max(initial=0.0))
    lean = 0.0
    if 0 < largest < math.inf:
        scaled = sums / largest
        lean = float((scaled**3).sum()) / float((scaled**2).sum()) ** 1.5 * (1 + 2 * z**2) / 2
    return ValueInterval(low=centre - (z + max(-lean, 0.0)) * error, high=centre + (z + max(lean, 0.0)) * error)


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
    for done in counted(range(0, draws, most), "parts of the bootstrap"):
        picks = random.integers(0, units, size=(min(most, draws - done), units))
        counts = np.stack([np.bincount(row, minlength=units) for row in picks]).astype(np.float64)
        drawn = counts @ sums
        above, below = drawn[:, 2 : 2 + steps], drawn[:, 2 + steps :]
        ratios = np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)
        values.append(drawn[:, 1] / drawn[:, 0] + ratios.sum(axis=1))
    low, high = np.nanquantile(np.concatenate(values), [(1 - level) / 2, (1 + level) / 2])
    return ValueInterval(low=float(low), high=float(high))
