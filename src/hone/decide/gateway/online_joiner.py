"""Rewards joined to recent decisions as they arrive, for learning while serving. Pure: a test drives it with a clock.

The log's view (`hone log --view`) joins exactly and for ever; this one holds a bounded number of decisions in memory. A
reward for a decision that is no longer held is in the log, is counted here, and is learnt from the next view.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from hone.core.decisions import Decision
from hone.decide.joins.config import JoinConfig

_MOST_EARLY: Final = 10_000
"""Decisions that rewards wait for."""
_MOST_EARLY_EACH: Final = 16
JoinKey = tuple[str, str]
"""Tenant and decision id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedReward:
    """A decision and its final reward."""

    decision: Decision
    reward: float


@dataclass(slots=True, eq=False)
class _OpenDecision:
    decision: Decision
    value: float | None = None


@dataclass(slots=True)
class OnlineJoinCounts:
    """Counts since the joiner began."""

    joined: int = 0
    defaulted: int = 0
    evicted: int = 0
    """Decisions that left before their window closed, as too many were open."""
    early: int = 0
    """Rewards that came before their decision."""
    late: int = 0
    """Rewards after the window, or for a decision that is already learnt from or no longer held."""


@dataclass(slots=True)
class OnlineJoiner:
    """Decisions whose window is open."""

    rules: JoinConfig
    most_open: int = 50_000
    """Decisions held at most; the oldest leaves first, and is counted."""
    counts: OnlineJoinCounts = field(default_factory=OnlineJoinCounts)
    _open: OrderedDict[JoinKey, _OpenDecision] = field(default_factory=OrderedDict)
    _early: OrderedDict[JoinKey, list[tuple[float, float]]] = field(default_factory=OrderedDict)

    def decided(self, decision: Decision) -> list[JoinedReward]:
        """Open the window of a decision; rewards that came before it count now. The finished joins."""
        key = decision.tenant, decision.id
        self._open[key] = _OpenDecision(decision)
        done: list[JoinedReward] = []
        for value, at_s in self._early.pop(key, ()):
            done += self._taken(key, value, at_s)
        while len(self._open) > self.most_open:
            self._open.popitem(last=False)
            self.counts.evicted += 1
        return done

    def holds(self, tenant: str, decision_id: str) -> bool:
        """True if the decision's window is open here."""
        return (tenant, decision_id) in self._open

    def rewarded(self, key: JoinKey, value: float, kind: str, at_s: float) -> list[JoinedReward]:
        """Take a reward; the join that it finishes, if any."""
        if kind != self.rules.kind:
            return []
        if key not in self._open:
            self._wait(key, value, at_s)
            return []
        return self._taken(key, value, at_s)

    def close_windows(self, now_s: float) -> list[JoinedReward]:
        """The joins of decisions whose window has closed by `now_s`."""
        done: list[JoinedReward] = []
        while self._open:
            key, oldest = next(iter(self._open.items()))
            if oldest.decision.at_s + self.rules.window_s > now_s:
                break
            del self._open[key]
            done += self._closed(oldest)
        return done

    def oldest(self) -> Decision | None:
        """The decision that has been open longest."""
        return next((one.decision for one in self._open.values()), None)

    def open_values(self) -> Iterator[tuple[JoinKey, float | None]]:
        """Open decisions in their order, each with its reward so far."""
        return ((key, one.value) for key, one in self._open.items())

    def early_rewards(self) -> Iterator[tuple[JoinKey, list[tuple[float, float]]]]:
        """Decisions that rewards wait for, in their order, each with values and times."""
        return iter(self._early.items())

    def reopen(self, decision: Decision, value: float | None) -> None:
        """Take up an open decision of a checkpoint, in the order of `open_values`."""
        self._open[decision.tenant, decision.id] = _OpenDecision(decision, value)

    def wait_again(self, key: JoinKey, value: float, at_s: float) -> None:
        """Take up a reward that waits, in the order of `early_rewards`."""
        self._early.setdefault(key, []).append((value, at_s))

    def _taken(self, key: JoinKey, value: float, at_s: float) -> list[JoinedReward]:
        held = self._open.get(key)
        if held is None or at_s > held.decision.at_s + self.rules.window_s:
            self.counts.late += 1
            return []
        if self.rules.rule == "first":
            del self._open[key]
            self.counts.joined += 1
            return [JoinedReward(decision=held.decision, reward=value)]
        if held.value is None or self.rules.rule == "last":
            held.value = value
        else:
            held.value = held.value + value if self.rules.rule == "sum" else max(held.value, value)
        return []

    def _closed(self, held: _OpenDecision) -> Iterator[JoinedReward]:
        if held.value is not None:
            self.counts.joined += 1
            yield JoinedReward(decision=held.decision, reward=held.value)
        else:
            self.counts.defaulted += 1
            yield JoinedReward(decision=held.decision, reward=self.rules.default)

    def _wait(self, key: JoinKey, value: float, at_s: float) -> None:
        """Keep a reward whose decision was not seen: it may come, or have left."""
        waiting = self._early.setdefault(key, [])
        if len(waiting) < _MOST_EARLY_EACH:
            self.counts.early += 1
            waiting.append((value, at_s))
        while len(self._early) > min(self.most_open, _MOST_EARLY):
            self._early.popitem(last=False)
            self.counts.late += 1
