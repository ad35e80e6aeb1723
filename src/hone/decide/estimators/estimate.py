"""Off-policy estimates: a value with its interval, its diagnostics, its assumptions and a verdict.

Off-policy estimates of a stream of rows, in memory that does not grow: sums by bucket of units.

Units fall into a fixed number of buckets by a hash. A unit is in one bucket as a whole, so that sums by bucket give
standard errors that allow for dependence within a unit, as sums by unit do. The rows are read once, or twice with a
reward model: first its sums are taken, then every row is predicted by the model of the other folds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from hone.core.decisions import Bools, Floats, Ints, Verdict
from hone.core.errors import ConfigError
from hone.decide.estimators import terms as forms
from hone.decide.estimators.reward_models import RewardModelSettings, cross_fitted_rewards
from hone.decide.estimators.rules import (
    RefusalRules,
    VerdictReason,
    WeightSummary,
    worst_verdict,
)
from hone.decide.estimators.terms import (
    DRAWS,
    EstimatorTerms,
    IntervalKind,
    LoggedFeedback,
    ValueInterval,
    bernstein_interval,
    bootstrap_interval,
    effective_sample_size,
    normal_interval,
    standard_error,
)

# ------------------------------------------------------------------------------------------------------------- estimate


EstimatorName = Literal["ips", "snips", "clipped", "dm", "dr", "sndr", "switch", "mrdr"]
ESTIMATORS: tuple[EstimatorName, ...] = ("ips", "snips", "clipped", "dm", "dr", "sndr", "switch", "mrdr")
MODEL_BASED = frozenset({"dm", "dr", "sndr", "switch", "mrdr"})
"""Estimators that need a model of the reward."""
SELF_NORMALISED = frozenset({"snips", "sndr"})

SUPPORT_ASSUMPTION = "the log's policy takes every action that the target takes, and its logged probabilities are right"
UNITS_ASSUMPTION = "units are independent of each other, and answer the target as they answered the log's policy"
MODEL_ASSUMPTION = "the reward model is right wherever the target's actions were not logged"


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateSettings:
    """How values are estimated."""

    level: float = 0.95
    """Probability with which an interval holds the true value."""
    interval: IntervalKind = "normal"
    max_weight: float = 0.0
    """Bound M of `clipped` and `switch`; 0: the square root of the number of rows (Ionides, 2008)."""
    model: RewardModelSettings = field(default_factory=RewardModelSettings)
    rules: RefusalRules = field(default_factory=RefusalRules)
    reward_range: tuple[float, float] | None = None
    """Least and largest possible reward, for `bernstein`; None: those of the log."""
    weight_bound: float = 0.0
    """Largest possible weight, for `bernstein`; 0: the largest of the log."""
    draws: int = DRAWS
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTail:
    """Tail of the importance weights."""

    median: float
    q90: float
    q99: float
    largest: float
    top_share: float
    """Share of the largest 1% of the rows in all weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyEstimate:
    """Estimated value of a policy that did not write the log."""

    estimator: str
    """`ips` to `mrdr`; `mean` is the mean reward of the log itself."""
    value: float
    low: float
    high: float
    standard_error: float
    level: float
    interval: IntervalKind
    n: int
    """Rows."""
    units: int
    ess: float
    """Effective sample size."""
    largest_weight: float
    overlap: float
    """Share of the target's choices that the log can show; 1: full support."""
    assumptions: tuple[str, ...]
    verdict: Verdict
    reasons: tuple[VerdictReason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedTerms:
    """An estimate with the contributions of its rows, for comparisons of policies on the same rows."""

    estimate: OffPolicyEstimate
    terms: EstimatorTerms
    influence: Floats
    """`[n]`."""

    def paired_difference(
        self, second: "EstimatedTerms", unit: Ints, *, level: float, rules: RefusalRules | None = None
    ) -> OffPolicyEstimate:
        """Estimate of `second` - `self` on the same rows, by unit: rows that both count the same way cancel.

        Its verdict is the worst one of the two and of its own tail.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            difference = second.influence - self.influence
            rounding = 1e-12 * np.maximum(np.abs(second.influence), np.abs(self.influence))
            difference = np.where(np.abs(difference) <= rounding, 0.0, difference)
            error, interval = standard_error(difference, unit), normal_interval(difference, unit, level=level)
            tails = (rules or RefusalRules()).tails(difference, unit)
        reasons = tuple(dict.fromkeys((*self.estimate.reasons, *second.estimate.reasons, *tails)))
        return replace(
            second.estimate,
            value=float(difference.mean()),
            low=interval.low,
            high=interval.high,
            standard_error=error,
            interval="normal",
            ess=min(self.estimate.ess, second.estimate.ess),
            largest_weight=max(self.estimate.largest_weight, second.estimate.largest_weight),
            overlap=min(self.estimate.overlap, second.estimate.overlap),
            verdict=worst_verdict(reasons),
            reasons=reasons,
        )


def _assumptions_of(name: EstimatorName) -> tuple[str, ...]:
    """Assumptions that an estimator stands on."""
    return (MODEL_ASSUMPTION if name == "dm" else SUPPORT_ASSUMPTION, UNITS_ASSUMPTION)


def _bounded(settings: EstimateSettings) -> bool:
    """True for an empirical Bernstein bound of a known range: it holds whatever the tail is."""
    return settings.interval == "bernstein" and settings.weight_bound > 0 and settings.reward_range is not None


def _bounds(settings: EstimateSettings) -> tuple[str, ...]:
    """The assumption of an empirical Bernstein bound whose range is taken from the log."""
    known = settings.interval != "bernstein" or _bounded(settings)
    return () if known else ("no weight and no reward can be beyond those of the log",)


def _not_finite(name: str, influence: Floats, figures: tuple[float, float, float, float], units: int) -> VerdictReason:
    """The reason against an estimate that is no finite number with a finite interval."""
    value, low, high, error = figures
    bad = ~np.isfinite(influence)
    if units < 2:
        cause = f"the log has {units} unit, and a standard error needs two"
    elif bad.any():
        cause = f"the contribution of row {int(bad.argmax())} is {influence[int(bad.argmax())]:g}"
    else:
        cause = f"contributions of up to {float(np.abs(influence).max()):.3g} have no variance in floating point"
    words = f"{name} is {value:.3g} ({low:.3g} to {high:.3g}), standard error {error:.3g}: {cause}; look at that row"
    return VerdictReason(rule="not finite", verdict="refuse", words=words)


def _model_reasons(name: EstimatorName) -> list[VerdictReason]:
    """A reason against the direct method alone."""
    words = "it stands on the reward model alone, and its interval knows nothing of the model's error: use dr"
    return [VerdictReason(rule="model", verdict="weak", words=words)] if name == "dm" else []


def weight_tail(weight: Floats) -> WeightTail:
    """Quantiles of weights `[n]`, and the share of the largest 1%."""
    median, q90, q99 = (float(value) for value in np.quantile(weight, [0.5, 0.9, 0.99]))
    top = np.sort(weight)[-max(1, len(weight) // 100) :]
    total = float(weight.sum())
    share = float(top.sum()) / total if total > 0 else 0.0
    return WeightTail(median=median, q90=q90, q99=q99, largest=float(weight.max()), top_share=share)


def estimator_terms(
    logged: LoggedFeedback, names: Sequence[EstimatorName], settings: EstimateSettings
) -> dict[EstimatorName, EstimatorTerms]:
    """Terms of the named estimators; the reward model is fitted once for those that share it."""
    fit = partial(cross_fitted_rewards, logged, settings.model, seed=settings.seed)
    predicted = fit() if (MODEL_BASED - {"mrdr"}) & set(names) else np.zeros((0, 0))
    bound = settings.max_weight or math.sqrt(len(logged))
    made: dict[EstimatorName, EstimatorTerms] = {}
    for name in names:
        own = fit(row_weight=logged.more_robust_weights()) if name == "mrdr" else predicted
        made[name] = _terms_of(name, logged, own, bound)
    return made


def _terms_of(name: EstimatorName, logged: LoggedFeedback, predicted: Floats, max_weight: float) -> EstimatorTerms:
    """Terms of one estimator with predicted rewards `[n, K]`, which estimators without a model do not read."""
    match name:
        case "ips":
            return forms.inverse_propensity(logged)
        case "snips":
            return forms.self_normalised(logged)
        case "clipped":
            return forms.clipped_inverse_propensity(logged, max_weight=max_weight)
        case "dm":
            return forms.direct_method(logged, predicted)
        case "dr" | "mrdr":
            return forms.doubly_robust(logged, predicted)
        case "sndr":
            return forms.self_normalised_doubly_robust(logged, predicted)
        case "switch":
            return forms.switch_doubly_robust(logged, predicted, max_weight=max_weight)


def estimate_values(
    logged: LoggedFeedback,
    names: Sequence[EstimatorName],
    settings: EstimateSettings,
    *,
    log_reasons: Sequence[VerdictReason] = (),
    version: Ints | None = None,
) -> dict[EstimatorName, EstimatedTerms]:
    """Estimates of one target by several estimators. Rows are in the order of time.

    `log_reasons`: those of `RefusalRules.audit_table`. `version` `[n]`: number of the version that decided, to test its
    propensities. Raises DataError where a model cannot be fitted, ValueError without rows or with an interval that the
    estimator does not have.
    """
    if not len(logged):
        raise ValueError("no rows to estimate from")
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by its rule
        reasons, overlap = settings.rules.audit_weights(logged, version=version)
        common = [*log_reasons, *reasons, *settings.rules.rewards(logged.reward)]
        return {
            name: _judged(name, parts, logged, settings, common, overlap)
            for name, parts in estimator_terms(logged, names, settings).items()
        }


def terms_estimate(
    name: EstimatorName, parts: EstimatorTerms, logged: LoggedFeedback, settings: EstimateSettings
) -> EstimatedTerms:
    """Estimate from terms that exist: those of a segment's rows, say. `logged` holds the same rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        reasons, overlap = settings.rules.audit_weights(logged)
        return _judged(name, parts, logged, settings, [*reasons, *settings.rules.rewards(logged.reward)], overlap)


def logged_value(
    reward: Floats, unit: Ints, settings: EstimateSettings, *, log_reasons: Sequence[VerdictReason] = ()
) -> EstimatedTerms:
    """Mean reward `[n]` of the log itself: the value of the policy that wrote it, without any weight."""
    same = LoggedFeedback(
        contexts=np.zeros((len(reward), 0)),
        action=np.zeros(len(reward), np.int64),
        logp=np.zeros(len(reward)),
        reward=reward,
        target_logp=np.zeros((len(reward), 1)),
        unit=unit,
    )
    logged_terms = terms_estimate("ips", forms.inverse_propensity(same), same, settings)
    reasons = (*log_reasons, *logged_terms.estimate.reasons)
    estimate = replace(
        logged_terms.estimate,
        estimator="mean",
        assumptions=(UNITS_ASSUMPTION,),
        reasons=reasons,
        verdict=worst_verdict(reasons),
    )
    return replace(logged_terms, estimate=estimate)


def _judged(
    name: EstimatorName,
    parts: EstimatorTerms,
    logged: LoggedFeedback,
    settings: EstimateSettings,
    reasons: Sequence[VerdictReason],
    overlap: float,
) -> EstimatedTerms:
    own = [*reasons, *_model_reasons(name)]
    if name == "clipped":
        bound = settings.max_weight or math.sqrt(len(logged))
        left_out = float((np.maximum(logged.weight - bound, 0.0) * logged.reward).mean())
        own += settings.rules.clipping(left_out, standard_error(parts.influence, logged.unit))
    rows = EstimateRows(
        unit=logged.unit, weight=logged.weight, overlap=overlap, decisions=len(logged),
        assumptions=(*_assumptions_of(name), *_bounds(settings)),
    )  # fmt: skip
    return judged_terms(name, parts, partial(_interval_of, name, parts, logged, settings), rows, settings, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRows:
    """Rows that an estimate stands on, decisions or episodes, in the order of time."""

    unit: Ints
    """`[n]`."""
    weight: Floats
    """`[n]` importance weights."""
    overlap: float
    decisions: int
    assumptions: tuple[str, ...]


def judged_terms(
    name: str,
    parts: EstimatorTerms,
    make_interval: Callable[[], ValueInterval],
    rows: EstimateRows,
    settings: EstimateSettings,
    reasons: Sequence[VerdictReason],
) -> EstimatedTerms:
    """Estimate with its verdict: the rules on drift, tails and finite figures beside the `reasons` that are known.

    `make_interval` is asked only for finite contributions.
    """
    unit, weight = rows.unit, rows.weight
    influence, own = parts.influence, list(reasons)
    error, finite = standard_error(influence, unit), bool(np.isfinite(influence).all())
    interval = make_interval() if finite else ValueInterval(low=math.nan, high=math.nan)
    figures, units = (parts.value, interval.low, interval.high, error), len(np.unique(unit))
    if finite and all(map(math.isfinite, figures)):
        own += settings.rules.halves(influence, unit)
        own += settings.rules.tails(influence, unit) if not _bounded(settings) else []
    else:
        own.append(_not_finite(name, influence, figures, units))
    estimate = OffPolicyEstimate(
        estimator=name, value=parts.value, low=interval.low, high=interval.high, standard_error=error,
        level=settings.level, interval=settings.interval, n=rows.decisions, units=units,
        ess=effective_sample_size(weight), largest_weight=float(weight.max()), overlap=rows.overlap,
        assumptions=rows.assumptions, verdict=worst_verdict(own), reasons=tuple(own),
    )  # fmt: skip
    return EstimatedTerms(estimate=estimate, terms=parts, influence=influence)


def _interval_of(
    name: EstimatorName, parts: EstimatorTerms, logged: LoggedFeedback, settings: EstimateSettings
) -> ValueInterval:
    """The interval that the settings ask for. Raises ValueError for `bernstein` of a self-normalised estimator."""
    if settings.interval == "bootstrap":
        return bootstrap_interval(parts, logged.unit, level=settings.level, draws=settings.draws, seed=settings.seed)
    if settings.interval == "normal":
        return normal_interval(parts.influence, logged.unit, level=settings.level)
    if name in SELF_NORMALISED:
        raise ValueError(f"{name} is a ratio: the bound of Bernstein holds for sums; use ips, clipped, dr or bootstrap")
    low, high = settings.reward_range or (float(logged.reward.min()), float(logged.reward.max()))
    weight = settings.weight_bound or float(logged.weight.max())
    if name == "clipped":
        weight = min(weight, settings.max_weight or math.sqrt(len(logged)))
    plain_span = weight * (max(high, 0.0) - min(low, 0.0))
    span = (high - low) * (1 + 2 * weight) if name in MODEL_BASED else plain_span
    return bernstein_interval(parts.influence, logged.unit, level=settings.level, span=span)


# ------------------------------------------------------------------------------------------------------------ streaming


BUCKETS = 4096
STREAMED: tuple[EstimatorName, ...] = ("ips", "snips", "clipped", "dm", "dr", "sndr", "switch")
"""Estimators whose rows need no fit of their own."""


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
            terms = _terms_of(name, logged, predicted, bound)
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
        common = [*log_reasons, *rules.support(lost, where), *summary.reasons(rules)]
        return {name: self._estimate(name, summary, 1 - lost, common) for name in self.names}

    def _estimate(
        self, name: EstimatorName, summary: WeightSummary, overlap: float, common: Sequence[VerdictReason]
    ) -> OffPolicyEstimate:
        sums = self.sums[name]
        whole = _value_and_error(self.counts.sum(axis=0), sums.sum(axis=0))
        halves = [_value_and_error(self.counts[half], sums[half]) for half in (0, 1)]
        reasons = [*common, *_model_reasons(name)]
        if all(math.isfinite(error) for _, error in halves):
            spread = math.hypot(*(error for _, error in halves))
            reasons += self.settings.rules.drift(halves[0][0], halves[1][0], spread)
        value, error = whole
        counts, total = self.counts.sum(axis=0), sums.sum(axis=0)
        influence = _bucket_terms(counts, total[:, 0], total[:, 1], total[:, 2]).influence
        buckets = np.arange(len(influence))
        interval = normal_interval(influence, buckets, level=self.settings.level)
        figures = (value, interval.low, interval.high, error)
        if all(map(math.isfinite, figures)):
            reasons += self.settings.rules.tails(influence, buckets)
        else:
            reasons.append(_not_finite(name, influence, figures, len(buckets)))
        return OffPolicyEstimate(
            estimator=name, value=value, low=interval.low, high=interval.high, standard_error=error,
            level=self.settings.level, interval="normal", n=summary.n, units=int((self.counts.sum(axis=0) > 0).sum()),
            ess=summary.ess, largest_weight=summary.largest, overlap=overlap, assumptions=_assumptions_of(name),
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
