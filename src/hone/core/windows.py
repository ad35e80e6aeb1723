"""The newest numbers of a stream: their mean over any stretch, their largest, at once and for ever.

Belongs here: structures whose cost does not grow with the window: sums that change (Fenwick, 1994) and the largest of a
sliding window by a monotone deque. Loops in Python: they are asked once an episode, not once a step.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.state import State, array, integer

Floats = NDArray[np.float64]


class FenwickTree:
    """`size` numbers, all 0 at first, that change one at a time; the sum of the first k of them in log2(size) steps."""

    def __init__(self, size: int) -> None:
        self.values = np.zeros(size)
        self._tree = np.zeros(size + 1)

    def set_value(self, place: int, value: float) -> None:
        """Set the number at `place`."""
        delta = value - self.values[place]
        self.values[place] = value
        node = place + 1
        while node < len(self._tree):
            self._tree[node] += delta
            node += node & -node

    def prefix_sum(self, place: int) -> float:
        """Sum of the numbers at 0 .. place - 1."""
        total = 0.0
        while place:
            total += self._tree[place]
            place -= place & -place
        return float(total)

    def range_sum(self, first: int, last: int) -> float:
        """Sum of the numbers at first .. last - 1."""
        return self.prefix_sum(last) - self.prefix_sum(first)

    def rebuild(self) -> None:
        """Make all sums anew, so that the rounding of many changes does not add up; linear in the size."""
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        nodes = np.arange(len(self._tree))
        self._tree = sums[nodes] - sums[nodes - (nodes & -nodes)]


class SlidingMax:
    """The largest of the newest `size` numbers, in constant time on average (monotone deque).

    What is older and not larger than another can never be the largest again, and is forgotten at once.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.added = 0
        self._best: deque[tuple[int, float]] = deque()

    def add(self, value: float) -> float:
        """Adds a number -> the largest of the newest `size`, this one among them."""
        while self._best and self._best[-1][1] <= value:
            self._best.pop()
        self._best.append((self.added, value))
        self.added += 1
        if self._best[0][0] <= self.added - 1 - self.size:
            self._best.popleft()
        return self._best[0][1]

    @property
    def maximum(self) -> float:
        """Largest of the newest `size` numbers; -inf before the first one."""
        return self._best[0][1] if self._best else -np.inf


class SlidingWindow:
    """The newest `size` numbers of a stream."""

    def __init__(self, size: int) -> None:
        """Raises DataError for a window without room."""
        if size < 1:
            raise DataError(f"a window of {size} numbers: it must hold at least 1")
        self.size = size
        self.added = 0
        """Numbers ever added."""
        self._sums = FenwickTree(size)
        self._largest = SlidingMax(size)

    def __len__(self) -> int:
        return min(self.added, self.size)

    @property
    def full(self) -> bool:
        """True if the window has its full length."""
        return self.added >= self.size

    @property
    def maximum(self) -> float:
        """Largest number in the window; -inf while it is empty."""
        return self._largest.maximum

    def add(self, values: Iterable[float]) -> None:
        """Add a value; the oldest leaves a full window."""
        for value in values:
            self._sums.set_value(self.added % self.size, float(value))
            self._largest.add(float(value))
            self.added += 1
            if self.added % self.size == 0:
                self._sums.rebuild()

    def mean(self, last: int | None = None, *, skip: int = 0) -> float:
        """Mean of the newest `last` numbers (default: all) without the newest `skip`; NaN where there are none."""
        end = len(self) - skip
        count = end if last is None else min(last, end)
        if count <= 0:
            return float("nan")
        first = (self.added - skip - count) % self.size
        if first + count <= self.size:
            return self._sums.range_sum(first, first + count) / count
        return (self._sums.range_sum(first, self.size) + self._sums.prefix_sum(first + count - self.size)) / count

    def values(self) -> Floats:
        """`[n]`, oldest first."""
        return np.roll(self._sums.values, -(self.added % self.size))[self.size - len(self) :].copy()

    def state(self) -> State:
        return {"size": self.size, "seen": self.added, "values": self.values()}

    def restore(self, state: State) -> None:
        """Raises DataError for a window of another size."""
        if integer(state, "size") != self.size:
            raise DataError(f"the saved window holds {state['size']} numbers, this one {self.size}")
        values, seen = array(state, "values").astype(np.float64), integer(state, "seen")
        self._sums, self._largest, self.added = FenwickTree(self.size), SlidingMax(self.size), seen - len(values)
        self.add(values.tolist())
        self._sums.rebuild()
