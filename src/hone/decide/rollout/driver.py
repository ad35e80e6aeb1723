"""Driver of rollouts: reads the decision log, asks the controller, writes the journal, and begins and ends rollouts.

Every transition is one transaction of the registry: the entry with its evidence, and the version's move. Gateways read
the journal (`watch`), so a transition acts when it is written, and a driver that is killed has written it or has not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hone.core.clock import Clock
from hone.core.decisions import DecisionPolicy, Evidence
from hone.core.errors import ConfigError, DataError
from hone.decide.joins.config import JoinConfig
from hone.decide.log.protocol import DecisionLog
from hone.decide.registry.moves import StageMove, missing_evidence
from hone.decide.registry.registry import JournalEntry, VersionRegistry
from hone.decide.rollout.controller import (
    RolloutState,
    StageTransition,
    apply_transition,
    back,
    begin,
    evidence_row,
    look,
    next_transition,
    version_stage,
)
from hone.decide.rollout.exposures import ExposureFeed, end_position
from hone.decide.rollout.plan import RolloutPlan
from hone.decide.rollout.records import plan_from_json, plan_to_json, state_entry, state_from_json
from hone.decide.rollout.shadow import KIND, shadow_evidence, shadow_records


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTools:
    """Everything that a driver works with."""

    registry: VersionRegistry
    log: DecisionLog
    clock: Clock
    join: JoinConfig
    slack_s: float = 0.0
    made_by: str = "hone ship"
    open_policy: Callable[[str], DecisionPolicy] | None = None
    """The policy of a version as the service would serve it, which scores shadows; None: they are counted alone."""


@dataclass(slots=True)
class RolloutDriver:
    """One rollout in progress. Made by `start_rollout` or `resume_rollout`; one driver a rollout."""

    tools: RolloutTools
    plan: RolloutPlan
    state: RolloutState
    feed: ExposureFeed
    seq: int
    """Number of the journal's next entry."""
    score: Evidence | None = None
    """Estimate of the version from its shadow, once it is known."""

    def step(self) -> list[StageTransition]:
        """Look at the log once, and make the transitions that the evidence asks for.

        Raises ConfigError if the next stage needs evidence that is missing (the rollout stays where it is), and
        ResourceError if another driver moved the rollout.
        """
        if self.state.finished:
            return []
        before = self.state
        self._look()
        self._score()
        done: list[StageTransition] = []
        while (transition := self._next()) is not None:
            self._write(transition)
            done.append(transition)
        if not done and _noteworthy(before, self.state):
            self._write(None)
        return done

    def behind(self) -> bool:
        """True if somebody else moved the rollout, such as a person who took it back: resume it to go on."""
        ends = self.tools.registry.first_and_last(self.plan.service, self.plan.name)
        return ends is None or ends[2] != self.seq

    def back(self, words: str) -> StageTransition:
        """Send every unit back to the live version. Raises ConfigError for a rollout that has ended."""
        if self.state.finished:
            raise ConfigError(
                f"rollout {self.plan.name} has ended at {self.state.stage}: there is nothing to take back"
            )
        transition = back(self.state, self.tools.clock.now_s(), "person", words)
        self._write(transition)
        return transition

    def _look(self) -> None:
        self.feed.read(self.tools.log)
        closed_s = self.tools.clock.now_s() - self.tools.join.window_s - self.tools.slack_s
        until_s = max(self.state.until_s, closed_s)  # a clock that jumps back opens no window again
        batch = self.feed.due(self.state.stage, until_s)
        self.state = look(self.plan, self.state, batch, until_s, self.feed.position)

    def _score(self) -> None:
        """Score the version by its shadow, once the windows of the shadow's decisions have closed."""
        tools, plan = self.tools, self.plan
        if self.score is not None or tools.open_policy is None or self.feed.scored_at_s > self.state.until_s:
            return
        made_by = f"rollout {plan.name}"
        rows = [one for one in tools.registry.evidence(plan.version) if (one.kind, one.made_by) == (KIND, made_by)]
        if rows:
            self.score = rows[-1]
            return
        records = shadow_records(tools.log, plan, read_rollout(tools.registry, plan.service, plan.name).position)
        self.score = shadow_evidence(
            records, tools.open_policy(plan.version), until_s=self.feed.scored_at_s, join=tools.join, made_by=made_by,
            at_s=tools.clock.now_s(),
        )  # fmt: skip
        tools.registry.add_evidence(plan.version, self.score)

    def _next(self) -> StageTransition | None:
        now_s = self.tools.clock.now_s()
        if self.state.finished:
            return None
        live = self.tools.registry.live(self.plan.service)
        if live != self.plan.control:
            words = (
                f"the live version is {live or 'none'} now, not {self.plan.control}: the comparison lost its control"
            )
            return back(self.state, now_s, "control_changed", words)
        if self.score is not None and self.score.verdict == "refuse":
            return back(self.state, now_s, "shadow", self.score.words)
        return next_transition(self.plan, self.state, now_s)

    def _write(self, transition: StageTransition | None) -> None:
        """Write the journal's next entry, with the move that it means; then go on from it."""
        tools, plan, at_s = self.tools, self.plan, self.tools.clock.now_s()
        after, moves, rows = self.state, list[StageMove](), list[tuple[str, Evidence]]()
        if transition is not None:
            after = apply_transition(self.state, transition)
            moves = _moves(plan, transition)
            rows = [(plan.version, evidence_row(plan, after, at_s))] if after.finished else []
        entry = JournalEntry(
            service=plan.service, rollout=plan.name, seq=self.seq, content=state_entry(after, at_s, transition),
            moves=moves, evidence=rows,
        )  # fmt: skip
        tools.registry.append(entry, at_s=at_s, made_by=tools.made_by)
        self.state, self.seq = after, self.seq + 1


def _noteworthy(before: RolloutState, after: RolloutState) -> bool:
    """True if a look found units: only then it is written."""
    return (before.in_stage, before.evidence) != (after.in_stage, after.evidence)


def _moves(plan: RolloutPlan, transition: StageTransition) -> list[StageMove]:
    """Move of the version in the registry, if the transition changes its stage."""
    before, after = version_stage(transition.before), version_stage(transition.after)
    if before == after:
        return []
    return [StageMove(version=plan.version, stage=after, needs=plan.needs, reason=f"{plan.name}: {transition.words}")]


def start_rollout(tools: RolloutTools, plan: RolloutPlan) -> RolloutDriver:
    """Begin a rollout: its plan is the journal's first entry. Raises ConfigError with everything that is in its way."""
    registry = tools.registry
    running = [name for name in registry.rollouts(plan.service) if name != plan.name]
    others = [one for name in running if not (one := read_rollout(registry, plan.service, name)).state.finished]
    before = [kind for kind in plan.needs if kind != KIND or not plan.shadow_requests]  # the shadow makes its own
    missing = missing_evidence(registry.evidence(plan.version), before)
    faults = [f"evidence {one}" for one in missing]
    if missing:
        faults.append(
            f"version {plan.version} may not answer requests: service {plan.service!r} asks for {', '.join(plan.needs)}"
        )
    if plan.name in registry.rollouts(plan.service):
        faults.append(f"service {plan.service!r} has a rollout {plan.name!r} already; name this one otherwise")
    if plan.version == plan.control:
        faults.append(f"version {plan.version} is live already")
    faults += [
        f"rollout {one.plan.name!r} is at {one.state.stage} in the same part of the layer: rollouts that run at the "
        "same time need disjoint parts (`range` in [rollout]); wait for it, or take it back"
        for one in others
        if one.plan.first < plan.last and plan.first < one.plan.last
    ]
    if faults:
        raise ConfigError(*faults)
    at_s, position = tools.clock.now_s(), end_position(tools.log)
    state = begin(plan, at_s, position)
    first = plan_to_json(plan, at_s) | state_entry(state, at_s, None) | {"kind": "plan"}
    retired = registry.stage(plan.service, plan.version) == "retired"
    again = [StageMove(version=plan.version, stage="candidate", reason=f"{plan.name} begins")] if retired else []
    entry = JournalEntry(service=plan.service, rollout=plan.name, seq=0, content=first, moves=again)
    registry.append(entry, at_s=at_s, made_by=tools.made_by)
    feed = ExposureFeed(plan, tools.join, position=position)
    return RolloutDriver(tools=tools, plan=plan, state=state, feed=feed, seq=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRollout:
    """A rollout as its journal tells it."""

    plan: RolloutPlan
    state: RolloutState
    begun_s: float
    position: int
    """Position of the log at its begin."""
    entries: int


def read_rollout(registry: VersionRegistry, service: str, name: str) -> RecordedRollout:
    """Read a rollout's plan and last state. Raises DataError if there is none, or its journal is damaged."""
    ends = registry.first_and_last(service, name)
    where = f"the journal of rollout {name!r} of service {service!r}"
    if ends is None:
        raise DataError(f"service {service!r} has no rollout {name!r}; known: {', '.join(registry.rollouts(service))}")
    first, last, count = ends
    plan, begun = plan_from_json(first, where), state_from_json(first, where)
    state = state_from_json(last, where)
    return RecordedRollout(plan=plan, state=state, begun_s=begun.since_s, position=begun.position, entries=count)


def resume_rollout(tools: RolloutTools, service: str, name: str) -> RolloutDriver:
    """Continue a rollout from its journal: the same state, to the bit, and the same units still to be looked at."""
    recorded = read_rollout(tools.registry, service, name)
    feed = ExposureFeed(recorded.plan, tools.join, position=recorded.position)
    if not recorded.state.finished:
        feed.reread(tools.log, recorded.state.position)
        feed.due(recorded.state.stage, recorded.state.until_s)
    return RolloutDriver(tools=tools, plan=recorded.plan, state=recorded.state, feed=feed, seq=recorded.entries)


def running_rollouts(registry: VersionRegistry, service: str) -> Sequence[RecordedRollout]:
    """Rollouts of a service that have not ended, oldest first."""
    every = [read_rollout(registry, service, name) for name in registry.rollouts(service)]
    return [one for one in every if not one.state.finished]
