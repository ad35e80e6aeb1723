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


@dataclass(eq=False)
class TickingClock(ManualClock):
    """A clock on which half a second passes whenever somebody looks."""

    __hash__ = object.__hash__

    def monotonic_s(self) -> float:
        self.advance(0.5)
        return self.time_s
