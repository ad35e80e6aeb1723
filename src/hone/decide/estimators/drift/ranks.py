"""Ranks of values among a bounded uniform sample of the values before them."""

from bisect import bisect_left, bisect_right

import numpy as np

from hone.core.errors import DataError
from hone.core.state import State, array, integer


class RankSample:
    """Sorted sample of at most `memory` values: all of them, and a uniform one of all (reservoir) beyond that."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.clear()

    def clear(self) -> None:
        """Forget all values."""
        self._sorted: list[float] = []
        self._seen = 0

    def rank(self, value: float, tie: float, place: float) -> float:
        """Rank of a value among the sample and itself, in [0, 1]: (smaller + tie (equal + 1)) / (sample + 1). It is
        uniform for exchangeable values where `tie` is. Then the value may enter the sample, as `place`, uniform too,
        says."""
        values = self._sorted
        left = bisect_left(values, value)
        right = bisect_right(values, value, left)
        rank = (left + tie * (right - left + 1)) / (len(values) + 1)
        self._seen += 1
        if len(values) < self.memory:
            values.insert(right, value)
        elif (slot := int(place * self._seen)) < self.memory:
            del values[slot]
            values.insert(right - (slot < right), value)
        return rank

    def state(self) -> State:
        return {"sorted": np.array(self._sorted, np.float64), "seen": self._seen, "memory": self.memory}

    def restore(self, state: State) -> None:
        """Raises DataError for the state of a sample of another size."""
        if integer(state, "memory") != self.memory:
            raise DataError(f"the saved sample holds {state['memory']} values at most, this one {self.memory}")
        self._sorted = [float(value) for value in array(state, "sorted")]
        self._seen = integer(state, "seen")
