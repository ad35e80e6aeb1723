"""Clocks: code that needs the time takes one as an argument, so that tests can set it."""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Clock that tells seconds; the only source of time."""

    def now_s(self) -> float:
        """Wall-clock seconds since the epoch; for humans and logs, may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never run backwards; for durations and deadlines."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clocks; any two are equal."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()
