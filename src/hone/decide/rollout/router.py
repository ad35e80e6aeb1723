"""Assignment of units to versions by hash: no state, so that every gateway and every later reader agree.

    bucket = floor(10^6 * blake2b(salt, tenant, unit) / 2^64)

A layer holds the rollouts of one service; each owns a range of buckets, so that no unit is in two of them. Inside its
range of width W a rollout with share s (s <= 1/2) gives the first s W buckets to the canary and the last s W to the
control slice: both are equally large, both only grow with s, and a unit never changes sides before the rollout ends.
Belongs here: hashing and shares. Does not: when a share changes (`controller`).

Exposed units of a rollout, from the decision log: the first decision of each unit, with its outcomes.

The log is read by position, each record once. A decision is due when its window has closed; its outcomes so far are
final then, in both arms alike. A unit counts once, at its first decision: afterwards its arm is known, and nothing is
left to chance. After a restart the records are read again, and those that were due by the last look are passed over.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Outcome, is_shadow_kind
from hone.core.errors import ConfigError
from hone.decide.joins.view import JoinConfig
from hone.decide.log.protocol import DecisionLog, LoggedRecord
from hone.decide.rollout.plan import BUCKETS, RolloutGuardrail, RolloutPlan

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
RouteArm = Literal["live", "control", "canary"]
"""Arm of a unit: `live` is outside of every rollout; `control` and `canary` are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRoute:
    """Version that a unit is served by, and the reason."""

    arm: RouteArm
    stage: str
    """`shadow`, `1%`, `5%`, ... of the rollout; empty: the unit is in none."""
    version: str
    label: str
    """`rollout:arm:stage`, the `route` of a logged decision; empty: none."""
    shadow: str = ""
    """Version that scores the same request without answering it; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSlice:
    """Range of a layer's buckets that a rollout owns, and its present share."""

    rollout: str
    """Name, part of the logged route."""
    version: str
    """The new version."""
    stage: str
    share: float
    """Part of the range that the canary serves: 0 in the shadow, at most 1/2, or 1 at the end."""
    first: int = 0
    """First bucket of the range."""
    last: int = BUCKETS
    """End of the range, exclusive."""
    shadow: bool = False
    """True: the version scores every request of the range and answers none."""

    def faults(self) -> list[str]:
        """Problems of the slice by itself."""
        name = f"rollout {self.rollout!r}"
        faults = [f"{name} needs a name without ':'"] if not self.rollout or ":" in self.rollout else []
        if not 0 <= self.first < self.last <= BUCKETS:
            faults.append(f"{name} has the buckets {self.first} to {self.last}; give a range within 0 to {BUCKETS}")
        if not (0 <= self.share <= 0.5 or self.share == 1):
            faults.append(
                f"{name} has a share of {self.share:g}; above 1/2 no control slice is as large as the canary: "
                "take a share of at most 0.5, or 1"
            )
        return faults

    def size(self) -> int:
        """Buckets of the canary; the control slice has as many, and none at a share of 1."""
        return round(self.share * (self.last - self.first))


@dataclass(frozen=True, slots=True, kw_only=True)
class _RouteRange:
    """Buckets `first` to `last` (exclusive) with their route."""

    first: int
    last: int
    route: UnitRoute


@dataclass(frozen=True, slots=True)
class RolloutRouter:
    """Router of one service: pure and immutable; a new stage is a new router. Made by `make_router`."""

    live: UnitRoute
    ranges: tuple[_RouteRange, ...] = ()
    """Disjoint ranges of the rollouts; buckets outside of them are served by `live`."""
    salt: bytes = field(default=b"", repr=False)

    def bucket(self, tenant: str, unit: str) -> int:
        """The unit's bucket, 0 to 10^6 - 1: a function of salt, tenant and unit, of nothing else."""
        named = f"{len(tenant)}:{tenant}{unit}".encode("utf-8", "surrogatepass")
        number = int.from_bytes(blake2b(named, digest_size=8, key=self.salt).digest(), "little")
        return number * BUCKETS >> 64

    def route(self, tenant: str, unit: str) -> UnitRoute:
        """The unit's route: the same for the same router, and in the canary for good once it is there."""
        ranges = self.ranges
        if not ranges:
            return self.live
        bucket = self.bucket(tenant, unit)
        for one in ranges:
            if one.first <= bucket < one.last:
                return one.route
        return self.live

    def stopped(self) -> "RolloutRouter":
        """The kill switch: every unit is served by the live version at once."""
        return RolloutRouter(self.live, (), self.salt)


def make_router(*, live: str, salt: str, slices: Sequence[RolloutSlice] = ()) -> RolloutRouter:
    """Router of a layer with the live version and the rollouts' slices. Raises ConfigError with every fault.

    `salt` names the layer: layers with other salts assign independently.
    """
    faults = [fault for one in slices for fault in one.faults()]
    ordered = sorted(slices, key=lambda one: one.first)
    faults += [
        f"rollouts {before.rollout!r} and {after.rollout!r} share the buckets {after.first} to "
        f"{min(before.last, after.last)}: rollouts of a layer exclude each other; give them disjoint ranges"
        for before, after in pairwise(ordered)
        if after.first < before.last
    ]
    if faults:
        raise ConfigError(*faults)
    outside = UnitRoute(arm="live", stage="", version=live, label="")
    ranges = [part for one in ordered for part in _ranges(one, live) if part.first < part.last]
    return RolloutRouter(outside, tuple(ranges), blake2b(salt.encode("utf-8"), digest_size=32).digest())


def _ranges(one: RolloutSlice, live: str) -> list[_RouteRange]:
    """Canary, rest and control of a slice, those that are not empty."""
    size = one.size()
    control = one.last if one.share == 1 else one.last - size
    shadow = one.version if one.shadow else ""
    rest = "live" if not one.shadow else "control"
    return [
        _RouteRange(first=one.first, last=one.first + size, route=_route(one, "canary", one.version)),
        _RouteRange(first=one.first + size, last=control, route=_route(one, rest, live, shadow)),
        _RouteRange(first=control, last=one.last, route=_route(one, "control", live)),
    ]


def _route(one: RolloutSlice, arm: RouteArm, version: str, shadow: str = "") -> UnitRoute:
    label = "" if arm == "live" else f"{one.rollout}:{arm}:{one.stage}"
    return UnitRoute(arm=arm, stage=one.stage, version=version, label=label, shadow=shadow)


def split_label(label: str) -> tuple[str, str, str]:
    """Rollout, arm and stage of a logged route; three empty texts for a route of no rollout."""
    parts = label.split(":")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("", "", "")


ARMS: Final = ("control", "canary")
"""Arms of a trial, in the order of its actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialUnit:
    """Something that ran under one version, with its result: an episode of a robot, an execution of a skill."""

    tenant: str
    name: str
    """Its unit and the id of its decision."""
    version: str
    route: str
    """Label of its route; empty: it was on no trial."""
    value: float
    kind: str
    """Kind of the outcome."""
    context: Floats
    at_s: float

    def records(self, source: str, number: int) -> tuple[DecisionRecord, DecisionRecord]:
        """A decision between the arms, with probability 1/2 each, and its outcome: units `2 number` and `2 number + 1`
        of the source. On no trial the version is the only action."""
        on_trial = split_label(self.route)[1] in ARMS
        executed = ARMS.index(split_label(self.route)[1]) if on_trial else 0
        logp = -math.log(2.0) if on_trial else 0.0
        decision = Decision(
            id=self.name, tenant=self.tenant, unit=self.name, at_s=self.at_s, context=self.context,
            actions=ActionSet(names=ARMS if on_trial else (self.version or "none",)),
            choice=Choice(action=executed, logp=logp), executed=executed, executed_logp=logp, version=self.version,
            route=self.route, source=source, seq=2 * number,
        )  # fmt: skip
        outcome = Outcome(
            decision_id=self.name, tenant=self.tenant, kind=self.kind, value=self.value, at_s=self.at_s, source=source,
            seq=2 * number + 1,
        )  # fmt: skip
        return decision, outcome


# ------------------------------------------------------------------------------------------------------------ exposures


_PAGE: Final = 5000
_MOST_EARLY: Final = 100_000
"""Outcomes without a known exposure that are kept, as their decision may follow."""
COVARIATES: Final = 12
"""Features of a unit's context that its outcome is regressed on: the first ones."""
_RecordKey = tuple[str, str]
"""Tenant, and a unit or decision id."""


@dataclass(slots=True)
class _OpenExposure:
    at_s: float
    is_new: bool
    stage: str
    covariates: tuple[float, ...]
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposureBatch:
    """Units that are new to a rollout, in the order of their decisions, with their outcomes."""

    is_new: Bools
    """`[n]` the unit is served by the new version."""
    values: Floats
    """`[n, G]` outcomes of each guardrail; NaN: missing, nothing is staked on it."""
    covariates: Floats | None = None
    """`[n, d]` features of the units' first contexts, known before their arm; None: none."""
    both_arms: int = 0
    """Units of this look that had been in the other arm before."""
    in_stage: int = 0
    """Units that were exposed in the present stage."""

    def __len__(self) -> int:
        return len(self.is_new)


@dataclass(slots=True)
class ExposureFeed:
    """Records of the log as exposures of one rollout."""

    plan: RolloutPlan
    join: JoinConfig
    position: int = 0
    """Position of the last record that was taken."""
    _open: OrderedDict[_RecordKey, _OpenExposure] = field(default_factory=OrderedDict)
    _early: OrderedDict[_RecordKey, list[Outcome]] = field(default_factory=OrderedDict)
    _arms: dict[_RecordKey, bool] = field(default_factory=dict)
    _moved: set[_RecordKey] = field(default_factory=set)
    _both_arms: int = 0
    _shadow: int = 0
    scored_at_s: float = math.inf
    """Time of the last decision that the shadow's score needs; infinite: it is still to come."""
    _scored: int = 0
    _latest_s: float = -math.inf

    def read(self, log: DecisionLog) -> None:
        """Take every record that the log has beyond the position. Raises what the log raises."""
        while page := log.read(self.position, _PAGE):
            self.take(page)

    def reread(self, log: DecisionLog, end: int) -> None:
        """Take the records up to the position `end` again, after a restart."""
        while page := [one for one in log.read(self.position, _PAGE) if one.position <= end]:
            self.take(page)

    def take(self, page: Sequence[LoggedRecord]) -> None:
        """Take records in the order of the log."""
        for one in page:
            if isinstance(one.record, Decision):
                self._decided(one.record)
            else:
                self._learnt(one.record)
            self.position = one.position

    def _decided(self, decision: Decision) -> None:
        rollout, arm, stage = split_label(decision.route)
        if rollout != self.plan.name:
            return
        if stage == "shadow":
            self._shadow += 1
            self._score(decision.at_s)
        if not 0 < self.plan.share(stage) < 1:
            return
        unit, is_new = (decision.tenant, decision.unit), arm == "canary"
        if unit in self._arms:
            if self._arms[unit] != is_new and unit not in self._moved:
                self._moved.add(unit)
                self._both_arms += 1
            return
        self._arms[unit] = is_new
        key = (decision.tenant, decision.id)
        features = decision.context[:COVARIATES].tolist()
        covariates = (*features, *[0.0] * (COVARIATES - len(features)))
        self._open[key] = _OpenExposure(decision.at_s, is_new, stage, covariates)
        for outcome in self._early.pop(key, ()):
            self._learnt(outcome)

    def _score(self, at_s: float) -> None:
        """Note a decision of the shadow's score: the first ones, as many as the shadow needs."""
        if self._scored < self.plan.shadow_requests:
            self._scored += 1
            self._latest_s = max(self._latest_s, at_s)
            if self._scored == self.plan.shadow_requests:
                self.scored_at_s = self._latest_s

    def _learnt(self, outcome: Outcome) -> None:
        if is_shadow_kind(outcome.kind):
            return
        key = (outcome.tenant, outcome.decision_id)
        held = self._open.get(key)
        if held is not None:
            held.outcomes.setdefault(outcome.kind, []).append(outcome)
            return
        self._early.setdefault(key, []).append(outcome)
        if len(self._early) > _MOST_EARLY:
            self._early.popitem(last=False)

    def due(self, stage: str, until_s: float) -> ExposureBatch:
        """Exposures that were decided up to `until_s`, in the order of the log; they leave the feed.

        `in_stage` counts those of `stage`; in the shadow it counts the requests that were scored.
        """
        keys = [key for key, one in self._open.items() if one.at_s <= until_s]
        ready = [self._open.pop(key) for key in keys]
        both_arms, self._both_arms = self._both_arms, 0
        shadow, self._shadow = self._shadow, 0
        values = [[self._value(one, guardrail) for guardrail in self.plan.guardrails] for one in ready]
        return ExposureBatch(
            is_new=np.array([one.is_new for one in ready], dtype=np.bool_),
            values=np.array(values, dtype=np.float64).reshape(len(ready), len(self.plan.guardrails)),
            covariates=np.array([one.covariates for one in ready], dtype=np.float64).reshape(len(ready), COVARIATES),
            both_arms=both_arms,
            in_stage=shadow if stage == "shadow" else sum(one.stage == stage for one in ready),
        )

    def _value(self, one: _OpenExposure, guardrail: RolloutGuardrail) -> float:
        """Value of an exposure's outcomes of one kind, by the rule of the join; NaN: it has none."""
        kind, end = guardrail.kind, one.at_s + self.join.window_s
        inside = sorted((each.at_s, each.source, each.seq, each.value) for each in one.outcomes.get(kind, ()))
        values = [value for at_s, _, _, value in inside if at_s <= end]
        if not values and guardrail.default is not None:
            return guardrail.default
        if not values:
            return self.join.default if kind == self.join.kind else math.nan
        rules = {"sum": sum(values), "first": values[0], "last": values[-1], "max": max(values)}
        return float(rules[self.join.rule])


def end_position(log: DecisionLog) -> int:
    """Position of the last record of a log, 0 for an empty one, by bisection: positions have holes."""
    if not log.read(0, 1):
        return 0
    low, high = 0, 1
    while log.read(high, 1):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if log.read(middle, 1) else (low, middle)
    return high
