"""Samples of streams of numbers: ranks among them, how far a value is believed, and the shape of the distribution.

Seasons: a stream without its daily cycle, as the errors of a forecast that learns the cycle while it goes.
"""

import math
from array import array as FloatArray
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.random import uniforms
from hone.core.state import State, array, integer, substate

Floats = NDArray[np.float64]
CHUNK = 512
MEMORY = 4096
"""Values of a sample that stands for all values of a long stream."""


@lru_cache(maxsize=64)
def uniform_draws(seed: int, chunk: int) -> list[float]:
    """Uniform numbers for 512 values: the first half breaks ties, the second half chooses the sample."""
    return uniforms(seed, "drift ranks", chunk, count=2 * CHUNK).tolist()


class RankSample:
    """Sorted sample of at most `memory` values: all of them, and a uniform one of all (reservoir) beyond that."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.clear()

    def clear(self) -> None:
        """Forget all values."""
        self._sorted = FloatArray("d")
        self._seen = 0

    @property
    def values(self) -> Sequence[float]:
        """The sample, sorted."""
        return self._sorted

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
        self._sorted = FloatArray("d", array(state, "sorted").tolist())
        self._seen = integer(state, "seen")


# -------------------------------------------------------------------------------------------------------------- clipped


_FIRST_LOOK = 30
_GROWTH = 1.25
"""Growth of the number of values between two looks at their distribution."""
_BELIEVED = 5
"""Values of a sample that are at least as extreme as the bound beyond which values are clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SampleShape:
    """Moments of a clipped sample."""

    count: int
    mean: float
    variance: float
    """0 where all values are alike, or too large for numbers."""
    skewness: float
    excess_kurtosis: float


class ClippedSample:
    """Uniform sample of at most 4,096 values, and the bounds that it sets to values: its fifth smallest and largest, at
    its last look. One value of 1e300 moves them no further than four others do."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._sample = RankSample(MEMORY)
        self._drawn = 0
        self.clear()

    def clear(self) -> None:
        """Forget all values."""
        self._sample.clear()
        self._count, self._next = 0, _FIRST_LOOK
        self._low, self._high = -math.inf, math.inf

    def clipped(self, value: float) -> float:
        """The value, or the bound that it is beyond."""
        return min(max(value, self._low), self._high)

    def add(self, value: float) -> None:
        """Take a finite value."""
        chunk, place = divmod(self._drawn, CHUNK)
        self._sample.rank(value, 0.5, uniform_draws(self.seed, chunk)[CHUNK + place])
        self._drawn += 1
        self._count += 1

    def due(self) -> bool:
        """True if there are a quarter more values than at the last look."""
        return self._count >= self._next

    def look(self) -> _SampleShape:
        """Set the bounds anew -> the shape of the sample within them."""
        values = np.array(self._sample.values)
        kept = min(_BELIEVED, 2 + len(values) // 40)
        self._low, self._high = float(values[kept - 1]), float(values[-kept])
        self._next = max(self._count + 1, int(self._count * _GROWTH))
        with np.errstate(all="ignore"):
            away = np.clip(values, self._low, self._high)
            mean = float(away.mean())
            away = away - mean
            variance = float(np.square(away).mean())
            third, fourth = float((away**3).mean()), float((away**4).mean())
        if not 0 < variance < math.inf or not math.isfinite(third + fourth) or not math.isfinite(mean):
            level = mean if math.isfinite(mean) else 0.0
            return _SampleShape(count=len(values), mean=level, variance=0.0, skewness=0.0, excess_kurtosis=0.0)
        return _SampleShape(count=len(values), mean=mean, variance=variance, skewness=third / variance**1.5,
                           excess_kurtosis=fourth / variance**2 - 3)  # fmt: skip

    def state(self) -> State:
        return {"sample": self._sample.state(), "drawn": self._drawn, "count": self._count, "next": self._next,
                "bounds": np.array([self._low, self._high])}  # fmt: skip

    def restore(self, state: State) -> None:
        self._sample.restore(substate(state, "sample"))
        self._drawn, self._count, self._next = (integer(state, name) for name in ("drawn", "count", "next"))
        self._low, self._high = (float(value) for value in array(state, "bounds"))


# -------------------------------------------------------------------------------------------------------------- seasons


_HARMONICS = 16
_CYCLE_VARIANCE = 0.2
"""Prior variance of the first harmonic, beside a noise of variance 1. Larger ones take a small change on the first day
for the cycle, smaller ones the cycle for a change."""
_LEVEL_VARIANCE = 1e6
"""Variance of an unknown level, beside a noise of variance 1."""
_LEAST_VARIANCE = 0.2
"""Least variance of a time of the cycle, as a share of the mean one."""
SIGNIFICANT_NATS = 10.0
"""Evidence of a cycle from which on it counts as one."""


class SeasonalErrors:
    """Errors of the forecast of a stream with a cycle of `period_s` seconds: independent, of mean 0 and variance near 1
    while level and cycle stay as they are.

    The value is modelled as level + sum_h a_h cos(h w t) + b_h sin(h w t), 16 harmonics of prior variance 0.2 / h^3
    beside the noise, and learnt by recursive least squares. An error is divided by its standard deviation, which is
    large where the forecast is uncertain (Brown, Durbin & Evans, 1975), so that a first day looks like others.
    The variance follows the cycle, too, as that of rare rewards does. Values are clipped as `ClippedSample` says.

    With `period_s` 0 there is no cycle, but a level alone: what differs from it on the first day is a change.
    """

    def __init__(self, period_s: float, *, seed: int = 0) -> None:
        self.period_s = period_s
        self._sample = ClippedSample(seed)
        orders = np.arange(1, _HARMONICS + 1 if period_s else 1)
        self._rates = 2 * math.pi / (period_s or 1.0) * orders
        squares = _CYCLE_VARIANCE / orders**3
        self._uncertain: Floats = np.diag(np.concatenate([[_LEVEL_VARIANCE], squares, squares]))
        self._weights: Floats = np.zeros((1 + 2 * len(orders), 2))
        """Coefficients `[level and cycle, 2]` of the value, and of its squared error."""
        self._count, self._mean, self._variance, self._level_variance = 0, 0.0, 0.0, 0.0
        self._since_s, self.evidence_nats = math.inf, 0.0
        """Evidence of a cycle beside a level that stays, from the second cycle on."""
        self._first: list[tuple[float, float]] = []
        """The first values and their times, which are learnt from once it is known how far they are believed."""

    def clipped(self, value: float) -> float:
        """The value, or the bound that it is beyond."""
        return self._sample.clipped(value)

    def update(self, value: float, at_s: float) -> float:
        """Read a finite value of a finite time -> its error; 0 for the first 30."""
        if self._sample.due():
            self._sample.look()
            for earlier, time_s in self._first:
                self._learn(self._sample.clipped(earlier), time_s)
            self._first = []
        self._sample.add(value)
        if not self._count:
            self._first.append((value, at_s))
            return 0.0
        return self._learn(self._sample.clipped(value), at_s)

    def _learn(self, clipped: float, at_s: float) -> float:
        angles = self._rates * (at_s % (self.period_s or 1.0))
        row = np.concatenate([[1.0], np.cos(angles), np.sin(angles)])
        gain = self._uncertain @ row
        spread = 1.0 + float(row @ gain)
        expected, variance = (float(one) for one in row @ self._weights)
        error = clipped - expected
        square = error * error / spread
        self._since_s = min(self._since_s, at_s)
        self._compare(clipped, square, spread, at_s)
        self._count += 1
        known = max(variance, _LEAST_VARIANCE * self._variance) if self._count > _FIRST_LOOK else self._variance
        self._variance += (square - self._variance) / self._count
        self._weights += np.multiply.outer(gain / spread, (error, square - variance))
        self._uncertain -= np.multiply.outer(gain, gain) / spread
        return error / math.sqrt(spread * known) if known > 0 else 0.0

    def _compare(self, clipped: float, square: float, spread: float, at_s: float) -> None:
        """Add the log ratio of the densities that both forecasts gave the value: with the cycle, and with a level."""
        if self._count:
            level_spread = 1 + 1 / self._count
            level_square = (clipped - self._mean) ** 2 / level_spread
            if self.period_s and at_s - self._since_s > self.period_s and min(self._variance, self._level_variance) > 0:
                ratio = spread * self._variance / (level_spread * self._level_variance)
                gap = level_square / self._level_variance - square / self._variance
                self.evidence_nats += 0.5 * (gap - math.log(ratio))
            self._level_variance += (level_square - self._level_variance) / self._count
        self._mean += (clipped - self._mean) / (self._count + 1)

    def forget_level(self) -> None:
        """Learn the level anew, as after a change; the cycle stays."""
        self._uncertain[0, 0] += 100.0

    def state(self) -> State:
        numbers = (self._mean, self._variance, self._level_variance, self._since_s, self.evidence_nats, self.period_s)
        return {"sample": self._sample.state(), "numbers": np.array(numbers), "count": self._count,
                "first": np.array(self._first, np.float64).reshape(-1, 2), "uncertain": self._uncertain.copy(),
                "weights": self._weights.copy()}  # fmt: skip

    def restore(self, state: State) -> None:
        *numbers, period_s = (float(value) for value in array(state, "numbers"))
        if period_s != self.period_s:
            raise DataError(f"the saved cycle has {period_s:g} s, this one {self.period_s:g} s")
        self._mean, self._variance, self._level_variance, self._since_s, self.evidence_nats = numbers
        self._count = integer(state, "count")
        self._first = [(float(value), float(time_s)) for value, time_s in array(state, "first")]
        self._uncertain = array(state, "uncertain").astype(np.float64)
        self._weights = array(state, "weights").astype(np.float64)
        self._sample.restore(substate(state, "sample"))
