"""Driver of rollouts: reads the decision log, asks the controller, writes the journal, and begins and ends rollouts.

Every transition is one transaction of the registry: the entry with its evidence, and the version's move. Gateways read
the journal (`watch`), so a transition acts when it is written, and a driver that is killed has written it or has not.

Score of a version in the shadow: an off-policy estimate from the requests that the live version answered.

A version's distribution is a function of the context and the actions, so the log has everything: which action was
executed, with which probability, and what came of it. The estimate is doubly robust, with IPS and SNIPS in its report.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from hone.core.clock import Clock
from hone.core.decisions import (
    Decision,
    DecisionPolicy,
    DecisionRecord,
    Evidence,
    Outcome,
    Verdict,
    is_shadow_kind,
)
from hone.core.errors import ConfigError, DataError
from hone.core.strict_json import Json
from hone.decide.estimators.sequential import (
    AsymptoticSequence,
    BernsteinSequence,
    DeadlineBet,
    MatchedArms,
    MixtureProcess,
    OutcomeRegression,
    SampleRatio,
)
from hone.decide.evaluate.off_policy import LOGGED, estimate_policies
from hone.decide.joins.join import build_view
from hone.decide.joins.view import JoinConfig
from hone.decide.log.protocol import DecisionLog
from hone.decide.registry import JournalEntry, StageMove, VersionRegistry, missing_evidence
from hone.decide.rollout.controller import (
    GuardrailEvidence,
    RolloutEvidence,
    RolloutState,
    StageTransition,
    begin,
    version_stage,
)
from hone.decide.rollout.plan import RolloutGuardrail, RolloutPlan
from hone.decide.rollout.router import ExposureFeed, end_position, split_label

# --------------------------------------------------------------------------------------------------------------- shadow


KIND: Final = "shadow"
"""Kind of the evidence."""
_NAME: Final = "the new version"
_PAGE: Final = 5000


def _shadow_records(log: DecisionLog, plan: RolloutPlan, position: int) -> list[DecisionRecord]:
    """The first decisions of a rollout's shadow, as many as it needs, with all outcomes of their ids; `position` is the
    log's at its begin."""
    decisions: dict[tuple[str, str], DecisionRecord] = {}
    outcomes: list[Outcome] = []
    mine = plan.name, KIND
    while page := log.read(position, _PAGE):
        position = page[-1].position
        records = [one.record for one in page]
        shadows = [one for one in records if isinstance(one, Decision) and split_label(one.route)[::2] == mine]
        for one in shadows[: plan.shadow_requests - len(decisions)]:
            decisions[one.tenant, one.id] = one
        gathering = len(decisions) < plan.shadow_requests  # an outcome may come before its decision
        outcomes += [
            one
            for one in records
            if isinstance(one, Outcome)
            and not is_shadow_kind(one.kind)
            and (gathering or (one.tenant, one.decision_id) in decisions)
        ]
    of_shadow = [one for one in outcomes if (one.tenant, one.decision_id) in decisions]
    return [*decisions.values(), *of_shadow]


def _shadow_evidence(
    records: Sequence[DecisionRecord],
    policy: DecisionPolicy,
    *,
    until_s: float,
    join: JoinConfig,
    made_by: str,
    at_s: float,
) -> Evidence:
    """Value of the new version minus that of the live one, over the shadow's decisions of its largest tenant.

    `refuse`: the version raises, or gives no distribution, for a context of the log. `ok`: the estimate holds, and the
    version is not surely worse. `weak`: it is surely worse, or the log cannot tell.
    """
    tenants = [record.tenant for record in records if isinstance(record, Decision)]
    tenant = max(sorted(set(tenants)), key=tenants.count, default="")
    try:
        view = build_view(records, as_of_s=until_s + join.window_s, join=join, tenant=tenant)
        report = estimate_policies(view.closed(), {_NAME: policy})
    except (ConfigError, DataError) as error:
        return _row("weak", f"its value cannot be estimated: {error!s:.300}", made_by, at_s)
    except Exception as error:  # noqa: BLE001 - a version is anybody's code
        message = f"it cannot decide what the live version decided: {type(error).__name__}: {error!s:.300}"
        return _row("refuse", message, made_by, at_s)
    difference = next(one for one in report.differences if one.first == LOGGED)
    estimate = difference.estimate
    sound = report.of(_NAME).deciding.verdict == estimate.verdict == "ok" and estimate.high >= 0
    return Evidence(
        kind=KIND, verdict="ok" if sound else "weak", words=difference.words, value=estimate.value, low=estimate.low,
        high=estimate.high, count=estimate.n, made_by=made_by, at_s=at_s,
    )  # fmt: skip


def _row(verdict: Verdict, words: str, made_by: str, at_s: float) -> Evidence:
    return Evidence(kind=KIND, verdict=verdict, words=words, made_by=made_by, at_s=at_s)


# -------------------------------------------------------------------------------------------------------------- records


FORMAT: Final = 1
_Table = dict[str, Any]


def plan_to_json(plan: RolloutPlan, at_s: float) -> dict[str, Json]:
    """The journal's first entry."""
    return cast("dict[str, Json]", {"kind": "plan", "format": FORMAT, "at_s": at_s, "plan": _plain(asdict(plan))})


def state_entry(state: RolloutState, at_s: float, transition: StageTransition | None) -> dict[str, Json]:
    """An entry for a look, or for a transition with the state *after* it."""
    entry: _Table = {"kind": "look" if transition is None else "transition", "at_s": at_s}
    if transition is not None:
        entry["transition"] = asdict(transition)
    return cast("dict[str, Json]", entry | {"state": _plain(asdict(state))})


def _plain(value: Any) -> Any:  # noqa: ANN401 - a JSON document
    """Tuples as lists, infinities as text: strict JSON has neither."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in cast("_Table", value).items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in cast("list[Any]", value)]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def plan_from_json(entry: dict[str, Json], where: str) -> RolloutPlan:
    """Read the journal's first entry. Raises DataError naming `where`."""
    try:
        if entry.get("kind") != "plan" or cast("int", entry["format"]) > FORMAT:
            raise DataError(f"{where} does not begin with a plan of format {FORMAT}; use the hone that wrote it")
        table = cast("_Table", entry["plan"])
        guardrails = tuple(RolloutGuardrail(**one) for one in table["guardrails"])
        return RolloutPlan(
            **table | {"guardrails": guardrails, "stages": tuple(table["stages"]), "needs": tuple(table["needs"])}
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{where} has a damaged plan: {error!r}; restore the registry from a copy") from error


def state_from_json(entry: dict[str, Json], where: str) -> RolloutState:
    """Read the state of an entry, to the bit. Raises DataError naming `where`."""
    try:
        table = cast("_Table", entry["state"])
        return RolloutState(**table | {"evidence": _evidence(table["evidence"]), "until_s": float(table["until_s"])})
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where} has a damaged state: {error!r}; restore the registry from a copy") from error


def transition_from_json(entry: dict[str, Json]) -> StageTransition | None:
    """The transition of an entry; None for a look."""
    table = cast("_Table | None", entry.get("transition"))
    return None if table is None else StageTransition(**table)


def _evidence(table: _Table) -> RolloutEvidence:
    ratio = table["ratio"]
    return RolloutEvidence(
        **table
        | {
            "guardrails": tuple(_guardrail(one) for one in table["guardrails"]),
            "ratio": SampleRatio(**ratio | {"shares": tuple(ratio["shares"]), "counts": tuple(ratio["counts"])}),
        }
    )


def _guardrail(table: _Table) -> GuardrailEvidence:
    process, arms = table["process"], table["arms"]
    bet, regression = process.get("deadline"), arms.get("regression", {})  # neither was in journals of hone 0.1
    sums: _Table = {name: one if name == "count" else tuple(one) for name, one in regression.items()}
    following = {
        "log_wealth": tuple(process["log_wealth"]), "deadline": None if bet is None else DeadlineBet(**bet),
    }  # fmt: skip
    return GuardrailEvidence(
        **table
        | {
            "arms": MatchedArms(**arms | {"regression": OutcomeRegression(**sums)}),
            "process": MixtureProcess(**process | following),
            "effect": AsymptoticSequence(**table["effect"]),
            "bounded": BernsteinSequence(**table["bounded"]),
        }
    )


# --------------------------------------------------------------------------------------------------------------- driver


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

    def start(self, plan: RolloutPlan) -> "RolloutDriver":
        """Begin a rollout: its plan is the journal's first entry. Raises ConfigError with all that is in its way."""
        registry = self.registry
        running = [name for name in registry.rollouts(plan.service) if name != plan.name]
        others = [one for name in running if not (one := read_rollout(registry, plan.service, name)).state.finished]
        before = [kind for kind in plan.needs if kind != KIND or not plan.shadow_requests]  # the shadow makes its own
        missing = missing_evidence(registry.evidence(plan.version), before)
        faults = [f"evidence {one}" for one in missing]
        if missing:
            faults.append(
                f"version {plan.version} may not answer requests: service {plan.service!r} asks for "
                f"{', '.join(plan.needs)}"
            )
        if plan.name in registry.rollouts(plan.service):
            faults.append(f"service {plan.service!r} has a rollout {plan.name!r} already; name this one otherwise")
        if plan.version == plan.control:
            faults.append(f"version {plan.version} is live already")
        faults += [
            f"rollout {one.plan.name!r} is at {one.state.stage} in the same part of the layer: rollouts that run at "
            "the same time need disjoint parts (`range` in [rollout]); wait for it, or take it back"
            for one in others
            if one.plan.first < plan.last and plan.first < one.plan.last
        ]
        if faults:
            raise ConfigError(*faults)
        at_s, position = self.clock.now_s(), end_position(self.log)
        state = begin(plan, at_s, position)
        first = plan_to_json(plan, at_s) | state_entry(state, at_s, None) | {"kind": "plan"}
        retired = registry.stage(plan.service, plan.version) == "retired"
        again = [StageMove(version=plan.version, stage="candidate", reason=f"{plan.name} begins")] if retired else []
        entry = JournalEntry(service=plan.service, rollout=plan.name, seq=0, content=first, moves=again)
        registry.append(entry, at_s=at_s, made_by=self.made_by)
        feed = ExposureFeed(plan, self.join, position=position)
        return RolloutDriver(tools=self, plan=plan, state=state, feed=feed, seq=1)

    def resume(self, service: str, name: str) -> "RolloutDriver":
        """Continue a rollout from its journal: the same state, to the bit, and the same units still to be looked at."""
        recorded = read_rollout(self.registry, service, name)
        feed = ExposureFeed(recorded.plan, self.join, position=recorded.position)
        if not recorded.state.finished:
            feed.reread(self.log, recorded.state.position)
            feed.due(recorded.state.stage, recorded.state.until_s)
        return RolloutDriver(tools=self, plan=recorded.plan, state=recorded.state, feed=feed, seq=recorded.entries)


@dataclass(slots=True)
class RolloutDriver:
    """One rollout in progress. Made by `RolloutTools.start` or `resume`; one driver a rollout."""

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
        found_units = (before.in_stage, before.evidence) != (self.state.in_stage, self.state.evidence)
        if not done and found_units:
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
        transition = self.state.back(self.tools.clock.now_s(), "person", words)
        self._write(transition)
        return transition

    def _look(self) -> None:
        self.feed.read(self.tools.log)
        closed_s = self.tools.clock.now_s() - self.tools.join.window_s - self.tools.slack_s
        until_s = max(self.state.until_s, closed_s)  # a clock that jumps back opens no window again
        batch = self.feed.due(self.state.stage, until_s)
        self.state = self.state.look(self.plan, batch, until_s, self.feed.position)

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
        records = _shadow_records(tools.log, plan, read_rollout(tools.registry, plan.service, plan.name).position)
        self.score = _shadow_evidence(
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
            return self.state.back(now_s, "control_changed", words)
        if self.score is not None and self.score.verdict == "refuse":
            return self.state.back(now_s, "shadow", self.score.words)
        return self.state.next_transition(self.plan, now_s)

    def _write(self, transition: StageTransition | None) -> None:
        """Write the journal's next entry, with the move that it means; then go on from it."""
        tools, plan, at_s = self.tools, self.plan, self.tools.clock.now_s()
        after, moves, rows = self.state, list[StageMove](), list[tuple[str, Evidence]]()
        if transition is not None:
            after = self.state.after(transition)
            if (stage := version_stage(transition.after)) != version_stage(transition.before):
                reason = f"{plan.name}: {transition.words}"
                moves = [StageMove(version=plan.version, stage=stage, needs=plan.needs, reason=reason)]
            rows = [(plan.version, after.evidence_row(plan, at_s))] if after.finished else []
        entry = JournalEntry(
            service=plan.service, rollout=plan.name, seq=self.seq, content=state_entry(after, at_s, transition),
            moves=moves, evidence=rows,
        )  # fmt: skip
        tools.registry.append(entry, at_s=at_s, made_by=tools.made_by)
        self.state, self.seq = after, self.seq + 1


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


def running_rollouts(registry: VersionRegistry, service: str) -> Sequence[RecordedRollout]:
    """Rollouts of a service that have not ended, oldest first."""
    every = [read_rollout(registry, service, name) for name in registry.rollouts(service)]
    return [one for one in every if not one.state.finished]
