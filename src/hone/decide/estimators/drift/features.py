"""Drift of inputs: each feature's latest window against a reference, by Kolmogorov-Smirnov and by the population
stability index."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.state import State, array, integer
from hone.decide.estimators.drift.detector import FalseAlarmBudget

Floats = NDArray[np.float64]
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
