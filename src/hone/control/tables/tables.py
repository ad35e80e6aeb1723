"""Tabular policies: action values of numbered states, alone or over tiles, and state values; their folder on disk.

A folder holds `policy.json` and `table.safetensors`. Learning is in `learn.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownVariableType] - PathLike of anything

from hone.control.tables.explore import EpsilonGreedy, Exploration, action_probabilities, sample_actions
from hone.control.tables.kernels import Floats, Ints
from hone.core.errors import ConfigError, DataError
from hone.core.state import share_arrays
from hone.core.strict_json import strict_json

# ---------------------------------------------------------------------------------------------------------------- tiles
# Tile coding: points of a box as a few active cells, one in each of several displaced grids.
#
# Cells are not hashed, so there are no collisions; the memory is tilings * (bins + 1)^d * actions numbers (Albus, 1975;
# displacements by odd numbers: Parks & Militzer, 1991; Sutton & Barto, 2018, section 9.5.4).


_MOST_CELLS = 50_000_000
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
    """Tile coder of a box. Raises ConfigError for a box without bounds, and for more than `_MOST_CELLS` cells."""
    bounds = np.array([low, high], dtype=np.float64)
    if not np.isfinite(bounds).all() or not (bounds[0] < bounds[1]).all() or (np.abs(bounds) > 1e6).any():
        raise ConfigError(f"tiles need a bounded box, got {list(low)} .. {list(high)}; give tiles.low and tiles.high")
    cells = tilings * (bins + 1) ** len(low) * actions
    if cells > _MOST_CELLS:
        raise ConfigError(
            f"{tilings} tilings x {bins + 1}^{len(low)} tiles x {actions} actions are {cells:,} numbers, more than "
            f"{_MOST_CELLS:,}; use fewer bins"
        )
    return TileCoder(low=tuple(low), high=tuple(high), tilings=tilings, bins=bins, actions=actions)


# --------------------------------------------------------------------------------------------------------------- tables


FORMAT = 1
Array: TypeAlias = NDArray[np.generic]
_EXPLORATION: TypeAdapter[Exploration] = TypeAdapter(Exploration)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFeatures:
    """Numbered states `first .. first + count - 1`; one cell per pair of state and action."""

    count: int
    actions: int
    first: int = 0
    """Number of the first state."""

    @property
    def cells(self) -> int:
        """Number of cells K, of all actions together."""
        return self.count * self.actions

    def cell(self, seen: Array) -> Ints:
        """Observations `[n]` -> first cells `[n, 1]`; the value of action j is at cell + j."""
        return ((seen.astype(np.int64) - self.first) * self.actions)[:, None]

    def description(self) -> dict[str, Any]:
        """Constructor arguments as JSON."""
        return {"kind": "states", "count": self.count, "actions": self.actions, "first": self.first}


class ActionTable:
    """Action values, in `tables` copies whose mean is acted on (two for double Q-learning)."""

    kind = "action_table"

    def __init__(
        self,
        features: "StateFeatures | TileCoder",
        *,
        explore: Exploration | None = None,
        initial: float = 0.0,
        tables: int = 1,
        first_action: int = 0,
    ) -> None:
        self.features = features
        self.explore: Exploration = explore or EpsilonGreedy()
        self.first_action = first_action
        share = initial / features.tilings if isinstance(features, TileCoder) else initial
        self.x: Floats = np.full(tables * features.cells, share)
        """`[tables * K]` flat."""
        self.visits: Ints = np.zeros(features.cells, dtype=np.int64)
        """`[K]` number of updates of each cell."""

    @property
    def tables(self) -> int:
        """Number of copies."""
        return len(self.x) // self.features.cells

    @property
    def q(self) -> Floats:
        """`[S, A]` values of a table of numbered states; the mean of the tables."""
        assert isinstance(self.features, StateFeatures), "tiles have no states to list"
        return self.x.reshape(self.tables, -1, self.features.actions).mean(axis=0)

    def values(self, cell: Ints) -> Floats:
        """Action values `[n, A]` of first cells `[n, M]`."""
        block = self.x.reshape(self.tables, -1, self.features.actions)
        picked = block[:, cell // self.features.actions]
        return picked.sum(axis=2).mean(axis=0) if self.tables > 1 or cell.shape[1] > 1 else picked[0, :, 0]

    def counts(self, cell: Ints) -> Ints:
        """Visit counts of each action `[n, A]` at first cells `[n, M]` (the rarest feature)."""
        return self.visits.reshape(-1, self.features.actions)[cell // self.features.actions].min(axis=1)

    def exploration_probabilities(self, cell: Ints, turn: int) -> Floats:
        """`[n, A]` probabilities of the exploration policy."""
        return action_probabilities(self.explore, self.values(cell), self.counts(cell), turn)

    def numpy_policy(self, turn: int = 0) -> "_TablePolicyActor":
        """Policy that acts by this table in iteration `turn`; updates of the table change it at once."""
        return _TablePolicyActor(table=self, iteration=turn)

    def arrays(self) -> dict[str, Array]:
        """Arrays of the folder."""
        return {"x": self.x, "count": self.visits}

    def load_arrays(self, numbers: dict[str, Array]) -> None:
        """Copy arrays of a folder into the table."""
        self.x[:] = numbers["x"]
        self.visits[:] = numbers["count"]

    def description(self) -> dict[str, Any]:
        return {
            "features": self.features.description(),
            "tables": self.tables,
            "first_action": self.first_action,
            "explore": self.explore.model_dump(mode="json"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _TablePolicyActor:
    """Acts by a table, with one random number per decision."""

    table: ActionTable
    iteration: int

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Uniform numbers for `decide`."""
        return draws.random(shape, dtype=np.float32)

    def decide(
        self, seen: Array, noise: NDArray[np.float32], mask: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, NDArray[np.float32]]:
        """`[n, *observation]` -> actions `[n]` and their log-probabilities `[n]` in nats."""
        del mask
        chances = self.table.exploration_probabilities(self.table.features.cell(seen), self.iteration)
        chosen, logp = sample_actions(chances, noise)
        return chosen + self.table.first_action, logp

    def best(self, seen: Array, mask: NDArray[np.bool_] | None = None) -> Ints:
        """Greedy actions `[n]`; ties go to the first."""
        del mask
        return self.table.values(self.table.features.cell(seen)).argmax(axis=1) + self.table.first_action


class StateValues:
    """State values of a given policy: a table, or linear in features of the states."""

    kind = "state_values"

    def __init__(self, followed: Floats, *, initial: float = 0.0, features: Floats | None = None) -> None:
        """`[S, A]` probabilities of the evaluated policy."""
        self.target_policy = followed
        self.features = features
        """`[S, d]`; None: one number per state."""
        self.x: Floats = np.full(len(followed) if features is None else features.shape[1], initial)
        """`[S]` or `[d]`."""
        self.visits: Ints = np.zeros(len(followed), dtype=np.int64)

    @property
    def v(self) -> Floats:
        """`[S]` values."""
        return self.x if self.features is None else self.features @ self.x

    def numpy_policy(self, turn: int = 0, behaviour: Floats | None = None) -> "FixedPolicyActor":
        """Policy that acts by the evaluated policy, or by `behaviour` `[S, A]`."""
        del turn
        return FixedPolicyActor(probability=self.target_policy if behaviour is None else behaviour)

    def arrays(self) -> dict[str, Array]:
        kept: dict[str, Array] = {"x": self.x, "count": self.visits, "followed": self.target_policy}
        return kept if self.features is None else {**kept, "features": self.features}

    def load_arrays(self, numbers: dict[str, Array]) -> None:
        self.x[:] = numbers["x"]
        self.visits[:] = numbers["count"]

    def description(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPolicyActor:
    """Acts by probabilities `[S, A]` that never change."""

    probability: Floats

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return draws.random(shape, dtype=np.float32)

    def decide(
        self, seen: Array, noise: NDArray[np.float32], mask: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, NDArray[np.float32]]:
        del mask
        return sample_actions(self.probability[seen.astype(np.int64)], noise)

    def best(self, seen: Array, mask: NDArray[np.bool_] | None = None) -> Ints:
        del mask
        return self.probability[seen.astype(np.int64)].argmax(axis=1)


Table: TypeAlias = ActionTable | StateValues
KINDS = (ActionTable.kind, StateValues.kind)


def save_table(table: Table, folder: Path) -> None:
    """Write `table.safetensors` and `policy.json` into `folder`, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(numbers) for name, numbers in table.arrays().items()}
    save_file(arrays, folder / "table.safetensors")
    share_arrays(folder / "table.safetensors")
    text = json.dumps({"format": FORMAT, "kind": table.kind, **table.description()}, indent=2)
    (folder / "policy.json").write_text(text + "\n", encoding="utf-8")


def policy_kind(folder: Path) -> str:
    """Kind of the policy in a folder; "" where `policy.json` cannot be read."""
    try:
        description = strict_json((folder / "policy.json").read_bytes())
    except (OSError, ValueError):
        return ""
    return str(description.get("kind", "")) if isinstance(description, dict) else ""


def load_table(folder: Path) -> Table:
    """The table saved by `save_table`; raises DataError that names the missing, damaged or unknown part."""
    path, arrays = folder / "policy.json", _arrays(folder)
    try:
        description: Any = strict_json(path.read_bytes())
        if description["format"] != FORMAT:
            raise DataError(f"{path}: format {description['format']}, this hone reads tables of format {FORMAT}")
        table = _empty(description, arrays)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: incomplete or unknown: {error!r}") from error
    load_table_arrays(table, folder)
    return table


def load_table_arrays(table: Table, folder: Path) -> None:
    """Read the arrays of `folder` into `table`, in place; raises DataError when they do not fit."""
    result, wanted = _arrays(folder), table.arrays()
    shapes = {name: numbers.shape for name, numbers in wanted.items()}
    others = {name: numbers.shape for name, numbers in result.items()}
    if shapes != others:
        raise DataError(f"{folder / 'table.safetensors'}: the saved table has {others}, this run's has {shapes}")
    table.load_arrays(result)


def _arrays(folder: Path) -> dict[str, Array]:
    path = folder / "table.safetensors"
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot read the table: {error}") from error


def _empty(description: dict[str, Any], arrays: dict[str, Array]) -> Table:
    if description["kind"] == StateValues.kind:
        features = arrays["features"].astype(np.float64) if "features" in arrays else None
        return StateValues(arrays["followed"].astype(np.float64), features=features)
    if description["kind"] != ActionTable.kind:
        raise ValueError(f"a policy of kind {description['kind']!r} is not a table")
    arguments = dict(description["features"])
    kind = arguments.pop("kind")
    features = StateFeatures(**arguments) if kind == "states" else TileCoder.from_description(arguments)
    return ActionTable(
        features, explore=_EXPLORATION.validate_python(description["explore"]), tables=description["tables"],
        first_action=description["first_action"],
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- picture


ARROWS = "<v>^"


def value_map(value: Floats, rows: Sequence[str], *, digits: int = 2) -> str:
    """Values `[S]` on a map of S places: a number where one can stand, the map's own mark where one cannot."""
    cells = np.array([list(row) for row in rows])
    marks = [
        f"{number:.{digits}f}" if _floor(mark) else mark for number, mark in zip(value, cells.ravel(), strict=True)
    ]
    return _laid_out(cells, marks)


def policy_map(choice: NDArray[np.integer], rows: Sequence[str], *, arrows: str = ARROWS) -> str:
    """Actions `[S]` on a map: an arrow where one can stand. `arrows` says them in the order of their numbers."""
    cells = np.array([list(row) for row in rows])
    marks = [arrows[int(a)] if _floor(mark) else mark for a, mark in zip(choice, cells.ravel(), strict=True)]
    return _laid_out(cells, marks)


def _floor(mark: str) -> bool:
    return mark in "S.F"


def _laid_out(cells: NDArray[np.str_], marks: Sequence[str]) -> str:
    width = max(map(len, marks))
    lines = [marks[begin : begin + cells.shape[1]] for begin in range(0, len(marks), cells.shape[1])]
    return "\n".join(" ".join(f"{mark:>{width}}" for mark in line) for line in lines)
