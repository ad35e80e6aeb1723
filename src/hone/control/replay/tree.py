"""A sum tree: masses that change, and draws in proportion to them, many at once.

Belongs here: the tree alone. It has 16 children per node, so that a million leaves are three layers, and every sum
is made of its children again: a million updates leave no more rounding than one.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.control.replay.kernels import FAN, SumTreeKernels, kernels
from hone.core.errors import DataError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

TOP = 256
"""Nodes that one running sum is made over; no layer is needed above so few."""


class SumTree:
    """`capacity` masses, all 0 at first."""

    def __init__(self, capacity: int, *, kernels: SumTreeKernels | None = None) -> None:
        """`using`: the loops; None: the fastest that are installed."""
        if capacity < 1:
            raise DataError(f"a sum tree of {capacity} leaves: it must have at least 1")
        self.capacity = capacity
        self._using = kernels
        sizes = [-(-capacity // FAN) * FAN]
        while sizes[-1] > TOP:
            sizes.append(-(-(sizes[-1] // FAN) // FAN) * FAN)
        self._starts = np.cumsum([0, *sizes]).astype(np.int64)
        self._nodes = np.zeros(int(self._starts[-1]))

    @property
    def masses(self) -> Floats:
        """`[capacity]`, as they stand."""
        return self._nodes[: self.capacity].copy()

    def row_masses(self, rows: Ints) -> Floats:
        """`[n]` of these rows."""
        return self._nodes[rows]

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._nodes[self._starts[-2] : self._starts[-1]].sum())

    def set_masses(self, rows: Ints, masses: Floats) -> None:
        """Set the masses `[n]` of `rows` `[n]`; of a row that comes twice the last counts. Raises DataError for masses
        that are negative or not finite, and for rows outside the tree; then nothing was changed."""
        if len(rows) == 0:
            return
        if not (masses.min() >= 0 and masses.max() < np.inf):  # NaN fails both
            wrong = int(np.flatnonzero(~((masses >= 0) & (masses < np.inf)))[0])
            raise DataError(f"mass {masses[wrong]} of row {rows[wrong]}: masses are finite and not negative")
        if rows.view(np.uint64).max() >= self.capacity:  # as unsigned numbers, negative rows are the largest
            raise DataError(f"rows {rows.min()} .. {rows.max()} of a tree of {self.capacity}")
        self._loops.set_leaves(self._nodes, self._starts, rows, masses)

    def find_rows(self, targets: Floats) -> Ints:
        """Row i such that the masses before it add up to at most the target, and with its own to more -> `[n]`.

        Targets lie in [0, total]; a row of mass 0 is never found. Raises DataError for a tree without mass.
        """
        self._require_mass(self.total)
        return self._loops.find_leaves(self._nodes, self._starts, targets)

    def sample_rows(self, count: int, draws: np.random.Generator) -> tuple[Ints, Floats]:
        """`count` rows, one from each of as many equal stretches of the total, and their masses `[n]`.

        A row is expected `count * mass / total` times, as if drawn independently, with less spread.
        """
        total = self.total
        self._require_mass(total)
        targets = (np.arange(count) + draws.random(count)) * (total / count)
        rows = self._loops.find_leaves(self._nodes, self._starts, targets)
        return rows, self._nodes[rows]

    def _require_mass(self, total: float) -> None:
        if total <= 0:
            raise DataError("the sum tree has no mass to draw from")

    @property
    def _loops(self) -> SumTreeKernels:
        return kernels() if self._using is None else self._using
