"""A rollout as it went: its rungs, the evidence at every look, and the judgement in words. Read from the journal."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import cast

from hone.core.strict_json import Json
from hone.decide.registry.registry import VersionRegistry
from hone.decide.rollout.controller import ROLLED_BACK, RolloutState, StageTransition
from hone.decide.rollout.driver import RecordedRollout, read_rollout
from hone.decide.rollout.evidence import EffectReport, effects
from hone.decide.rollout.plan import RolloutPlan
from hone.decide.rollout.records import state_from_json, transition_from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLook:
    """Evidence at one entry of the journal."""

    at_s: float
    stage: str
    units: int
    """Exposed units, both arms together."""
    log_e: float
    """nats: the guardrails together, now."""
    peak: float
    """nats: their largest value so far."""
    effects: tuple[EffectReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRung:
    """One stage of a rollout."""

    stage: str
    needed: int
    """Units, or requests of the shadow, after which it has done its part."""
    seen: int
    begun_s: float | None
    """None: not reached."""
    left: StageTransition | None
    """The transition that ended it; None: not ended."""
    log_e: float
    """nats: e-value at its end, or now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHistory:
    """A rollout with everything that its journal tells."""

    plan: RolloutPlan
    state: RolloutState
    begun_s: float
    rungs: tuple[LadderRung, ...]
    looks: tuple[RolloutLook, ...]
    transitions: tuple[StageTransition, ...]

    @property
    def words(self) -> str:
        """The judgement in one sentence."""
        name = f"rollout {self.plan.name} of version {self.plan.version}"
        if self.state.stage == ROLLED_BACK:
            last = self.transitions[-1]
            return f"{name} went back to {self.plan.control or 'the service'} at {last.before}: {last.words}"
        if self.state.stage == "100%":
            return f"{name} reached 100%: the version is live"
        needed = self.plan.units_needed(self.state.stage)
        what = "requests scored" if self.state.stage == "shadow" else "units exposed"
        return f"{name} is at {self.state.stage}, {self.state.in_stage:,} of {needed:,} {what}; no alarm"


def read_history(registry: VersionRegistry, service: str, name: str) -> RolloutHistory:
    """Read a rollout's journal. Raises DataError for an unknown rollout or a damaged journal."""
    recorded = read_rollout(registry, service, name)
    entries = registry.entries(service, name)
    where = f"the journal of rollout {name!r} of service {service!r}"
    states = [state_from_json(entry, where) for entry in entries]
    found = [transition_from_json(entry) for entry in entries]
    looks = [
        _look(recorded.plan, state, cast("float", entry["at_s"])) for state, entry in zip(states, entries, strict=True)
    ]
    transitions = tuple(one for one in found if one is not None)
    return RolloutHistory(
        plan=recorded.plan,
        state=recorded.state,
        begun_s=recorded.begun_s,
        rungs=_rungs(recorded, looks, transitions),
        looks=tuple(looks),
        transitions=transitions,
    )


def _look(plan: RolloutPlan, state: RolloutState, at_s: float) -> RolloutLook:
    evidence = state.evidence
    return RolloutLook(
        at_s=at_s, stage=state.stage, units=evidence.count, log_e=evidence.log_e, peak=evidence.peak,
        effects=effects(plan, evidence),
    )  # fmt: skip


def _rungs(
    recorded: RecordedRollout, looks: Sequence[RolloutLook], transitions: Sequence[StageTransition]
) -> tuple[LadderRung, ...]:
    """One rung for each stage of the plan, reached or not."""
    begun = {"candidate": recorded.begun_s} | {one.after: one.at_s for one in transitions}
    left = {one.before: one for one in transitions}
    rungs: list[LadderRung] = []
    for stage in recorded.plan.ladder[1:]:
        inside = [one for one in looks if one.stage == stage]
        # the entry of a transition holds the next stage already, with the evidence of the one that ends
        ends = [two for one, two in pairwise(looks) if one.stage == stage != two.stage]
        last = (ends or inside or looks[:1])[-1]
        seen = left[stage].seen if stage in left else recorded.state.in_stage if stage in begun else 0
        rungs.append(
            LadderRung(
                stage=stage, needed=recorded.plan.units_needed(stage), seen=seen, begun_s=begun.get(stage),
                left=left.get(stage), log_e=last.log_e,
            )
        )  # fmt: skip
    return tuple(rungs)


def history_json(history: RolloutHistory) -> dict[str, Json]:
    """The history as JSON, for programs; null stands for numbers that are not known."""
    table = {
        "words": history.words,
        "plan": asdict(history.plan),
        "stage": history.state.stage,
        "since_s": history.state.since_s,
        "in_stage": history.state.in_stage,
        "units": history.state.evidence.count,
        "both_arms": history.state.evidence.both_arms,
        "e_value": math.exp(min(history.state.evidence.log_e, 700.0)),
        "limit": 1 / history.plan.guardrail_alpha,
        "effects": [asdict(one) for one in history.looks[-1].effects],
        "transitions": [asdict(one) for one in history.transitions],
    }
    return cast("dict[str, Json]", _finite(table))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in cast("dict[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in cast("list[object]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
