"""State machine of a staged rollout: pure, with time and evidence as arguments.

    candidate -> shadow -> 1% -> 5% -> 25% -> 50% -> 100%        each of them -> rolled_back

`next_transition` decides, `RolloutState.after` does; between the two a driver writes the transition, with its evidence,
into the journal. The whole state is in the journal's last entry, so a restart continues with the same state.

Evidence of a rollout: e-processes of its guardrails, the sample ratio, and intervals for display.

Pure: a batch of exposed units in, the next evidence out. One e-process a guardrail runs through all stages, so that
alpha is spent once; their mean is an e-process again, however the outcomes depend on each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import Evidence, VersionStage
from hone.decide.estimators.sequential import (
    AsymptoticSequence,
    BernsteinSequence,
    DeadlineBet,
    MatchedArms,
    MixtureProcess,
    SampleRatio,
    SequenceInterval,
    effects_from_scores,
    log_mean_exp,
)
from hone.decide.rollout.plan import RolloutGuardrail, RolloutPlan
from hone.decide.rollout.router import ExposureBatch, RolloutSlice

# ------------------------------------------------------------------------------------------------------------- evidence


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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

    def effects(self, plan: RolloutPlan) -> "tuple[EffectReport, ...]":
        """Effects on the guardrails' outcomes, for display."""
        return tuple(_effect(*pair) for pair in zip(plan.guardrails, self.guardrails, strict=True))

    def observe(self, plan: RolloutPlan, batch: ExposureBatch) -> "RolloutEvidence":
        """Evidence after a batch; every unit of it is a look."""
        counted = replace(self, both_arms=self.both_arms + batch.both_arms)
        if not len(batch):
            return counted
        ratio, ratio_path = self.ratio.advance(batch.is_new.astype(np.int64))
        following: list[GuardrailEvidence] = []
        paths: list[Floats] = []
        for column, (guardrail, before) in enumerate(zip(plan.guardrails, self.guardrails, strict=True)):
            after, path = _advance(guardrail, before, batch, batch.values[:, column])
            following.append(after)
            paths.append(path)
        shared = log_mean_exp(np.stack(paths, axis=-1))
        return replace(
            counted,
            guardrails=tuple(following),
            ratio=ratio,
            peak=max(self.peak, float(shared.max())),
            ratio_peak=max(self.ratio_peak, float(ratio_path.max())),
        )


def no_evidence(plan: RolloutPlan) -> RolloutEvidence:
    """Evidence before the first unit; the deadline of its e-processes is the end of the last stage."""
    bet = DeadlineBet(horizon=plan.exposures, level=plan.guardrail_alpha / len(plan.guardrails))
    arms = [MatchedArms(tolerance=one.relative_tolerance) for one in plan.guardrails]
    return RolloutEvidence(
        guardrails=tuple(GuardrailEvidence(arms=one, process=MixtureProcess(deadline=bet)) for one in arms)
    )


def _advance(
    guardrail: RolloutGuardrail, before: GuardrailEvidence, batch: ExposureBatch, given: Floats
) -> tuple[GuardrailEvidence, Floats]:
    """Evidence of one outcome after a batch, and its log e after each unit `[n]`; nothing is staked on a missing value,
    and the unit counts towards the deadline."""
    known = np.isfinite(given)
    raw = (given[known] - guardrail.low) / (guardrail.high - guardrail.low)
    values = np.clip(raw if guardrail.higher_is_better else 1 - raw, 0.0, 1.0)
    covariates = None if batch.covariates is None else batch.covariates[known]
    arms, scores = before.arms.advance(values, batch.is_new[known], covariates)
    all_scores = np.zeros(len(given))
    all_scores[known] = scores
    process, path = before.process.advance(all_scores)
    after = GuardrailEvidence(
        arms=arms,
        process=process,
        effect=before.effect.advance(effects_from_scores(scores, before.arms.tolerance)),
        bounded=before.bounded.advance((1 + scores) / 2),
        clipped=before.clipped + int(((raw < 0) | (raw > 1)).sum()),
        missing=before.missing + int((~known).sum()),
    )
    return after, path


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
        count=one.arms.count,
        clipped=one.clipped,
        missing=one.missing,
    )


def _ordered(one: float, other: float) -> tuple[float, float]:
    return min(one, other), max(one, other)


def _unscaled(guardrail: RolloutGuardrail, mean: float) -> float:
    part = mean if guardrail.higher_is_better else 1 - mean
    return guardrail.low + part * (guardrail.high - guardrail.low)


def _worst_kind(plan: RolloutPlan, evidence: RolloutEvidence) -> str:
    """Kind of the guardrail with the largest e-value."""
    log_e: Sequence[float] = [one.process.log_e for one in evidence.guardrails]
    return plan.guardrails[int(np.argmax(log_e))].kind


# ----------------------------------------------------------------------------------------------------------- controller


ROLLED_BACK: Final = "rolled_back"
BOTH_ARMS_SHARE: Final = 0.01
"""Share of units seen in both arms above which assignment is broken and the rollout stops."""
TransitionCause = Literal[
    "start", "evidence", "guardrail", "sample_ratio", "both_arms", "control_changed", "shadow", "person"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """State of a rollout."""

    stage: str = "candidate"
    since_s: float = 0.0
    """Time of the last transition."""
    in_stage: int = 0
    """Units that were exposed in this stage, or scored in the shadow."""
    until_s: float = -math.inf
    """Decisions up to this time have been looked at,"""
    position: int = 0
    """as far as they stand up to this position in the decision log."""
    evidence: RolloutEvidence

    @property
    def finished(self) -> bool:
        """True at 100% and after a rollback."""
        return self.stage in ("100%", ROLLED_BACK)

    def back(self, at_s: float, cause: TransitionCause, words: str) -> "StageTransition":
        """The transition back to the live version."""
        return StageTransition(
            before=self.stage, after=ROLLED_BACK, at_s=at_s, cause=cause, words=words, seen=self.in_stage
        )

    def after(self, transition: "StageTransition") -> "RolloutState":
        """State after a transition; the evidence goes on, as alpha is spent once for all stages."""
        return replace(self, stage=transition.after, since_s=transition.at_s, in_stage=0)

    def look(self, plan: RolloutPlan, batch: ExposureBatch, until_s: float, position: int) -> "RolloutState":
        """State after a look at the decisions up to the time `until_s` and the log's `position`."""
        return replace(
            self,
            evidence=self.evidence.observe(plan, batch),
            in_stage=self.in_stage + batch.in_stage,
            until_s=max(self.until_s, until_s),
            position=position,
        )

    def next_transition(self, plan: RolloutPlan, at_s: float) -> "StageTransition | None":
        """The transition that the evidence asks for, if any: first every reason to go back, then the next stage."""
        if self.finished:
            return None
        alarm = _alarm(plan, self.evidence)
        if alarm is not None:
            return self.back(at_s, *alarm)
        if self.in_stage < plan.units_needed(self.stage):
            return None
        after = plan.ladder[plan.ladder.index(self.stage) + 1]
        cause: TransitionCause = "start" if self.stage == "candidate" else "evidence"
        return StageTransition(
            before=self.stage, after=after, at_s=at_s, cause=cause, words=_onward(plan, self), seen=self.in_stage
        )

    def slice(self, plan: RolloutPlan) -> RolloutSlice | None:
        """The rollout's slice of the layer; None: it assigns no unit."""
        if self.finished or self.stage == "candidate":
            return None
        return RolloutSlice(
            rollout=plan.name,
            version=plan.version,
            stage=self.stage,
            share=plan.share(self.stage),
            first=plan.first,
            last=plan.last,
            shadow=self.stage == "shadow",
        )

    def evidence_row(self, plan: RolloutPlan, at_s: float) -> Evidence:
        """Judgement of the version by its rollout, as a row of the registry."""
        kind = _worst_kind(plan, self.evidence)
        one = next(one for one in self.evidence.effects(plan) if one.kind == kind)
        alarm = _alarm(plan, self.evidence)
        verdict = "ok" if self.stage == "100%" else "weak" if alarm is None else "refuse"
        words = alarm[1] if alarm else f"{self.stage}: no guardrail is worse in {one.count:,} units"
        return Evidence(
            kind="rollout", verdict=verdict, words=words, value=one.effect, low=one.low, high=one.high, count=one.count,
            made_by=f"rollout {plan.name}", at_s=at_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTransition:
    """Decision to change the stage, with its reason."""

    before: str
    after: str
    at_s: float
    cause: TransitionCause
    words: str
    """The reason in one sentence, with its figures."""
    seen: int = 0
    """Units exposed in the stage that ends, or requests scored in the shadow."""


def begin(plan: RolloutPlan, at_s: float, position: int = 0) -> RolloutState:
    """State before the first stage; records of the log up to `position` do not count."""
    return RolloutState(since_s=at_s, position=position, evidence=no_evidence(plan))


def _alarm(plan: RolloutPlan, evidence: RolloutEvidence) -> tuple[TransitionCause, str] | None:
    if evidence.ratio_peak >= -math.log(plan.ratio_alpha):
        control, new = evidence.ratio.counts
        return "sample_ratio", (
            f"{new:,} units in the canary and {control:,} in the control slice are no equal shares "
            f"(e = {format_e_value(evidence.ratio_peak)}, limit {1 / plan.ratio_alpha:g}): assignment, logging or "
            "joining is broken"
        )
    if evidence.both_arms > max(10, BOTH_ARMS_SHARE * evidence.count):
        return "both_arms", (
            f"{evidence.both_arms:,} of {evidence.count:,} units were seen in both arms: gateways disagree about the "
            "salt, the stages or the units"
        )
    if evidence.peak >= -math.log(plan.guardrail_alpha):
        kind = _worst_kind(plan, evidence)
        one = next(one for one in evidence.effects(plan) if one.kind == kind)
        return "guardrail", (
            f"{kind} is worse: {one.new_mean:.4g} against {one.control_mean:.4g} in {one.count:,} units (e = "
            f"{format_e_value(evidence.peak)}, limit {1 / plan.guardrail_alpha:.3g})"
        )
    return None


def _onward(plan: RolloutPlan, state: RolloutState) -> str:
    if state.stage == "candidate":
        return f"version {plan.version} begins beside {plan.control or 'the service'}"
    if state.stage == "shadow":
        return f"{state.in_stage:,} requests scored in the shadow"
    now, largest = format_e_value(state.evidence.log_e), format_e_value(state.evidence.peak)
    return (
        f"{state.in_stage:,} units exposed at {state.stage}, none of the guardrails is worse (e = {now}, largest "
        f"{largest}, limit {1 / plan.guardrail_alpha:.3g})"
    )


def format_e_value(log_e: float) -> str:
    """Format an e-value given in nats: `0.84`, `22.2`, `1,270`, `3.1e+09`."""
    value = math.exp(min(log_e, 700.0))
    return f"{value:,.0f}" if 100 <= value < 1e6 else f"{value:.3g}"


def version_stage(stage: str) -> VersionStage:
    """Stage of the version in the registry while the rollout is in `stage`."""
    named: dict[str, VersionStage] = {
        "candidate": "candidate", "shadow": "shadow", "100%": "live", ROLLED_BACK: "retired",
    }  # fmt: skip
    return named.get(stage, "canary")
