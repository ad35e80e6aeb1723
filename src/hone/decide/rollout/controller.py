"""State machine of a staged rollout: pure, with time and evidence as arguments.

    candidate -> shadow -> 1% -> 5% -> 25% -> 50% -> 100%        each of them -> rolled_back

`next_transition` decides, `apply_transition` does; between the two a driver writes the transition, with its evidence,
into the journal. The whole state is in the journal's last entry, so a restart continues with the same state.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from hone.core.decisions import Evidence, VersionStage
from hone.decide.rollout.evidence import ExposureBatch, RolloutEvidence, effects, no_evidence, observe, worst_kind
from hone.decide.rollout.plan import RolloutPlan
from hone.decide.rollout.router import RolloutSlice

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


def look(plan: RolloutPlan, state: RolloutState, batch: ExposureBatch, until_s: float, position: int) -> RolloutState:
    """State after a look at the decisions up to the time `until_s` and the log's `position`."""
    return replace(
        state,
        evidence=observe(plan, state.evidence, batch),
        in_stage=state.in_stage + batch.in_stage,
        until_s=max(state.until_s, until_s),
        position=position,
    )


def next_transition(plan: RolloutPlan, state: RolloutState, at_s: float) -> StageTransition | None:
    """The transition that the evidence asks for, if any: first every reason to go back, then the next stage."""
    if state.finished:
        return None
    alarm = _alarm(plan, state.evidence)
    if alarm is not None:
        return back(state, at_s, *alarm)
    if state.in_stage < plan.units_needed(state.stage):
        return None
    after = plan.ladder[plan.ladder.index(state.stage) + 1]
    cause: TransitionCause = "start" if state.stage == "candidate" else "evidence"
    return StageTransition(
        before=state.stage, after=after, at_s=at_s, cause=cause, words=_onward(plan, state), seen=state.in_stage
    )


def back(state: RolloutState, at_s: float, cause: TransitionCause, words: str) -> StageTransition:
    """The transition back to the live version."""
    return StageTransition(
        before=state.stage, after=ROLLED_BACK, at_s=at_s, cause=cause, words=words, seen=state.in_stage
    )


def apply_transition(state: RolloutState, transition: StageTransition) -> RolloutState:
    """State after a transition; the evidence goes on, as alpha is spent once for all stages."""
    return replace(state, stage=transition.after, since_s=transition.at_s, in_stage=0)


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
        kind = worst_kind(plan, evidence)
        one = next(one for one in effects(plan, evidence) if one.kind == kind)
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


def rollout_slice(plan: RolloutPlan, state: RolloutState) -> RolloutSlice | None:
    """The rollout's slice of the layer; None: it assigns no unit."""
    if state.finished or state.stage == "candidate":
        return None
    return RolloutSlice(
        rollout=plan.name,
        version=plan.version,
        stage=state.stage,
        share=plan.share(state.stage),
        first=plan.first,
        last=plan.last,
        shadow=state.stage == "shadow",
    )


def evidence_row(plan: RolloutPlan, state: RolloutState, at_s: float) -> Evidence:
    """Judgement of the version by its rollout, as a row of the registry."""
    kind = worst_kind(plan, state.evidence)
    one = next(one for one in effects(plan, state.evidence) if one.kind == kind)
    alarm = _alarm(plan, state.evidence)
    verdict = "ok" if state.stage == "100%" else "weak" if alarm is None else "refuse"
    words = alarm[1] if alarm else f"{state.stage}: no guardrail is worse in {one.count:,} units"
    return Evidence(
        kind="rollout", verdict=verdict, words=words, value=one.effect, low=one.low, high=one.high, count=one.count,
        made_by=f"rollout {plan.name}", at_s=at_s,
    )  # fmt: skip
