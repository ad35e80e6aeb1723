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
"""

from dataclasses import dataclass

import numpy as np

from hone.core.decisions import Floats, Ints
from hone.decide.estimators.feedback import LoggedFeedback


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


def more_robust_weights(logged: LoggedFeedback) -> Floats:
    """Weights `[n]` of the rows in the fit of MRDR's model: w^2.

    The variance of DR given the contexts is E[w^2 (r - q)^2] less the square of the correction's mean; the model that
    minimises the first term minimises this upper bound (Farajtabar, Chow and Ghavamzadeh, 2018).
    """
    return logged.weight**2


def _expected(logged: LoggedFeedback, predicted: Floats) -> Floats:
    return (logged.target * predicted).sum(axis=1)


def _residual(logged: LoggedFeedback, predicted: Floats) -> Floats:
    return logged.reward - predicted[np.arange(len(logged)), logged.action]
