"""A clock for tests."""

from dataclasses import dataclass


@dataclass
class ManualClock:
    """A clock that a test moves by hand."""

    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s

    def monotonic_s(self) -> float:
        return self.time_s

    def advance(self, seconds: float) -> None:
        self.time_s += seconds
