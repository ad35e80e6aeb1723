"""Off-policy estimates of a stream of rows, in memory that does not grow: sums by bucket of units.

Units fall into a fixed number of buckets by a hash. A unit is in one bucket as a whole, so that sums by bucket give
standard errors that allow for dependence within a unit, as sums by unit do. The rows are read once, or twice with a
reward model: first its sums are taken, then every row is predicted by the model of the other folds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from hone.core.decisions import Bools, Floats
from hone.core.errors import ConfigError
from hone.decide.estimators.estimate import (
    EstimateSettings,
    EstimatorName,
    OffPolicyEstimate,
    assumptions_of,
    model_reasons,
    terms_of,
)
from hone.decide.estimators.feedback import LoggedFeedback
from hone.decide.estimators.intervals import standard_error
from hone.decide.estimators.reward_models import RewardModelSettings, ridge_coefficients, ridge_sums
from hone.decide.estimators.rules import (
    VerdictReason,
    WeightSummary,
    drift_reasons,
    support_reasons,
    weight_reasons,
    worst_verdict,
)
from hone.decide.estimators.terms import EstimatorTerms

BUCKETS = 4096
STREAMED: tuple[EstimatorName, ...] = ("ips", "snips", "clipped", "dm", "dr", "sndr", "switch")
"""Estimators whose rows need no fit of their own."""


@dataclass
class StreamedRewardModel:
    """Cross-fitted ridge model of a stream; a bucket's fold is its number modulo the folds."""

    actions: int
    settings: RewardModelSettings
    grams: Floats = field(default_factory=lambda: np.zeros(0))
    sides: Floats = field(default_factory=lambda: np.zeros(0))
    coefficients: Floats = field(default_factory=lambda: np.zeros(0))

    def observe(self, logged: LoggedFeedback) -> None:
        """Add rows to the sums; `logged.unit` holds buckets."""
        fold = logged.unit % self.settings.folds
        weight = np.ones(len(logged))
        grams, sides = ridge_sums(_with_constant(logged), logged, weight, fold, self.settings.folds, self.actions)
        self.grams = self.grams + grams if self.grams.size else grams
        self.sides = self.sides + sides if self.sides.size else sides

    def fit(self) -> None:
        """Solve for every fold's coefficients."""
        self.coefficients = ridge_coefficients(self.grams, self.sides, self.settings.penalty)

    def predict(self, logged: LoggedFeedback) -> Floats:
        """Predicted rewards `[n, K]`, each row by the model of the other folds."""
        fold, features = logged.unit % self.settings.folds, _with_constant(logged)
        predicted = np.empty((len(logged), self.actions))
        for number in range(self.settings.folds):
            held = np.flatnonzero(fold == number)
            predicted[held] = features[held] @ self.coefficients[number].T
        return predicted


@dataclass
class StreamedEstimates:
    """Sums of a stream, from which estimates are made at its end."""

    names: Sequence[EstimatorName]
    rows: int
    """Rows of the whole stream, for the bound of clipped weights."""
    settings: EstimateSettings
    counts: Floats = field(default_factory=lambda: np.zeros((2, BUCKETS)))
    """Rows by half of the log and bucket."""
    sums: dict[EstimatorName, Floats] = field(default_factory=dict[EstimatorName, Floats])
    """`[2, B, 3]`: base, numerator and denominator."""
    weights: Floats = field(default_factory=lambda: np.zeros(BUCKETS))
    squares: float = 0.0
    largest: float = 0.0

    def __post_init__(self) -> None:
        other = [name for name in self.names if name not in STREAMED]
        if other or self.settings.interval != "normal" or self.settings.model.kind != "ridge":
            raise ConfigError(
                f"a stream has the estimators {', '.join(STREAMED)}, normal intervals and the reward model ridge; got "
                f"{', '.join(self.names)}, {self.settings.interval}, {self.settings.model.kind}"
            )
        self.sums = {name: np.zeros((2, BUCKETS, 3)) for name in self.names}

    def add(self, logged: LoggedFeedback, predicted: Floats, late: Bools) -> None:
        """Add rows; `logged.unit` holds buckets, `late` `[n]` the rows of the log's second half."""
        place = np.where(late, BUCKETS, 0) + logged.unit
        weight = logged.weight
        self.counts += np.bincount(place, minlength=2 * BUCKETS).reshape(2, BUCKETS)
        self.weights += np.bincount(logged.unit, weights=weight, minlength=BUCKETS)
        self.squares += float((weight**2).sum())
        self.largest = max(self.largest, float(weight.max(initial=0.0)))
        bound = self.settings.max_weight or math.sqrt(self.rows)
        for name, total in self.sums.items():
            terms = terms_of(name, logged, predicted, bound)
            for column, values in enumerate((terms.base, terms.numerator[:, 0], terms.denominator[:, 0])):
                total[:, :, column] += np.bincount(place, weights=values, minlength=2 * BUCKETS).reshape(2, BUCKETS)

    def estimates(self, *, log_reasons: Sequence[VerdictReason] = ()) -> dict[EstimatorName, OffPolicyEstimate]:
        """Estimates of everything that was added. Raises ValueError of nothing."""
        n = int(self.counts.sum())
        if not n:
            raise ValueError("no rows to estimate from")
        weights = _bucket_terms(self.counts.sum(axis=0), np.zeros(BUCKETS), self.weights, self.counts.sum(axis=0))
        mean, error = weights.value, standard_error(weights.influence, np.arange(len(weights.base)))
        rules, total = self.settings.rules, float(self.weights.sum())
        missing = 1 - mean
        lost = missing if missing > rules.support_deviations * error else 0.0
        where = f"about {lost:.1%} of the target's choices have no support in the log"
        summary = WeightSummary(
            n=n, mean=mean, error=error, ess=total**2 / self.squares if self.squares else 0.0, largest=self.largest
        )
        common = [*log_reasons, *support_reasons(lost, where, rules), *weight_reasons(summary, rules)]
        return {name: self._estimate(name, summary, 1 - lost, common) for name in self.names}

    def _estimate(
        self, name: EstimatorName, summary: WeightSummary, overlap: float, common: Sequence[VerdictReason]
    ) -> OffPolicyEstimate:
        sums = self.sums[name]
        whole = _value_and_error(self.counts.sum(axis=0), sums.sum(axis=0))
        halves = [_value_and_error(self.counts[half], sums[half]) for half in (0, 1)]
        reasons = [*common, *model_reasons(name)]
        if all(math.isfinite(error) for _, error in halves):
            spread = math.hypot(*(error for _, error in halves))
            reasons += drift_reasons(halves[0][0], halves[1][0], spread, self.settings.rules)
        value, error = whole
        half_width = NormalDist().inv_cdf(0.5 + self.settings.level / 2) * error
        return OffPolicyEstimate(
            estimator=name, value=value, low=value - half_width, high=value + half_width, standard_error=error,
            level=self.settings.level, interval="normal", n=summary.n, units=int((self.counts.sum(axis=0) > 0).sum()),
            ess=summary.ess, largest_weight=summary.largest, overlap=overlap, assumptions=assumptions_of(name),
            verdict=worst_verdict(reasons), reasons=tuple(reasons),
        )  # fmt: skip


def _bucket_terms(counts: Floats, base: Floats, numerator: Floats, denominator: Floats) -> EstimatorTerms:
    """Terms with one row for each bucket that has rows, from sums `[B]`; the mean of the base becomes a ratio too."""
    there = counts > 0
    return EstimatorTerms(
        base=np.zeros(int(there.sum())),
        numerator=np.stack([base[there], numerator[there]], axis=1),
        denominator=np.stack([counts[there], denominator[there]], axis=1),
    )


def _value_and_error(counts: Floats, sums: Floats) -> tuple[float, float]:
    if not counts.any():
        return math.nan, math.inf
    terms = _bucket_terms(counts, sums[:, 0], sums[:, 1], sums[:, 2])
    return terms.value, standard_error(terms.influence, np.arange(len(terms.base)))


def _with_constant(logged: LoggedFeedback) -> Floats:
    return np.column_stack([np.ones(len(logged)), logged.contexts])
