"""Alarms of the monitor: as records, as log lines and as evidence."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from hone.core.decisions import Evidence
from hone.decide.estimators.drift.detector import FalseAlarmBudget
from hone.run.store.durable import write_all, writing

MADE_BY = "monitor"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorAlarm:
    """An alarm of one signal of one tenant."""

    tenant: str
    signal: str
    """`residual`, `reward`, `refused`, `feature NAME`, `not finite`, `actions`, `stale` or `memory`."""
    at_s: float
    count: int
    """Values of the signal that had been read."""
    statistic: float
    threshold: float
    budget: FalseAlarmBudget
    """Declared rate of false alarms of this signal."""
    recent: int = 0
    """Latest values that come after the change, estimated; 0: unknown."""
    words: str
    """The alarm in one sentence."""

    def line(self) -> str:
        """One line of JSON; numbers that JSON has no word for are null."""
        fields = asdict(self)
        numbers = {name: None if isinstance(value, float) and not math.isfinite(value) else value
                   for name, value in fields.items()}  # fmt: skip
        return json.dumps({"event": "alarm", **numbers})

    def evidence(self) -> Evidence:
        """Evidence against the version in service."""
        return Evidence(
            kind=MADE_BY, verdict="weak", words=self.words, value=self.statistic, count=self.count,
            made_by=MADE_BY, at_s=self.at_s,
        )  # fmt: skip


class AlarmSink(Protocol):
    """Receiver of alarms. It must be quick, and must not raise."""

    def alarm(self, alarm: MonitorAlarm) -> None: ...


class AlarmLog:
    """Alarms appended to a file, a line each, and handed on."""

    def __init__(self, path: Path, then: AlarmSink | None = None) -> None:
        self.path, self._then = path, then

    def alarm(self, alarm: MonitorAlarm) -> None:
        """Append the alarm. Raises ResourceError."""
        data = (alarm.line() + "\n").encode()
        with writing(self.path, len(data)), self.path.open("ab", buffering=0) as file:
            write_all(file.fileno(), data)
        if self._then is not None:
            self._then.alarm(alarm)
