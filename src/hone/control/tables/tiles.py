"""Tile coding: points of a box as a few active cells, one in each of several displaced grids.

Cells are not hashed, so there are no collisions; the memory is tilings * (bins + 1)^d * actions numbers (Albus, 1975;
displacements by odd numbers: Parks & Militzer, 1991; Sutton & Barto, 2018, section 9.5.4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hone.control.tables.kernels import Floats, Ints
from hone.core.errors import ConfigError

MOST_CELLS = 50_000_000
"""Most numbers of a table; 400 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileCoder:
    """`tilings` grids of `bins` cells along each of d dimensions of a box `low` .. `high`; see `make_tile_coder`.

    Points outside the box are clipped to it.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    tilings: int
    bins: int
    actions: int

    @property
    def cells(self) -> int:
        """Number of cells, of all actions together."""
        return self.tilings * (self.bins + 1) ** len(self.low) * self.actions

    def cell(self, seen: NDArray[np.generic]) -> Ints:
        """`[n, d]` -> `[n, tilings]` first cells (of action 0)."""
        return self.tiles(seen.reshape(len(seen), -1).astype(np.float64)) * self.actions

    def tiles(self, points: Floats) -> Ints:
        """`[n, d]` -> `[n, tilings]` numbers of the active tiles, all different.

        Grid t is displaced by t / tilings of a cell times 1, 3, 5 ... along the dimensions, modulo 1.
        """
        low, high = np.array(self.low), np.array(self.high)
        size = len(self.low)
        unit = (np.clip(points, low, high) - low) / (high - low) * self.bins
        shift = np.arange(self.tilings)[:, None] * (2 * np.arange(size) + 1) / self.tilings % 1.0
        where = np.floor(unit[:, None, :] + shift).astype(np.int64)
        place = (np.minimum(where, self.bins) * (self.bins + 1) ** np.arange(size)).sum(axis=2)
        return place + np.arange(self.tilings) * (self.bins + 1) ** size

    def description(self) -> dict[str, Any]:
        return {
            "kind": "tiles",
            "low": list(self.low),
            "high": list(self.high),
            "tilings": self.tilings,
            "bins": self.bins,
            "actions": self.actions,
        }

    @staticmethod
    def from_description(description: Mapping[str, Any]) -> "TileCoder":
        """Tile coder from the result of `description`. Raises KeyError, TypeError, ValueError."""
        return TileCoder(**{**description, "low": tuple(description["low"]), "high": tuple(description["high"])})


def make_tile_coder(low: Sequence[float], high: Sequence[float], *, tilings: int, bins: int, actions: int) -> TileCoder:
    """Tile coder of a box. Raises ConfigError for a box without bounds, and for more than `MOST_CELLS` cells."""
    bounds = np.array([low, high], dtype=np.float64)
    if not np.isfinite(bounds).all() or not (bounds[0] < bounds[1]).all() or (np.abs(bounds) > 1e6).any():
        raise ConfigError(f"tiles need a bounded box, got {list(low)} .. {list(high)}; give tiles.low and tiles.high")
    cells = tilings * (bins + 1) ** len(low) * actions
    if cells > MOST_CELLS:
        raise ConfigError(
            f"{tilings} tilings x {bins + 1}^{len(low)} tiles x {actions} actions are {cells:,} numbers, more than "
            f"{MOST_CELLS:,}; use fewer bins"
        )
    return TileCoder(low=tuple(low), high=tuple(high), tilings=tilings, bins=bins, actions=actions)
