"""Off-policy estimates: a value with its interval, its diagnostics, its assumptions and a verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import Literal

import numpy as np

from hone.core.decisions import Floats, Ints, Verdict
from hone.decide.estimators import terms as forms
from hone.decide.estimators.feedback import LoggedFeedback, effective_sample_size
from hone.decide.estimators.intervals import (
    DRAWS,
    IntervalKind,
    ValueInterval,
    bernstein_interval,
    bootstrap_interval,
    normal_interval,
    standard_error,
)
from hone.decide.estimators.reward_models import RewardModelSettings, cross_fitted_rewards
from hone.decide.estimators.rules import (
    RefusalRules,
    VerdictReason,
    audit_halves,
    audit_rewards,
    audit_weights,
    worst_verdict,
)
from hone.decide.estimators.terms import EstimatorTerms

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


def assumptions_of(name: EstimatorName) -> tuple[str, ...]:
    """Assumptions that an estimator stands on."""
    return (MODEL_ASSUMPTION if name == "dm" else SUPPORT_ASSUMPTION, UNITS_ASSUMPTION)


def _bounds(settings: EstimateSettings) -> tuple[str, ...]:
    """The assumption of an empirical Bernstein bound whose range is taken from the log."""
    known = settings.interval != "bernstein" or (settings.weight_bound > 0 and settings.reward_range is not None)
    return () if known else ("no weight and no reward can be beyond those of the log",)


def model_reasons(name: EstimatorName) -> list[VerdictReason]:
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
        own = fit(row_weight=forms.more_robust_weights(logged)) if name == "mrdr" else predicted
        made[name] = terms_of(name, logged, own, bound)
    return made


def terms_of(name: EstimatorName, logged: LoggedFeedback, predicted: Floats, max_weight: float) -> EstimatorTerms:
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

    `log_reasons`: those of `audit_table`. `version` `[n]`: number of the version that decided, to test its
    propensities. Raises DataError where a model cannot be fitted, ValueError without rows or with an interval that the
    estimator does not have.
    """
    if not len(logged):
        raise ValueError("no rows to estimate from")
    reasons, overlap = audit_weights(logged, settings.rules, version=version)
    common = [*log_reasons, *reasons, *audit_rewards(logged.reward, settings.rules)]
    return {
        name: _judged(name, parts, logged, settings, common, overlap)
        for name, parts in estimator_terms(logged, names, settings).items()
    }


def terms_estimate(
    name: EstimatorName, parts: EstimatorTerms, logged: LoggedFeedback, settings: EstimateSettings
) -> EstimatedTerms:
    """Estimate from terms that exist: those of a segment's rows, say. `logged` holds the same rows."""
    reasons, overlap = audit_weights(logged, settings.rules)
    return _judged(name, parts, logged, settings, [*reasons, *audit_rewards(logged.reward, settings.rules)], overlap)


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
    found = terms_estimate("ips", forms.inverse_propensity(same), same, settings)
    reasons = (*log_reasons, *found.estimate.reasons)
    estimate = replace(
        found.estimate,
        estimator="mean",
        assumptions=(UNITS_ASSUMPTION,),
        reasons=reasons,
        verdict=worst_verdict(reasons),
    )
    return replace(found, estimate=estimate)


def _judged(
    name: EstimatorName,
    parts: EstimatorTerms,
    logged: LoggedFeedback,
    settings: EstimateSettings,
    reasons: Sequence[VerdictReason],
    overlap: float,
) -> EstimatedTerms:
    influence, own = parts.influence, list(reasons)
    if np.isfinite(influence).all():
        own += audit_halves(influence, logged.unit, settings.rules)
    own += model_reasons(name)
    interval = _interval_of(name, parts, logged, settings)
    weight = logged.weight
    estimate = OffPolicyEstimate(
        estimator=name,
        value=parts.value,
        low=interval.low,
        high=interval.high,
        standard_error=standard_error(influence, logged.unit),
        level=settings.level,
        interval=settings.interval,
        n=len(logged),
        units=len(np.unique(logged.unit)),
        ess=effective_sample_size(weight),
        largest_weight=float(weight.max()),
        overlap=overlap,
        assumptions=(*assumptions_of(name), *_bounds(settings)),
        verdict=worst_verdict(own),
        reasons=tuple(own),
    )
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


def paired_difference_of(
    first: EstimatedTerms, second: EstimatedTerms, unit: Ints, *, level: float
) -> OffPolicyEstimate:
    """Estimate of `second` - `first` on the same rows, by unit: rows that both count the same way cancel.

    Its verdict is the worse one of the two.
    """
    difference = second.influence - first.influence
    error = standard_error(difference, unit)
    half = NormalDist().inv_cdf(0.5 + level / 2) * error
    centre = float(difference.mean())
    reasons = tuple(dict.fromkeys((*first.estimate.reasons, *second.estimate.reasons)))
    return replace(
        second.estimate,
        value=centre,
        low=centre - half,
        high=centre + half,
        standard_error=error,
        interval="normal",
        ess=min(first.estimate.ess, second.estimate.ess),
        largest_weight=max(first.estimate.largest_weight, second.estimate.largest_weight),
        overlap=min(first.estimate.overlap, second.estimate.overlap),
        verdict=worst_verdict(reasons),
        reasons=reasons,
    )
