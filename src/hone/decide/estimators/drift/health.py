"""Health of a service that decides: numbers that are not finite, stale outcomes, actions that collapse, memory that
grows."""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.state import State, array, integer, number
from hone.decide.estimators.drift.detector import FalseAlarmBudget

Floats = NDArray[np.float64]


class NonFiniteCheck:
    """Count of rows that hold NaN or an infinity. It never raises a false alarm: sound inputs have none."""

    def __init__(self) -> None:
        self.count, self.seen = 0, 0

    @property
    def budget(self) -> FalseAlarmBudget:
        return FalseAlarmBudget(kind="alpha", value=0.0)

    def update(self, values: Floats) -> bool:
        """Read numbers of any shape; True if one is not finite."""
        self.seen += 1
        if np.isfinite(values).all():
            return False
        self.count += 1
        return True

    def state(self) -> State:
        return {"count": self.count, "seen": self.seen}

    def restore(self, state: State) -> None:
        self.count, self.seen = integer(state, "count"), integer(state, "seen")


class StalenessCheck:
    """Alarm when nothing has arrived for `limit_s` seconds: outcomes, a new snapshot of a learner. Once for each gap.

    Where arrivals are a Poisson process of `rate` events per second, one gap is a false alarm with probability
    exp(-rate limit_s).
    """

    def __init__(self, limit_s: float, *, since_s: float) -> None:
        self.limit_s, self.last_s, self._told = limit_s, since_s, False

    def false_alarm(self, rate: float) -> FalseAlarmBudget:
        """Probability of a false alarm in one gap at `rate` arrivals per second."""
        return FalseAlarmBudget(kind="alpha", value=math.exp(-rate * self.limit_s))

    def arrived(self, at_s: float) -> None:
        """Note an arrival; an earlier time than the last one changes nothing."""
        if at_s > self.last_s:
            self.last_s, self._told = at_s, False

    def check(self, now_s: float) -> bool:
        """True if the gap has just become too long."""
        late = now_s - self.last_s > self.limit_s and not self._told
        self._told = self._told or late
        return late

    def state(self) -> State:
        return {"last_s": self.last_s, "told": self._told}

    def restore(self, state: State) -> None:
        self.last_s, self._told = number(state, "last_s"), bool(state["told"])


class ActionEntropy:
    """Test of each window of `window` decisions: is the entropy of the executed actions below `least_nats`?

    H = -sum p ln p + (K - 1) / 2n (Miller & Madow, 1955), with the variance of ln p over n. The window is judged as
    collapsed where H + z_alpha sqrt(var(ln p) / n) is still below `least_nats`: a policy of at least that entropy
    raises a false alarm with probability about `alpha`.
    """

    def __init__(self, *, least_nats: float, window: int = 500, alpha: float = 1e-3) -> None:
        self.least_nats, self.window, self.alpha = least_nats, window, alpha
        self._quantile = NormalDist().inv_cdf(1 - alpha)
        self._counts: dict[int, int] = {}
        self._seen = 0
        self.entropy = math.nan

    @property
    def budget(self) -> FalseAlarmBudget:
        return FalseAlarmBudget(kind="alpha", value=self.alpha)

    def update(self, action: int) -> bool:
        """Read an executed action; True at the end of a window that has collapsed. `entropy` is then its entropy."""
        self._counts[action] = self._counts.get(action, 0) + 1
        self._seen += 1
        if self._seen < self.window:
            return False
        counts = np.array(list(self._counts.values()), np.float64)
        self._counts, self._seen = {}, 0
        share = counts / counts.sum()
        surprise = -np.log(share)
        plain = float((share * surprise).sum())
        spread = math.sqrt(float((share * (surprise - plain) ** 2).sum()) / self.window)
        self.entropy = plain + (len(counts) - 1) / (2 * self.window)
        return self.entropy + self._quantile * spread < self.least_nats

    def state(self) -> State:
        return {
            "actions": list(self._counts), "counts": list(self._counts.values()), "seen": self._seen,
            "entropy": self.entropy,
        }  # fmt: skip

    def restore(self, state: State) -> None:
        actions, counts = state["actions"], state["counts"]
        if not isinstance(actions, list) or not isinstance(counts, list):
            raise DataError("the saved counts of actions are no lists")
        self._counts = {int(action): int(count) for action, count in zip(actions, counts, strict=True)}
        self._seen, self.entropy = integer(state, "seen"), number(state, "entropy")


class GrowthCheck:
    """Test of a quantity's slope over the last `samples` readings, such as resident memory over thousands of decisions.

    Least squares: growing if slope - z_alpha (its standard error) is above `bound` per unit of x. A quantity with a
    slope of at most `bound` and independent errors raises a false alarm with probability about `alpha` per test.
    """

    def __init__(self, *, bound: float, samples: int = 64, alpha: float = 1e-4) -> None:
        self.bound, self.samples, self.alpha = bound, samples, alpha
        self._quantile = NormalDist().inv_cdf(1 - alpha)
        self._x, self._y = np.zeros(samples), np.zeros(samples)
        self._count = 0
        self.slope = math.nan

    @property
    def budget(self) -> FalseAlarmBudget:
        return FalseAlarmBudget(kind="alpha", value=self.alpha)

    def update(self, x: float, y: float) -> bool:
        """Read y at x; True if the last `samples` readings grow. They are then forgotten."""
        self._x[self._count], self._y[self._count] = x, y
        self._count += 1
        if self._count < self.samples:
            return False
        self._count = 0
        away = self._x - self._x.mean()
        square = float((away * away).sum())
        if square == 0:
            return False
        self.slope = float((away * self._y).sum()) / square
        left = self._y - self._y.mean() - self.slope * away
        error = math.sqrt(float((left * left).sum()) / (self.samples - 2) / square)
        return self.slope - self._quantile * error > self.bound

    def state(self) -> State:
        return {"x": self._x[: self._count].copy(), "y": self._y[: self._count].copy(), "slope": self.slope}

    def restore(self, state: State) -> None:
        x, y = array(state, "x"), array(state, "y")
        self._count = len(x)
        self._x[: self._count], self._y[: self._count] = x, y
        self.slope = number(state, "slope")
