"""Page-Hinkley: a cumulative sum of standardised values that leaves its allowance behind."""

import math

import numpy as np

from hone.core.errors import DataError
from hone.core.state import State, array, integer
from hone.decide.estimators.drift.detector import FalseAlarmBudget

_OVERSHOOT = 1.166
"""Mean overshoot of both barriers of a random walk of standard normal steps (Siegmund, 1985)."""
_MARGIN = 1.3
"""Room for mean and standard deviation that are estimates, and for a little skew: both cost run length."""
_WARM_UP = 30
"""Values before the first test: mean and variance must be known before a value can be standardised."""


def cusum_run_length(threshold: float, allowance: float) -> float:
    """Average run length of a one-sided cumulative sum of standard normal values: (exp(2ab) - 2ab - 1) / (2 a^2) with
    allowance a and b = threshold + 1.166 (Siegmund, "Sequential Analysis", 1985)."""
    exponent = 2 * allowance * (threshold + _OVERSHOOT)
    return (math.expm1(exponent) - exponent) / (2 * allowance**2)


class PageHinkley:
    """Page-Hinkley on both sides (Page, "Continuous inspection schemes", 1954; Hinkley, 1971).

    A value is standardised by mean and standard deviation of all values before it, z. up = max(0, up + z - allowance),
    down = max(0, down - z - allowance); an alarm comes at max(up, down) >= threshold. The threshold follows from the
    declared average run length, for values whose sums are close to normal. Skewed ones need blocks: rewards of 10%
    raise 1.8 times as many false alarms as declared at a run length of 20,000.
    """

    def __init__(self, *, arl: float = 20_000.0, allowance: float = 0.15) -> None:
        if arl <= 1 or allowance <= 0:
            raise ValueError(f"arl = {arl} must be above 1 and allowance = {allowance} above 0")
        self.arl, self.allowance = arl, allowance
        low, high = 0.0, 1.0
        wanted = 2 * arl * _MARGIN  # two sides: each half as often
        while cusum_run_length(high, allowance) < wanted:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if cusum_run_length(middle, allowance) < wanted else (low, middle)
        self._threshold = high
        self._clear()

    def _clear(self) -> None:
        self._count, self._mean, self._squared = 0, 0.0, 0.0
        self._up, self._down, self._up_since, self._down_since = 0.0, 0.0, 0, 0
        self._recent, self._peak = 0, 0.0

    @property
    def budget(self) -> FalseAlarmBudget:
        return FalseAlarmBudget(kind="arl", value=self.arl)

    @property
    def statistic(self) -> float:
        return max(self._up, self._down, self._peak)

    @property
    def threshold(self) -> float:
        return self._threshold

    @property
    def recent(self) -> int:
        return self._recent

    def update(self, value: float) -> bool:
        count = self._count
        if count >= _WARM_UP and self._squared > 0:
            self._peak = 0.0
            z = (value - self._mean) / math.sqrt(self._squared / count)
            self._up = max(0.0, self._up + z - self.allowance)
            self._down = max(0.0, self._down - z - self.allowance)
            if self._up == 0.0:
                self._up_since = count + 1
            if self._down == 0.0:
                self._down_since = count + 1
            peak = max(self._up, self._down)
            if peak >= self._threshold:
                recent = count + 1 - (self._up_since if self._up >= self._down else self._down_since)
                self._clear()
                self._recent, self._peak = recent, peak
                return True
        self._count = count + 1
        distance = value - self._mean
        self._mean += distance / self._count
        self._squared += distance * (value - self._mean)
        return False

    def state(self) -> State:
        numbers = (self._mean, self._squared, self._up, self._down, self._peak, self._threshold)
        return {
            "numbers": np.array(numbers), "count": self._count, "recent": self._recent,
            "up_since": self._up_since, "down_since": self._down_since,
        }  # fmt: skip

    def restore(self, state: State) -> None:
        *numbers, threshold = (float(value) for value in array(state, "numbers"))
        if threshold != self._threshold:
            raise DataError(f"the saved detector has threshold {threshold}, this one {self._threshold}")
        self._mean, self._squared, self._up, self._down, self._peak = numbers
        self._count, self._recent = integer(state, "count"), integer(state, "recent")
        self._up_since, self._down_since = integer(state, "up_since"), integer(state, "down_since")
