"""E-detectors: evidence against "nothing has changed" that grows like a bet, with an exact average run length.

Shin, Ramdas & Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", 2022.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hone.core.errors import DataError
from hone.core.random import uniforms
from hone.core.state import State, array, integer
from hone.decide.estimators.drift.detector import FalseAlarmBudget

# ---------------------------------------------------------------------------------------------------------------- ranks


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


# ----------------------------------------------------------------------------------------------------------- e detector


STAKES = (0.1, 0.3, 0.6, 0.9)
"""Shares of the stake that is surely not ruinous; small ones find small changes, large ones find large changes fast."""
_CHUNK = 512


class ChangeBets:
    """Shiryaev-Roberts sums of bets on both directions.

    For values x in [-1, 1] of mean 0 each bet is e = 1 + stake x >= 0 with mean 1. R = (R + 1) e is the evidence of all
    moments at which the change may have begun; the statistic is the mean of R over the bets. It has mean n after n
    values while nothing changes, so it reaches a threshold b after b values or more on average (optional stopping).
    C = max(C, 1) e finds the moment: the last one at which C was at most 1.
    """

    def __init__(self, threshold: float, stakes: Sequence[float]) -> None:
        self.threshold = threshold
        self.stakes = tuple(sign * stake for stake in stakes for sign in (1, -1))
        self.clear()

    def clear(self) -> None:
        """Forget all evidence."""
        self._sums = [0.0] * len(self.stakes)
        self._paths = [1.0] * len(self.stakes)
        self._since = [0] * len(self.stakes)
        self._count, self.statistic, self.recent = 0, 0.0, 0

    def update(self, up: float, down: float) -> bool:
        """Bet on a rise by `up` and on a fall by `down`, in [-1, 1] each; True if the evidence reaches the threshold.
        The evidence starts anew then."""
        self._count += 1
        total = 0.0
        for k, stake in enumerate(self.stakes):
            factor = 1.0 + stake * up if stake > 0 else 1.0 - stake * down
            self._sums[k] = (self._sums[k] + 1.0) * factor
            path = self._paths[k] * factor
            if path <= 1.0:
                path, self._since[k] = 1.0, self._count
            self._paths[k] = path
            total += self._sums[k]
        self.statistic = total / len(self.stakes)
        if self.statistic < self.threshold:
            return False
        best = max(range(len(self.stakes)), key=self._sums.__getitem__)
        recent, statistic = self._count - self._since[best], self.statistic
        self.clear()
        self.recent, self.statistic = recent, statistic
        return True

    def state(self) -> State:
        return {
            "sums": np.array(self._sums), "paths": np.array(self._paths), "since": list(self._since),
            "count": self._count, "recent": self.recent, "statistic": self.statistic, "threshold": self.threshold,
        }  # fmt: skip

    def restore(self, state: State) -> None:
        """Raises DataError where the saved evidence was gathered by another threshold or other bets."""
        sums, paths = (array(state, name).tolist() for name in ("sums", "paths"))
        if state["threshold"] != self.threshold or len(sums) != len(self.stakes):
            raise DataError(f"the saved detector has threshold {state['threshold']}, this one {self.threshold}")
        self._sums, self._paths = [float(value) for value in sums], [float(value) for value in paths]
        self._since = [int(value) for value in array({"since": np.array(state["since"])}, "since")]
        self._count, self.recent = integer(state, "count"), integer(state, "recent")
        self.statistic = float(np.array(state["statistic"]))


class MeanDetector:
    """E-detector of a change of the mean from a known one, for values in [`low`, `high`].

    x = (value - mean) / (high - low); a rise is bet on by x - tolerance, a fall by -x - tolerance, where `tolerance` is
    the uncertainty of `mean` in the same units. The average run length is at least `arl`, exactly, for any distribution
    whose conditional mean stays within mean +- tolerance; the values need not be independent beyond that.
    """

    def __init__(self, *, arl: float, mean: float, low: float, high: float, tolerance: float = 0.0) -> None:
        width = high - low
        if not low <= mean <= high or not 0 <= tolerance < width:
            raise ValueError(f"mean {mean} must lie in [{low}, {high}], and tolerance {tolerance} below its width")
        self.arl, self.mean, self.low, self.high, self.tolerance = arl, mean, low, high, tolerance / width
        self._bets = ChangeBets(arl, [stake / (1 + self.tolerance) for stake in STAKES])

    @property
    def budget(self) -> FalseAlarmBudget:
        return FalseAlarmBudget(kind="arl", value=self.arl)

    @property
    def statistic(self) -> float:
        return self._bets.statistic

    @property
    def threshold(self) -> float:
        return self.arl

    @property
    def recent(self) -> int:
        return self._bets.recent

    def update(self, value: float) -> bool:
        """Raises ValueError for a value out of its range: the declared run length would be void."""
        if not self.low <= value <= self.high:
            raise ValueError(f"value {value} is outside [{self.low}, {self.high}]")
        x = (value - self.mean) / (self.high - self.low)
        return self._bets.update(x - self.tolerance, -x - self.tolerance)

    def state(self) -> State:
        return self._bets.state()

    def restore(self, state: State) -> None:
        self._bets.restore(state)


class ConformalDetector:
    """E-detector of any change of level, for values of any scale whose mean nobody knows (Vovk, "Testing randomness
    online", 2021).

    The rank of each value among those before it, with ties broken at random, is uniform while the values are
    exchangeable, and ranks are independent of each other: x = 2 rank - 1 has mean 0 and is bet on as in `ChangeBets`.
    So the average run length is at least `arl` without an estimate of the mean. Beyond `memory` values, ranks are among
    a uniform sample of them. An alarm clears the memory: the model that is read has changed too.
    """

    def __init__(self, *, arl: float = 20_000.0, memory: int = 4096, seed: int = 0) -> None:
        if arl <= 1 or memory < 2:
            raise ValueError(f"arl = {arl} must be above 1, and memory = {memory} at least 2")
        self.arl, self.seed = arl, seed
        self._bets = ChangeBets(arl, STAKES)
        self._sample = RankSample(memory)
        self._drawn = 0

    @property
    def budget(self) -> FalseAlarmBudget:
        return FalseAlarmBudget(kind="arl", value=self.arl)

    @property
    def statistic(self) -> float:
        return self._bets.statistic

    @property
    def threshold(self) -> float:
        return self.arl

    @property
    def recent(self) -> int:
        return self._bets.recent

    def update(self, value: float) -> bool:
        chunk, place = divmod(self._drawn, _CHUNK)
        draws = _chunk(self.seed, chunk)
        self._drawn += 1
        x = 2.0 * self._sample.rank(value, draws[place], draws[_CHUNK + place]) - 1.0
        if not self._bets.update(x, -x):
            return False
        self._sample.clear()
        return True

    def state(self) -> State:
        return {"bets": self._bets.state(), "sample": self._sample.state(), "drawn": self._drawn, "seed": self.seed}

    def restore(self, state: State) -> None:
        bets, sample = state["bets"], state["sample"]
        if integer(state, "seed") != self.seed or not isinstance(bets, dict) or not isinstance(sample, dict):
            raise DataError(f"the saved detector has seed {state['seed']}, this one {self.seed}")
        self._bets.restore(bets)
        self._sample.restore(sample)
        self._drawn = integer(state, "drawn")


@lru_cache(maxsize=64)
def _chunk(seed: int, chunk: int) -> list[float]:
    """Uniform numbers for 512 values: the first half breaks ties, the second half chooses the sample."""
    return uniforms(seed, "drift ranks", chunk, count=2 * _CHUNK).tolist()
