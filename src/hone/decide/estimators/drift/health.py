"""Health of a service that decides: numbers that are not finite, stale outcomes, actions that collapse, memory that
grows.

Drift of inputs: each feature's latest window against a reference, by Kolmogorov-Smirnov and by the population
stability index.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
        if math.isfinite(at_s) and not at_s <= self.last_s:
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
        """Read y at x; True if the last `samples` readings grow. They are then forgotten. Numbers that are not finite
        change nothing."""
        if not math.isfinite(x) or not math.isfinite(y):
            return False
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


# ------------------------------------------------------------------------------------------------------------- features


_TERMS = 100
_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShift:
    """Comparison of one feature's window with the reference."""

    feature: str
    ks: float
    """Largest distance of the two distribution functions."""
    p_value: float
    """Probability of such a distance or a larger one while nothing changes."""
    psi: float
    """Population stability index over ten bins that the reference fills equally; by convention, 0.1 is worth a look and
    0.25 is a shift."""
    changed: bool


def kolmogorov_tail(distance: float, first: int, second: int) -> float:
    """P-value of a two-sample Kolmogorov-Smirnov distance: 2 sum_k (-1)^(k-1) exp(-2 k^2 t^2), t = (sqrt(n) + 0.12 +
    0.11 / sqrt(n)) distance, n = first second / (first + second) (Stephens, 1970)."""
    root = math.sqrt(first * second / (first + second))
    t = (root + 0.12 + 0.11 / root) * distance
    if t < 0.2:
        return 1.0
    total = sum((-1) ** (k - 1) * math.exp(-2.0 * k * k * t * t) for k in range(1, _TERMS))
    return min(1.0, max(0.0, 2.0 * total))


def ks_distance(reference: Floats, window: Floats) -> float:
    """Largest distance of the empirical distribution functions of two sorted samples `[n]`, `[m]`.

    Between two values of the window its function is constant and the reference's rises, so that the distance is
    largest at a value of the window, or just before one, or after the last: m log n steps.
    """
    n, m = len(reference), len(window)
    at = np.searchsorted(reference, window, side="right") / n - np.searchsorted(window, window, side="right") / m
    before = np.searchsorted(reference, window, side="left") / n - np.searchsorted(window, window, side="left") / m
    return float(max(np.abs(at).max(), np.abs(before).max()))


def stability_index(edges: Floats, reference_share: Floats, window: Floats) -> float:
    """Population stability index: sum (p - q) ln(p / q) over bins with half a count added to each, for inner `edges`
    `[B-1]` and the reference's shares q `[B]`."""
    counts = np.bincount(np.searchsorted(edges, window, side="right"), minlength=len(edges) + 1) + 0.5
    share = counts / counts.sum()
    return float(((share - reference_share) * np.log(share / reference_share)).sum())


class FeatureWindows:
    """Tests of every feature at the end of each window of `window` decisions, against a reference `[n, d]`.

    A feature has changed if its Kolmogorov-Smirnov p-value is below `alpha / d`: one window raises a false alarm with
    probability at most `alpha`, by Bonferroni over the d features. The stability index tells the size of the shift and
    decides nothing: with few decisions it is large by chance.
    """

    def __init__(self, reference: Floats, names: Sequence[str], *, window: int = 500, alpha: float = 1e-3) -> None:
        if reference.ndim != 2 or reference.shape[1] != len(names) or len(reference) < 2:
            raise ValueError(f"a reference of shape {reference.shape} does not fit {len(names)} features")
        if window < 2 or not 0 < alpha < 1:
            raise ValueError(f"window = {window} must be at least 2, and alpha = {alpha} in (0, 1)")
        self.names, self.window, self.alpha = tuple(names), window, alpha
        self._reference = np.sort(reference, axis=0)
        quantiles = np.linspace(0, 1, _BINS + 1)[1:-1]
        self._edges = [np.unique(np.quantile(column, quantiles)) for column in self._reference.T]
        self._shares = [
            _shares(edges, column) for edges, column in zip(self._edges, self._reference.T, strict=True)
        ]  # fmt: skip
        self._rows = np.zeros((window, len(names)))
        self._count = 0

    @property
    def reference(self) -> Floats:
        """`[n, d]` the reference, each feature sorted by itself."""
        return self._reference

    @property
    def budget(self) -> FalseAlarmBudget:
        return FalseAlarmBudget(kind="alpha", value=self.alpha)

    def update(self, context: Floats) -> tuple[FeatureShift, ...]:
        """Read features `[d]`; at the end of a window the comparison of every feature, else nothing. Rows with a
        number that is not finite are skipped: `NonFiniteCheck` counts them."""
        if not np.isfinite(context).all():
            return ()
        self._rows[self._count] = context
        self._count += 1
        if self._count < self.window:
            return ()
        self._count = 0
        rows = np.sort(self._rows, axis=0)
        return tuple(self._shift(k, rows[:, k]) for k in range(len(self.names)))

    def _shift(self, k: int, window: Floats) -> FeatureShift:
        reference = self._reference[:, k]
        distance = ks_distance(reference, window)
        p_value = kolmogorov_tail(distance, len(reference), len(window))
        return FeatureShift(
            feature=self.names[k], ks=distance, p_value=p_value,
            psi=stability_index(self._edges[k], self._shares[k], window),
            changed=p_value < self.alpha / len(self.names),
        )  # fmt: skip

    def state(self) -> State:
        return {"rows": self._rows[: self._count].copy(), "window": self.window}

    def restore(self, state: State) -> None:
        """Take up the open window; the reference is an argument of the constructor."""
        rows = array(state, "rows")
        if integer(state, "window") != self.window or rows.shape[1:] != (len(self.names),):
            raise DataError(f"the saved window has {state['window']} rows of {rows.shape[1:]} features")
        self._count = len(rows)
        self._rows[: self._count] = rows


def _shares(edges: Floats, column: Floats) -> Floats:
    counts = np.bincount(np.searchsorted(edges, column, side="right"), minlength=len(edges) + 1) + 0.5
    return counts / counts.sum()
