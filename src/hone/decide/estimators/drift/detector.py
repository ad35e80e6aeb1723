"""Detectors of drift in streams of numbers: Page-Hinkley, ADWIN, e-detectors, and means of blocks for streams that
correlate with themselves.

ADWIN: a window of the latest values that grows while they agree and drops its older part when they do not.

Bifet & Gavaldà, "Learning from time-changing data with adaptive windowing", 2007. The window is kept as an exponential
histogram: at most `per_row + 1` buckets of each of the sizes 1, 2, 4 ..., each with its total and its variance, so that
n values take O(log n) memory.

E-detectors: evidence against "nothing has changed" that grows like a bet, with an exact average run length.

Shin, Ramdas & Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", 2022.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, cast

import numpy as np

from hone.core.errors import DataError
from hone.core.state import State, array, integer, number, substate
from hone.decide.estimators.drift.samples import CHUNK, MEMORY, ClippedSample, RankSample, uniform_draws


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
        """Read a value; True if the stream is judged to have changed. The detector then starts anew. A value that is
        not finite changes nothing."""
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
        if not math.isfinite(value):
            return False
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


# --------------------------------------------------------------------------------------------------------- page hinkley


_OVERSHOOT = 1.166
"""Mean overshoot of both barriers of a random walk of standard normal steps (Siegmund, 1985)."""
_MARGIN = 1.3
"""Room for mean, standard deviation and skewness that are estimates: an error of theirs costs run length."""
_WARM_UP = 30
"""Values before the first test: mean and variance must be known before a value can be standardised."""
_SHAPE_WEIGHT = 20.0
"""Values after which a distribution's own skewness counts as much as that before the last alarm, or that of none."""


def cusum_run_length(threshold: float, allowance: float, *, exponent: float | None = None) -> float:
    """Average run length of a one-sided cumulative sum of standardised values z.

    (exp(tb) - tb - 1) / (t a) with the allowance a, b = threshold + 1.166, and t the `exponent` at which the mean of
    exp(t (z - a)) is 1; without one it is that of normal values, 2a (Siegmund, "Sequential Analysis", 1985).
    """
    slope = 2 * allowance if exponent is None else exponent
    power = slope * (threshold + _OVERSHOOT)
    return (math.expm1(power) - power) / (slope * allowance)


def cusum_exponent(allowance: float, skewness: float, excess_kurtosis: float) -> float:
    """The positive t at which the mean of exp(t (z - allowance)) is 1, for standardised values z.

    By the first four cumulants: t/2 + g t^2/6 + k t^3/24 = allowance, with skewness g and excess kurtosis k. One below
    0 counts as 0: t is then rather too small, and the threshold that follows from it too high.
    """
    third, fourth = max(skewness, 0.0) / 6, max(excess_kurtosis, 0.0) / 24

    def cumulants_over_t(t: float) -> float:
        return t / 2 + third * t * t + fourth * t**3

    return _solve(cumulants_over_t, allowance, 2 * allowance)


def _solve(rising: Callable[[float], float], wanted: float, high: float) -> float:
    low = 0.0
    while rising(high) < wanted:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return high


class PageHinkley:
    """Page-Hinkley on both sides (Page, "Continuous inspection schemes", 1954; Hinkley, 1971).

    A value is standardised by mean and standard deviation of all values before it, z. up = max(0, up + z - allowance),
    down = max(0, down - z - allowance); an alarm comes where one of them reaches its threshold. The thresholds follow
    from the declared average run length and from skewness and kurtosis of the values, for independent values of any
    distribution: a value beyond the fifth largest or smallest of a sample of 4,096 counts as that one. Between alarms
    the shape is estimated anew whenever there are a quarter more values; what was known of it outlasts an alarm.

    `least_scale` is the least standard deviation that is believed, where values have a known scale. A value that is not
    finite changes nothing.
    """

    def __init__(
        self, *, arl: float = 20_000.0, allowance: float = 0.15, least_scale: float = 0.0, seed: int = 0
    ) -> None:
        if arl <= 1 or allowance <= 0:
            raise ValueError(f"arl = {arl} must be above 1 and allowance = {allowance} above 0")
        self.arl, self.allowance, self.least_scale, self.seed = arl, allowance, least_scale, seed
        self._sample = ClippedSample(seed)
        self._skewness, self._kurtosis = 0.0, 0.0
        self._set_thresholds()
        self._clear()

    def _clear(self) -> None:
        self._sample.clear()
        self._count, self._mean, self._squared = 0, 0.0, 0.0
        self._up, self._down, self._up_since, self._down_since = 0.0, 0.0, 0, 0
        self._recent, self._peak = 0, 0.0

    def _set_thresholds(self) -> None:
        self._thresholds = list[float]()
        for sign in (1, -1):
            exponent = cusum_exponent(self.allowance, sign * self._skewness, self._kurtosis)
            length = partial(cusum_run_length, allowance=self.allowance, exponent=exponent)
            self._thresholds.append(_solve(length, 2 * self.arl * _MARGIN, 1.0))  # two sides: each half as often

    @property
    def budget(self) -> FalseAlarmBudget:
        return FalseAlarmBudget(kind="arl", value=self.arl)

    @property
    def statistic(self) -> float:
        """The larger of both sums, each as a share of its threshold."""
        return max(self._up / self._thresholds[0], self._down / self._thresholds[1], self._peak)

    @property
    def threshold(self) -> float:
        return 1.0

    @property
    def recent(self) -> int:
        return self._recent

    def update(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        count = self._count
        if self._sample.due():
            self._estimate_shape()
        clipped = self._sample.clipped(value)
        scale = max(math.sqrt(self._squared / count), self.least_scale) if count >= _WARM_UP else 0.0
        if 0 < scale < math.inf:
            self._peak = 0.0
            z = (clipped - self._mean) / scale
            self._up = max(0.0, self._up + z - self.allowance)
            self._down = max(0.0, self._down - z - self.allowance)
            if self._up == 0.0:
                self._up_since = count + 1
            if self._down == 0.0:
                self._down_since = count + 1
            peak = self.statistic
            if peak >= 1.0:
                rose = self._up / self._thresholds[0] >= self._down / self._thresholds[1]
                recent = count + 1 - (self._up_since if rose else self._down_since)
                self._clear()
                self._recent, self._peak = recent, peak
                return True
        self._count = count + 1
        distance = clipped - self._mean
        self._mean += distance / self._count
        self._squared += distance * (clipped - self._mean)
        self._sample.add(value)
        return False

    def _estimate_shape(self) -> None:
        """Mean, variance and shape of the sample as it is now, clipped."""
        shape = self._sample.look()
        if self._count == shape.count:  # the sample is all values, of which some were not clipped yet
            self._mean, self._squared = shape.mean, shape.variance * self._count
        if shape.variance > 0:
            own = shape.count / (shape.count + _SHAPE_WEIGHT)
            self._skewness += own * (shape.skewness - self._skewness)
            self._kurtosis += own * (shape.excess_kurtosis - self._kurtosis)
            self._set_thresholds()

    def state(self) -> State:
        numbers = (self._mean, self._squared, self._up, self._down, self._peak, self._skewness, self._kurtosis,
                   self.arl)  # fmt: skip
        return {
            "numbers": np.array(numbers), "count": self._count, "recent": self._recent,
            "up_since": self._up_since, "down_since": self._down_since, "sample": self._sample.state(),
        }  # fmt: skip

    def restore(self, state: State) -> None:
        *numbers, arl = (float(value) for value in array(state, "numbers"))
        if arl != self.arl or len(numbers) != 7:
            raise DataError(
                f"the saved detector has the threshold of a run length of {arl:g}, this one of {self.arl:g}"
            )
        self._mean, self._squared, self._up, self._down, self._peak, self._skewness, self._kurtosis = numbers
        self._count, self._recent = integer(state, "count"), integer(state, "recent")
        self._up_since, self._down_since = integer(state, "up_since"), integer(state, "down_since")
        self._sample.restore(substate(state, "sample"))
        self._set_thresholds()


# ------------------------------------------------------------------------------------------------------ adaptive window


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
        if not math.isfinite(value):
            return False
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


# ----------------------------------------------------------------------------------------------------------- e detector


STAKES = (0.1, 0.3, 0.6, 0.9)
"""Shares of the stake that is surely not ruinous; small ones find small changes, large ones find large changes fast."""


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


class _BettingDetector:
    """Detector that bets on a rise and on a fall, and guarantees an average run length."""

    arl: float
    _bets: ChangeBets

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


class MeanDetector(_BettingDetector):
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


class ConformalDetector(_BettingDetector):
    """E-detector of any change of level, for values of any scale whose mean nobody knows (Vovk, "Testing randomness
    online", 2021).

    The rank of each value among those before it, with ties broken at random, is uniform while the values are
    exchangeable, and ranks are independent of each other: x = 2 rank - 1 has mean 0 and is bet on as in `ChangeBets`.
    So the average run length is at least `arl` without an estimate of the mean. Beyond `memory` values, ranks are among
    a uniform sample of them. An alarm clears the memory: the model that is read has changed too.

    Values that correlate with their neighbours, such as the residuals of a model that learns, void the run length.
    `neighbour_errors` tells whether ranks do.
    """

    def __init__(self, *, arl: float = 20_000.0, memory: int = MEMORY, seed: int = 0) -> None:
        if arl <= 1 or memory < 2:
            raise ValueError(f"arl = {arl} must be above 1, and memory = {memory} at least 2")
        self.arl, self.seed = arl, seed
        self._bets = ChangeBets(arl, STAKES)
        self._sample = RankSample(memory)
        self._drawn, self._pairs, self._together, self._last = 0, 0, 0.0, 0.0

    def update(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        chunk, place = divmod(self._drawn, CHUNK)
        draws = uniform_draws(self.seed, chunk)
        self._drawn += 1
        x = 2.0 * self._sample.rank(value, draws[place], draws[CHUNK + place]) - 1.0
        self._together += x * self._last
        self._pairs, self._last = self._pairs + 1, x
        if not self._bets.update(x, -x):
            return False
        self._sample.clear()
        return True

    @property
    def neighbour_errors(self) -> float:
        """Sum of products of neighbouring ranks, in standard errors of independent ones. A change adds 1 or 2."""
        return 3.0 * self._together / math.sqrt(self._pairs) if self._pairs > 0 else 0.0

    def state(self) -> State:
        return {"bets": self._bets.state(), "sample": self._sample.state(), "drawn": self._drawn, "seed": self.seed,
                "pairs": self._pairs, "sums": np.array([self._together, self._last])}  # fmt: skip

    def restore(self, state: State) -> None:
        bets, sample = state["bets"], state["sample"]
        if integer(state, "seed") != self.seed or not isinstance(bets, dict) or not isinstance(sample, dict):
            raise DataError(f"the saved detector has seed {state['seed']}, this one {self.seed}")
        self._bets.restore(bets)
        self._sample.restore(sample)
        self._drawn, self._pairs = integer(state, "drawn"), integer(state, "pairs")
        self._together, self._last = (float(value) for value in array(state, "sums"))
