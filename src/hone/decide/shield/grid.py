"""A model of a controlled system on a grid: every state is a cell, rounded to the dangerous side.

Belongs here: the grid, and the safety game that a model makes on it. The rounding is sound where a more dangerous state
leads to a more dangerous one under the same action and disturbance; `order_faults` checks that at every cell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ConfigError
from hone.decide.shield.expressions import Values
from hone.decide.shield.game import Bools, Places, SafetyGame
from hone.decide.shield.model import ControlModel, VariableConfig

Floats = NDArray[np.float64]
TOLERANCE_CELLS: Final = 1e-9
"""Distance from a cell within which a value counts as the cell itself: rounding of the arithmetic."""


MAX_MOVES: Final = 50_000_000
"""Next states of a game, of 4 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridAxis:
    """Cells of one variable. Coordinate 0 is the most dangerous cell and `count - 1` the least, except with `exact`."""

    origin: float
    """Value of coordinate 0."""
    scale: float
    """Coordinates per unit; negative where high values are dangerous."""
    count: int
    exact: bool
    """Only values of the grid occur."""

    def coordinates(self, values: Floats) -> Places:
        """Coordinates of values `[...]`, rounded to the dangerous side; negative: outside."""
        places = (values - self.origin) * self.scale
        cells = np.floor(places + TOLERANCE_CELLS)
        if self.exact:
            off = np.abs(places - np.rint(places)) > 1e-6
            cells = np.where(off | (cells > self.count - 1), -1.0, np.rint(places))
        kept = np.clip(cells, -1.0, self.count - 1.0)
        return np.where(np.isfinite(kept), kept, -1.0).astype(np.int32)

    def values(self) -> Floats:
        """Value of each coordinate `[count]`."""
        return self.origin + np.arange(self.count) / self.scale


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGrid:
    """Cells of all variables; state i has the coordinates `np.unravel_index(i, shape)`."""

    names: tuple[str, ...]
    axes: tuple[GridAxis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells of each variable."""
        return tuple(axis.count for axis in self.axes)

    def states(self) -> dict[str, Floats]:
        """Value of each variable in each state `[S]`."""
        columns = np.meshgrid(*(axis.values() for axis in self.axes), indexing="ij")
        return {name: column.ravel() for name, column in zip(self.names, columns, strict=True)}

    def number(self, values: Sequence[float]) -> int:
        """Number of the state of these values of all variables; -1: outside, or not finite."""
        number = 0
        for value, axis in zip(values, self.axes, strict=True):
            place = (value - axis.origin) * axis.scale
            shifted = place + TOLERANCE_CELLS
            if not shifted >= 0:  # NaN too
                return -1
            last = axis.count - 1
            cell = int(shifted) if shifted < last else last
            if axis.exact and abs(place - cell) > 1e-6:
                return -1
            number = number * axis.count + cell
        return number

    def state(self, number: int) -> dict[str, float]:
        """Value of each variable in one state."""
        cells = np.unravel_index(number, self.shape)
        return {
            name: axis.origin + int(cell) / axis.scale
            for name, axis, cell in zip(self.names, self.axes, cells, strict=True)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GridGame:
    """The safety game of a model on its grid."""

    grid: StateGrid
    game: SafetyGame
    order_faults: tuple[str, ...]
    """Sentences about cells where a more dangerous state leads to a less dangerous one; none: the rounding is sound."""


def state_grid(model: ControlModel) -> StateGrid:
    """The grid of a model's variables."""
    axes = tuple(_axis(model.config.variables[name]) for name in model.variables)
    return StateGrid(names=model.variables, axes=axes)


def _axis(variable: VariableConfig) -> GridAxis:
    count = round((variable.high - variable.low) / variable.step) + 1
    falls = variable.worse == "high"
    return GridAxis(
        origin=variable.high if falls else variable.low,
        scale=(-1.0 if falls else 1.0) / variable.step,
        count=count,
        exact=variable.worse == "neither",
    )


def grid_game(model: ControlModel) -> GridGame:
    """The game of a model: its states are cells, its disturbances the extreme ones. Raises ConfigError for a grid
    without a safe cell."""
    grid, corners = state_grid(model), model.corners()
    count = math.prod(grid.shape)
    moves = count * len(model.actions) * len(corners)
    if moves > MAX_MOVES:
        raise ConfigError(
            f"variables: a grid of {count} states has {moves} moves with {len(model.actions)} actions and "
            f'{len(corners)} extremes, at most {MAX_MOVES} are allowed; take larger steps, or kind = "invariant"'
        )
    states = grid.states()
    successors = np.empty((len(model.actions), len(corners), count), np.int32)
    faults: list[str] = []
    for action in range(len(model.actions)):
        for number, corner in enumerate(corners):
            cells = _next_cells(model, grid, states, action, corner)
            lost = np.any(cells < 0, axis=0)
            flat = np.ravel_multi_index(tuple(np.maximum(cells, 0)), grid.shape)
            successors[action, number] = np.where(lost, count, flat)
            faults += order_faults(grid, cells, f"{model.actions[action]} under {describe_values(corner)}")
    safe = np.broadcast_to(np.asarray(model.is_safe(_as_values(states)), np.bool_), (count,))
    if not safe.any():
        raise ConfigError(f"safe = {model.safe.text!r}: no cell of the grid is safe")
    faults += closure_faults(grid, safe, "the safe states")
    return GridGame(grid=grid, game=SafetyGame(successors=successors, safe=safe), order_faults=tuple(faults))


def _next_cells(
    model: ControlModel, grid: StateGrid, states: Mapping[str, Floats], action: int, disturbance: Mapping[str, float]
) -> Places:
    """Coordinates `[variables, S]` of the next state; negative: outside."""
    after = model.after(_as_values(states), action, disturbance)
    count = len(states[grid.names[0]])
    rows = [
        axis.coordinates(np.broadcast_to(np.asarray(after[name], np.float64), (count,)))
        for name, axis in zip(grid.names, grid.axes, strict=True)
    ]
    return np.stack(rows)


def order_faults(grid: StateGrid, cells: Places, move: str) -> list[str]:
    """Sentences about next cells `[variables, S]` that are less dangerous than those of a less dangerous state."""
    faults: list[str] = []
    shaped = cells.reshape(len(grid.axes), *grid.shape)
    for along, axis in enumerate(grid.axes):
        if axis.exact or axis.count < 2:
            continue
        wrong = np.diff(shaped, axis=along + 1) < 0
        if wrong.any():
            variable, *place = (int(number) for number in np.argwhere(wrong)[0])
            here = describe_values(grid.state(int(np.ravel_multi_index(place, grid.shape))))
            faults.append(
                f"{move}: {grid.names[variable]} becomes more dangerous from the next less dangerous "
                f"{grid.names[along]} than from {here}"
            )
    return faults


def closure_faults(grid: StateGrid, region: Bools, name: str) -> list[str]:
    """Sentences about states outside a region `[S]` that are less dangerous than states inside it."""
    faults: list[str] = []
    shaped = region.reshape(grid.shape)
    for along, axis in enumerate(grid.axes):
        if axis.exact or axis.count < 2:
            continue
        wrong = np.diff(shaped.astype(np.int8), axis=along) < 0
        if wrong.any():
            here = grid.state(int(np.ravel_multi_index([int(n) for n in np.argwhere(wrong)[0]], grid.shape)))
            faults.append(f"{name}: {describe_values(here)} is one of them, and the next less dangerous "
                          f"{grid.names[along]} is not")  # fmt: skip
    return faults


def describe_values(values: Mapping[str, float]) -> str:
    """Named numbers in a line: `gap 4.5, speed 3`."""
    return ", ".join(f"{name} {value:.6g}" for name, value in values.items()) or "no disturbance"


def _as_values(states: Mapping[str, Floats]) -> dict[str, Values]:
    return dict(states)
