"""A watched number over time in bounded memory: means of equal blocks, merged in pairs when there are too many."""

import math
from dataclasses import dataclass, field

from hone.decide.monitor.alarms import MonitorAlarm

POINTS = 256
"""Most points that are kept; at least half as many are shown."""
MARKS = 200


@dataclass
class SignalHistory:
    """Means of consecutive blocks of `block` values, and the alarms raised meanwhile."""

    block: int = 1
    means: list[float] = field(default_factory=list[float])
    alarms: list[MonitorAlarm] = field(default_factory=list[MonitorAlarm])
    """The latest alarms; the oldest are dropped beyond 200."""
    _count: int = 0
    _total: float = 0.0

    def add(self, value: float) -> None:
        """Read a finite value."""
        self._count += 1
        self._total += value
        if self._count < self.block:
            return
        self.means.append(self._total / self.block)
        self._count, self._total = 0, 0.0
        if len(self.means) == POINTS:
            self.means = [math.fsum(self.means[k : k + 2]) / 2 for k in range(0, POINTS, 2)]
            self.block *= 2

    def mark(self, alarm: MonitorAlarm) -> None:
        """Note an alarm."""
        self.alarms = [*self.alarms, alarm][-MARKS:]
