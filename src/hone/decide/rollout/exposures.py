"""Exposed units of a rollout, from the decision log: the first decision of each unit, with its outcomes.

The log is read by position, each record once. A decision is due when its window has closed; its outcomes so far are
final then, in both arms alike. A unit counts once, at its first decision: afterwards its arm is known, and nothing is
left to chance. After a restart the records are read again, and those that were due by the last look are passed over.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hone.core.decisions import Decision, Outcome, is_shadow_kind
from hone.decide.joins.config import JoinConfig
from hone.decide.log.protocol import DecisionLog, LoggedRecord
from hone.decide.rollout.evidence import ExposureBatch
from hone.decide.rollout.plan import RolloutGuardrail, RolloutPlan
from hone.decide.rollout.router import split_label

_PAGE: Final = 5000
_MOST_EARLY: Final = 100_000
"""Outcomes without a known exposure that are kept, as their decision may follow."""
_RecordKey = tuple[str, str]
"""Tenant, and a unit or decision id."""


@dataclass(slots=True)
class _OpenExposure:
    at_s: float
    is_new: bool
    stage: str
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)


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
        self._open[key] = _OpenExposure(decision.at_s, is_new, stage)
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
