"""Safety game on a finite set of states: the largest set of states in which a safe action always exists.

Belongs here: the fixpoint, the check of a given set, and a play that leaves it. A player chooses an action, then an
adversary chooses a disturbance; the player loses in an unsafe state (McNaughton, 1993; shields from games: Alshiekh et
al., "Safe reinforcement learning via shielding", 2018).

    W_0 = safe states,   W_{k+1} = {s in W_k: some action leads into W_k whatever the disturbance}

A model of a system is made a game on a grid: every state is a cell, rounded to the dangerous side. The rounding is
sound where a more dangerous state leads to a more dangerous one under the same action and disturbance;
`StateGrid.order_faults` checks that at every cell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ConfigError
from hone.decide.shield.model import ControlModel, Values, VariableConfig

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Places = NDArray[np.int32]
NEVER: Final = -1
"""Rank of a state that is never lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyGame:
    """Game of S states, A actions and D disturbances."""

    successors: Places
    """`[A, D, S]` next state; S stands for a state outside, which is lost."""
    safe: Bools
    """`[S]`."""

    def stays_inside(self, region: Bools) -> Bools:
        """Pairs `[A, S]` from which every disturbance leads into `region` `[S]`."""
        inside = np.append(region, False)
        return np.asarray(inside[self.successors].all(axis=1), np.bool_)

    def winning_region(self) -> "WinningRegion":
        """Compute the largest region by iteration from the safe states; states that left it are not tried again."""
        rank = np.where(self.safe, NEVER, 0).astype(np.int64)
        inside = np.append(self.safe, False)
        alive = np.flatnonzero(self.safe)
        iterations = 0
        while True:
            iterations += 1
            stays = inside[self.successors[:, :, alive]].all(axis=1).any(axis=0)
            lost = alive[~stays]
            if not len(lost):
                break
            inside[lost] = False
            rank[lost] = iterations
            alive = alive[stays]
        winning = inside[:-1]
        allowed = self.stays_inside(winning).T & winning[:, None]
        return WinningRegion(winning=winning, allowed=allowed, rank=rank, iterations=iterations)

    def region_faults(self, region: Bools, *, fallback: int) -> Ints:
        """States of `region` that are unsafe, or from which the action `fallback` may leave it: none proves that who
        takes `fallback` there stays safe forever."""
        stays = np.append(region, False)[self.successors[fallback]].all(axis=0)
        return np.flatnonzero(region & ~(self.safe & stays))

    def losing_play(self, rank: Ints, start: int, *, limit: int = 1_000) -> "_GamePlay":
        """Play from a lost state to an unsafe one: the player lasts as long as possible, the adversary hurries."""
        ranks = np.append(rank, 0)
        ranks = np.where(ranks == NEVER, np.iinfo(np.int64).max, ranks)
        states, actions, disturbances = [start], list[int](), list[int]()
        while len(actions) < limit and states[-1] < len(rank) and rank[states[-1]] > 0:
            after = self.successors[:, :, states[-1]]
            fastest = ranks[after].min(axis=1)
            action = int(fastest.argmax())
            disturbance = int(ranks[after[action]].argmin())
            actions.append(action)
            disturbances.append(disturbance)
            states.append(int(after[action, disturbance]))
        return _GamePlay(states=tuple(states), actions=tuple(actions), disturbances=tuple(disturbances))


@dataclass(frozen=True, slots=True, kw_only=True)
class WinningRegion:
    """States from which the player can stay safe forever."""

    winning: Bools
    """`[S]`."""
    allowed: Bools
    """`[S, A]` actions that stay in the region whatever the disturbance; False outside it."""
    rank: Ints
    """`[S]` largest number of steps that the adversary needs to reach an unsafe state, 0 in one; `NEVER` in the
    region."""
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _GamePlay:
    """A play of the game: states, and the moves between them."""

    states: tuple[int, ...]
    """`n + 1`; the last may be S, outside."""
    actions: tuple[int, ...]
    disturbances: tuple[int, ...]


# ----------------------------------------------------------------------------------------------------------------- grid


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

    def order_faults(self, cells: Places, move: str) -> list[str]:
        """Sentences about next cells `[variables, S]` that are less dangerous than those of a less dangerous state."""
        faults: list[str] = []
        shaped = cells.reshape(len(self.axes), *self.shape)
        for along, axis in enumerate(self.axes):
            if axis.exact or axis.count < 2:
                continue
            wrong = np.diff(shaped, axis=along + 1) < 0
            if wrong.any():
                variable, *place = (int(number) for number in np.argwhere(wrong)[0])
                here = describe_values(self.state(int(np.ravel_multi_index(place, self.shape))))
                faults.append(
                    f"{move}: {self.names[variable]} becomes more dangerous from the next less dangerous "
                    f"{self.names[along]} than from {here}"
                )
        return faults

    def closure_faults(self, region: Bools, name: str) -> list[str]:
        """Sentences about states outside a region `[S]` that are less dangerous than states inside it."""
        faults: list[str] = []
        shaped = region.reshape(self.shape)
        for along, axis in enumerate(self.axes):
            if axis.exact or axis.count < 2:
                continue
            wrong = np.diff(shaped.astype(np.int8), axis=along) < 0
            if wrong.any():
                here = self.state(int(np.ravel_multi_index([int(n) for n in np.argwhere(wrong)[0]], self.shape)))
                faults.append(f"{name}: {describe_values(here)} is one of them, and the next less dangerous "
                              f"{self.names[along]} is not")  # fmt: skip
        return faults


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
            faults += grid.order_faults(cells, f"{model.actions[action]} under {describe_values(corner)}")
    safe = np.broadcast_to(np.asarray(model.is_safe(_as_values(states)), np.bool_), (count,))
    if not safe.any():
        raise ConfigError(f"safe = {model.safe.text!r}: no cell of the grid is safe")
    faults += grid.closure_faults(safe, "the safe states")
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


def describe_values(values: Mapping[str, float]) -> str:
    """Named numbers in a line: `gap 4.5, speed 3`."""
    return ", ".join(f"{name} {value:.6g}" for name, value in values.items()) or "no disturbance"


def _as_values(states: Mapping[str, Floats]) -> dict[str, Values]:
    return dict(states)
