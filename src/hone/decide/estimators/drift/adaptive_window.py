"""ADWIN: a window of the latest values that grows while they agree and drops its older part when they do not.

Bifet & Gavaldà, "Learning from time-changing data with adaptive windowing", 2007. The window is kept as an exponential
histogram: at most `per_row + 1` buckets of each of the sizes 1, 2, 4 ..., each with its total and its variance, so that
n values take O(log n) memory.
"""

import math
from typing import cast

import numpy as np

from hone.core.errors import DataError
from hone.core.state import State, array, integer, number
from hone.decide.estimators.drift.detector import FalseAlarmBudget

_PER_ROW = 5
_LEAST_PART = 5
"""Values that each part of a cut holds at least."""
_GRACE = 10
"""Values before the first test."""


class AdaptiveWindow:
    """ADWIN. Every `every` values, the window W is cut at each border of two buckets into an older part of n0 and a
    newer part of n1 values; it has changed if for one cut |mean0 - mean1| > epsilon, with

    m = 1/(n0 - 4) + 1/(n1 - 4),  d = ln(2 ln|W| / delta),  epsilon = sqrt(2 m var(W) d) + 2/3 m d.

    Then the oldest buckets are dropped until no cut shows a change. One test is wrong with probability at most `delta`
    (for values in an interval of length 1), so the average run length is at least `every / delta`.
    """

    def __init__(self, *, delta: float = 0.002, every: int = 32) -> None:
        if not 0 < delta < 1 or every < 1:
            raise ValueError(f"delta = {delta} must lie in (0, 1), and every = {every} be at least 1")
        self.delta, self.every = delta, every
        self._clear()

    def _clear(self) -> None:
        self._totals: list[list[float]] = [[]]
        """`[row]` totals of the buckets of 2^row values, the oldest first."""
        self._squares: list[list[float]] = [[]]
        """`[row]` sums of squared distances from the bucket's mean."""
        self._width, self._total, self._squared, self._seen = 0, 0.0, 0.0, 0
        self._recent, self._largest, self.kept = 0, 0.0, 0

    @property
    def budget(self) -> FalseAlarmBudget:
        return FalseAlarmBudget(kind="arl", value=self.every / self.delta)

    @property
    def statistic(self) -> float:
        """Largest |mean0 - mean1| / epsilon of the last test."""
        return self._largest

    @property
    def threshold(self) -> float:
        return 1.0

    @property
    def recent(self) -> int:
        return self._recent

    @property
    def width(self) -> int:
        """Number of values in the window."""
        return self._width

    @property
    def mean(self) -> float:
        """Mean of the window; 0 for an empty one."""
        return self._total / self._width if self._width else 0.0

    def update(self, value: float) -> bool:
        """Read a value; True if the window was cut. `recent` is then the length of the newer part of its clearest cut,
        `kept` the length of the window that the cuts left; and an empty window begins, as an alarm replaces the model
        whose errors are read."""
        self._insert(value)
        self._seen += 1
        if self._seen % self.every or self._width <= _GRACE:
            return False
        self._largest, recent = self._best_cut()
        if self._largest <= 1.0:
            return False
        first = self._largest
        while self._largest > 1.0:
            self._drop_oldest()
            self._largest, _ = self._best_cut()
        kept = self._width
        self._clear()
        self._recent, self._largest, self.kept = recent, first, kept
        return True

    def _insert(self, value: float) -> None:
        if self._width:
            distance = value - self._total / self._width
            self._squared += self._width * distance * distance / (self._width + 1)
        self._width += 1
        self._total += value
        totals, squares = self._totals[0], self._squares[0]
        totals.append(value)
        squares.append(0.0)
        if len(totals) > _PER_ROW:
            self._merge()

    def _merge(self) -> None:
        """Merge the two oldest buckets of every row that is too long into one of the next."""
        for row, (totals, squares) in enumerate(zip(self._totals, self._squares, strict=True)):
            if len(totals) <= _PER_ROW:
                return
            if row + 1 == len(self._totals):
                self._totals.append([])
                self._squares.append([])
            distance = (totals[0] - totals[1]) / (1 << row)
            self._totals[row + 1].append(totals[0] + totals[1])
            self._squares[row + 1].append(squares[0] + squares[1] + distance * distance * (1 << row) / 2)
            del totals[:2], squares[:2]

    def _best_cut(self) -> tuple[float, int]:
        """Largest |mean0 - mean1| / epsilon over the cuts, and the newer part of that cut; 0 where no cut leaves enough
        values on both sides."""
        width = self._width
        if width < 2 * _LEAST_PART:
            return 0.0, 0
        log = math.log(2 * math.log(width) / self.delta)
        spread, linear = 2 * self._squared / width * log, 2 / 3 * log
        older, total, largest, recent = 0, 0.0, 0.0, 0
        for row in range(len(self._totals) - 1, -1, -1):
            size = 1 << row
            for bucket in self._totals[row]:
                older += size
                total += bucket
                newer = width - older
                if newer < _LEAST_PART:
                    return largest, recent
                if older < _LEAST_PART:
                    continue
                inverse = 1 / (older - _LEAST_PART + 1) + 1 / (newer - _LEAST_PART + 1)
                epsilon = math.sqrt(spread * inverse) + linear * inverse
                ratio = abs(total / older - (self._total - total) / newer) / epsilon
                if ratio > largest:
                    largest, recent = ratio, newer
        return largest, recent

    def _drop_oldest(self) -> None:
        row = len(self._totals) - 1
        size, total, squares = 1 << row, self._totals[row].pop(0), self._squares[row].pop(0)
        self._width -= size
        self._total -= total
        distance = total / size - self._total / self._width
        self._squared -= squares + size * self._width * distance * distance / (size + self._width)
        while len(self._totals) > 1 and not self._totals[-1]:
            self._totals.pop()
            self._squares.pop()

    def state(self) -> State:
        return {
            "lengths": [len(row) for row in self._totals],
            "totals": np.array([total for row in self._totals for total in row]),
            "squares": np.array([square for row in self._squares for square in row]),
            "sums": np.array([self._total, self._squared, self._largest]),
            "width": self._width, "seen": self._seen, "recent": self._recent, "kept": self.kept, "delta": self.delta,
        }  # fmt: skip

    def restore(self, state: State) -> None:
        if number(state, "delta") != self.delta:
            raise DataError(f"the saved window has delta = {number(state, 'delta')}, this one {self.delta}")
        lengths = cast("list[int]", state["lengths"])
        totals = [float(value) for value in array(state, "totals")]
        squares = [float(value) for value in array(state, "squares")]
        self._totals, self._squares, at = [], [], 0
        for length in lengths:
            self._totals.append(totals[at : at + length])
            self._squares.append(squares[at : at + length])
            at += length
        self._total, self._squared, self._largest = (float(value) for value in array(state, "sums"))
        self._width, self._seen, self._recent = (integer(state, name) for name in ("width", "seen", "recent"))
        self.kept = integer(state, "kept")
