"""Evidence of a rollout: e-processes of its guardrails, the sample ratio, and intervals for display.

Pure: a batch of exposed units in, the next evidence out. One e-process a guardrail runs through all stages, so that
alpha is spent once; their mean is an e-process again, however the outcomes depend on each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hone.decide.estimators.sequential.confidence_sequences import (
    AsymptoticSequence,
    BernsteinSequence,
    SequenceInterval,
)
from hone.decide.estimators.sequential.e_process import MixtureProcess, log_mean_exp
from hone.decide.estimators.sequential.matched_arms import MatchedArms, effects_from_scores
from hone.decide.estimators.sequential.sample_ratio import SampleRatio
from hone.decide.rollout.plan import RolloutGuardrail, RolloutPlan

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposureBatch:
    """Units that are new to a rollout, in the order of their decisions, with their outcomes."""

    is_new: Bools
    """`[n]` the unit is served by the new version."""
    values: Floats
    """`[n, G]` outcomes of each guardrail; NaN: missing, nothing is staked on it."""
    both_arms: int = 0
    """Units of this look that had been in the other arm before."""
    in_stage: int = 0
    """Units that were exposed in the present stage."""

    def __len__(self) -> int:
        return len(self.is_new)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailEvidence:
    """Evidence about one outcome."""

    arms: MatchedArms
    process: MixtureProcess = field(default_factory=MixtureProcess)
    effect: AsymptoticSequence = field(default_factory=AsymptoticSequence)
    """Asymptotic confidence sequence of the effect, in parts of the range; positive: the new version is better."""
    bounded: BernsteinSequence = field(default_factory=BernsteinSequence)
    """Empirical Bernstein sequence of the scores, scaled into [0, 1]."""
    clipped: int = 0
    """Values beyond their bounds."""
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutEvidence:
    """Evidence of a rollout after some exposed units. Immutable: `observe` returns the next one."""

    guardrails: tuple[GuardrailEvidence, ...]
    ratio: SampleRatio = field(default_factory=SampleRatio)
    peak: float = 0.0
    """nats: largest log e-value of the guardrails together, at any unit."""
    ratio_peak: float = 0.0
    """nats: largest log e-value of the sample ratio."""
    both_arms: int = 0

    @property
    def count(self) -> int:
        """Exposed units, both arms together."""
        return sum(self.ratio.counts)

    @property
    def log_e(self) -> float:
        """nats: e-value of the guardrails together, now."""
        return float(log_mean_exp(np.array([one.process.log_e for one in self.guardrails])))


def no_evidence(plan: RolloutPlan) -> RolloutEvidence:
    """Evidence before the first unit."""
    arms = [MatchedArms(tolerance=one.relative_tolerance) for one in plan.guardrails]
    return RolloutEvidence(guardrails=tuple(GuardrailEvidence(arms=one) for one in arms))


def observe(plan: RolloutPlan, evidence: RolloutEvidence, batch: ExposureBatch) -> RolloutEvidence:
    """Evidence after a batch; every unit of it is a look."""
    counted = replace(evidence, both_arms=evidence.both_arms + batch.both_arms)
    if not len(batch):
        return counted
    ratio, ratio_path = evidence.ratio.advance(batch.is_new.astype(np.int64))
    following: list[GuardrailEvidence] = []
    paths: list[Floats] = []
    for column, (guardrail, before) in enumerate(zip(plan.guardrails, evidence.guardrails, strict=True)):
        after, path = _advance(guardrail, before, batch.values[:, column], batch.is_new)
        following.append(after)
        paths.append(path)
    shared = log_mean_exp(np.stack(paths, axis=-1))
    return replace(
        counted,
        guardrails=tuple(following),
        ratio=ratio,
        peak=max(evidence.peak, float(shared.max())),
        ratio_peak=max(evidence.ratio_peak, float(ratio_path.max())),
    )


def _advance(
    guardrail: RolloutGuardrail, before: GuardrailEvidence, given: Floats, is_new: Bools
) -> tuple[GuardrailEvidence, Floats]:
    """Evidence of one outcome after a batch, and its log e after each unit `[n]`; a missing value changes nothing."""
    known = np.isfinite(given)
    raw = (given[known] - guardrail.low) / (guardrail.high - guardrail.low)
    values = np.clip(raw if guardrail.higher_is_better else 1 - raw, 0.0, 1.0)
    arms, scores = before.arms.advance(values, is_new[known])
    process, path = before.process.advance(scores)
    everywhere = np.concatenate([[before.process.log_e], path])[np.cumsum(known)]
    after = GuardrailEvidence(
        arms=arms,
        process=process,
        effect=before.effect.advance(effects_from_scores(scores, before.arms.tolerance)),
        bounded=before.bounded.advance((1 + scores) / 2),
        clipped=before.clipped + int(((raw < 0) | (raw > 1)).sum()),
        missing=before.missing + int((~known).sum()),
    )
    return after, everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectReport:
    """Effect of the new version on one outcome, in units of the value; positive: the new mean is larger."""

    kind: str
    new_mean: float
    control_mean: float
    effect: float
    low: float
    high: float
    """Asymptotic confidence sequence."""
    bounded_low: float
    bounded_high: float
    """Empirical Bernstein sequence, which holds at any number of units."""
    log_e: float
    count: int
    clipped: int
    missing: int


def effects(plan: RolloutPlan, evidence: RolloutEvidence) -> tuple[EffectReport, ...]:
    """Effects on the guardrails' outcomes, for display."""
    return tuple(_effect(*pair) for pair in zip(plan.guardrails, evidence.guardrails, strict=True))


def _effect(guardrail: RolloutGuardrail, one: GuardrailEvidence) -> EffectReport:
    width = guardrail.high - guardrail.low
    sign = 1.0 if guardrail.higher_is_better else -1.0
    asymptotic = one.effect.interval()
    scores = one.bounded.interval()
    ends = effects_from_scores(2 * np.array([scores.high, scores.low]) - 1, one.arms.tolerance)
    bounded = SequenceInterval(mean=math.nan, low=max(-1.0, float(ends[0])), high=min(1.0, float(ends[1])))
    low, high = _ordered(sign * width * asymptotic.low, sign * width * asymptotic.high)
    bounded_low, bounded_high = _ordered(sign * width * bounded.low, sign * width * bounded.high)
    return EffectReport(
        kind=guardrail.kind,
        new_mean=_unscaled(guardrail, one.arms.new_mean),
        control_mean=_unscaled(guardrail, one.arms.control_mean),
        effect=sign * width * asymptotic.mean,
        low=low,
        high=high,
        bounded_low=bounded_low,
        bounded_high=bounded_high,
        log_e=one.process.log_e,
        count=one.process.count,
        clipped=one.clipped,
        missing=one.missing,
    )


def _ordered(one: float, other: float) -> tuple[float, float]:
    return min(one, other), max(one, other)


def _unscaled(guardrail: RolloutGuardrail, mean: float) -> float:
    part = mean if guardrail.higher_is_better else 1 - mean
    return guardrail.low + part * (guardrail.high - guardrail.low)


def worst_kind(plan: RolloutPlan, evidence: RolloutEvidence) -> str:
    """Kind of the guardrail with the largest e-value."""
    log_e: Sequence[float] = [one.process.log_e for one in evidence.guardrails]
    return plan.guardrails[int(np.argmax(log_e))].kind
