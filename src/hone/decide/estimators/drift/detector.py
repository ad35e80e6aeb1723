"""The interface of drift detectors for streams of numbers, and means of blocks for streams that correlate with
themselves."""

from dataclasses import dataclass
from typing import Literal, Protocol

from hone.core.state import State, integer, number, substate


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseAlarmBudget:
    """Declared rate of false alarms while nothing changes."""

    kind: Literal["arl", "alpha"]
    """`arl`: the mean number of values before a false alarm is at least `value` (average run length); `alpha`: the
    probability of a false alarm of one test is at most `value`."""
    value: float


class DriftDetector(Protocol):
    """A detector that reads one number after another. Pure: chance and time come in by arguments and by its seed."""

    @property
    def budget(self) -> FalseAlarmBudget:
        """The declared rate of false alarms."""
        ...

    @property
    def statistic(self) -> float:
        """The evidence at hand, before an alarm resets it."""
        ...

    @property
    def threshold(self) -> float:
        """The statistic at which an alarm is raised."""
        ...

    @property
    def recent(self) -> int:
        """Number of latest values that come after the change, estimated at the last alarm; 0 before the first."""
        ...

    def update(self, value: float) -> bool:
        """Read a finite value; True if the stream is judged to have changed. The detector then starts anew."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class BlockMeans:
    """A detector of the means of blocks of `block` consecutive values.

    Detectors assume values that are independent while nothing changes. Values that correlate with their neighbours
    (rewards of one session, of one hour) raise false alarms; means of blocks that are long beside the correlation are
    nearly independent. An alarm comes at the end of a block only.
    """

    def __init__(self, inner: DriftDetector, block: int) -> None:
        if block < 1:
            raise ValueError(f"a block of {block} values; it needs at least 1")
        self._inner, self._block = inner, block
        self._count, self._total = 0, 0.0

    @property
    def budget(self) -> FalseAlarmBudget:
        """The inner detector's; a run length is counted in single values."""
        inner = self._inner.budget
        return FalseAlarmBudget(kind="arl", value=inner.value * self._block) if inner.kind == "arl" else inner

    @property
    def statistic(self) -> float:
        return self._inner.statistic

    @property
    def threshold(self) -> float:
        return self._inner.threshold

    @property
    def recent(self) -> int:
        return self._inner.recent * self._block

    def update(self, value: float) -> bool:
        self._count += 1
        self._total += value
        if self._count < self._block:
            return False
        mean, self._count, self._total = self._total / self._block, 0, 0.0
        return self._inner.update(mean)

    def state(self) -> State:
        return {"inner": self._inner.state(), "count": self._count, "total": self._total}

    def restore(self, state: State) -> None:
        self._inner.restore(substate(state, "inner"))
        self._count, self._total = integer(state, "count"), number(state, "total")
