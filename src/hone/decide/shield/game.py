"""Safety game on a finite set of states: the largest set of states in which a safe action always exists.

Belongs here: the fixpoint, the check of a given set, and a play that leaves it. A player chooses an action, then an
adversary chooses a disturbance; the player loses in an unsafe state (McNaughton, 1993; shields from games: Alshiekh et
al., "Safe reinforcement learning via shielding", 2018).

    W_0 = safe states,   W_{k+1} = {s in W_k: some action leads into W_k whatever the disturbance}

A model of a system is made a game on a grid: a state is rounded to the dangerous side, so that a cell stands for a box
of states. The next cell of a box is that of the most dangerous next value in all of it, whatever the disturbance, by a
proved bound (`bounds.py`); nothing is assumed about the model's form. A set of cells counts only with every cell that
is less dangerous than one of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import counted
from hone.core.errors import ConfigError
from hone.decide.shield.bounds import Interval, RangeFinder, zero_division
from hone.decide.shield.formulas import divisions, next_trees, safe_tree
from hone.decide.shield.model import ControlModel, ExpressionNode, VariableConfig

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

    def winning_region(self, close: Callable[[Bools], Bools] | None = None) -> "WinningRegion":
        """Compute the largest region by iteration from the safe states; states that left it are not tried again.

        `close` takes the states `[S]` away that may not stay in a set without others.
        """
        rank = np.where(self.safe, NEVER, 0).astype(np.int64)
        inside = np.append(self.safe, False)
        alive, iterations = np.flatnonzero(self.safe), 0
        for iterations in counted(count(1), "iterations of the safe region"):
            stays = inside[self.successors[:, :, alive]].all(axis=1).any(axis=0)
            if stays.all():
                break
            inside[alive[~stays]] = False
            if close is not None:
                inside[:-1] = close(inside[:-1])
            rank[alive[~inside[alive]]] = iterations
            alive = alive[inside[alive]]
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
MAX_TRIED: Final = 200
"""Disturbances of which a counterexample is made."""


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

    def boxes(self, end: float) -> Interval:
        """Values `[count]` that each cell stands for; those of the least dangerous cell reach to `end`."""
        first = self.values()
        if self.exact:
            return Interval(first, first)
        last = np.append(first[1:], end)
        return Interval(np.minimum(first, last), np.maximum(first, last))

    def next_cells(self, finder: RangeFinder, node: ExpressionNode) -> Places:
        """Coordinate of the most dangerous value of an expression in each box; negative: outside, or not one value of
        the grid."""
        if not self.exact:
            return self.coordinates(finder.end(node, upper=self.scale < 0))
        low, high = (self.coordinates(finder.end(node, upper=upper)) for upper in (False, True))
        return np.where(low == high, low, -1).astype(np.int32)


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

    def closed(self, region: Bools) -> Bools:
        """The states `[S]` of a region of which every less dangerous state is in it, too."""
        shaped = region.reshape(self.shape)
        for along, axis in enumerate(self.axes):
            if not axis.exact:
                shaped = np.flip(np.logical_and.accumulate(np.flip(shaped, along), axis=along), along)
        return shaped.ravel()

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
    faults: tuple[str, ...]
    """Sentences about what makes a proof impossible: divisions by 0, safe states beside less dangerous unsafe ones."""
    disturbances: tuple[Mapping[str, float], ...]
    """Some of the disturbances, for counterexamples: ends and middles."""


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
    """The game of a model: its states are cells, its disturbances all that lie within their bounds, in a few pieces.
    Raises ConfigError for a grid without a safe cell."""
    grid = state_grid(model)
    trees = next_trees(model, duration_s=model.config.step_s)
    others = _disturbance_boxes(model, trees[0])
    count, pieces = math.prod(grid.shape), math.prod(len(box.low) for box in others.values())
    moves = count * len(model.actions) * pieces
    if moves > MAX_MOVES:
        raise ConfigError(
            f"variables: a grid of {count} states has {moves} moves with {len(model.actions)} actions and "
            f'{pieces} disturbances, at most {MAX_MOVES} are allowed; take larger steps, or kind = "invariant"'
        )
    ends = _ends(model, grid, trees)
    boxes = {name: axis.boxes(ends[name]) for name, axis in zip(grid.names, grid.axes, strict=True)}
    spread = dict[str, Interval]()  # an axis for each name
    for place, (name, box) in enumerate((boxes | others).items()):
        shape = [-1 if place == own else 1 for own in range(len(boxes) + len(others))]
        spread[name] = Interval(box.low.reshape(shape), box.high.reshape(shape))
    whole = {name: Interval(box.low.min(keepdims=True), box.high.max(keepdims=True)) for name, box in spread.items()}
    faults = _division_faults(model, trees, whole)
    finder = RangeFinder(spread)
    successors = _successors(grid, finder, trees, [len(box.low) for box in others.values()])
    safe = np.broadcast_to(finder.truth(safe_tree(model)).must, (*grid.shape, *[1] * len(others))).ravel()
    if not safe.any():
        raise ConfigError(f"safe = {model.safe.text!r}: no cell of the grid is safe")
    faults += grid.closure_faults(safe, "the safe states")
    points = [np.unique([box.low, box.low / 2 + box.high / 2, box.high]).tolist() for box in others.values()]
    if math.prod(map(len, points)) > MAX_TRIED:
        points = [[one[0], one[-1]] for one in points]
    return GridGame(
        grid=grid, game=SafetyGame(successors=successors, safe=safe), faults=tuple(faults),
        disturbances=tuple(dict(zip(others, point, strict=True)) for point in product(*points)),
    )  # fmt: skip


def _successors(
    grid: StateGrid, finder: RangeFinder, trees: Sequence[Mapping[str, ExpressionNode]], sizes: Sequence[int]
) -> Places:
    """Next states `[A, D, S]` under each action and each piece of the disturbances, of which there are `sizes`."""
    pieces = math.prod(sizes)
    successors = np.empty((len(trees), pieces, math.prod(grid.shape)), np.int32)
    no_better = np.ones((pieces, pieces), np.bool_)
    for action, tree in enumerate(counted(trees, "actions of the game")):
        cells = list[Places]()
        for name, axis in zip(grid.names, grid.axes, strict=True):
            places = axis.next_cells(finder, tree[name])
            shape = np.broadcast_shapes(places.shape, (*[1] * len(grid.axes), *sizes))
            cells.append(np.broadcast_to(places, shape).reshape(*shape[: len(grid.axes)], pieces))
        no_better &= _no_better(grid, cells, pieces)
        successors[action] = _numbers(grid, cells, pieces)
    # a piece is left out where another one is at least as bad from every cell
    needed = [
        p
        for p in range(pieces)
        if not any(no_better[p, q] and (q < p or not no_better[q, p]) for q in range(pieces) if q != p)
    ]
    return successors[:, needed]


def discrete_disturbances(model: ControlModel) -> dict[str, Floats]:
    """Values of the disturbances that move a variable of a board: from the low end on, in steps of that variable."""
    finder, trees = RangeFinder({}), next_trees(model)[0]
    values: dict[str, Floats] = {}
    for name in model.disturbances:
        steps = [
            model.config.variables[variable].step
            for variable, tree in trees.items()
            if model.config.variables[variable].worse == "neither" and name in finder.names(tree)
        ]
        if steps:
            bounds = model.config.disturbances[name]
            count = math.floor((bounds.high - bounds.low) / min(steps) + 1e-9) + 1
            values[name] = np.asarray(bounds.low + min(steps) * np.arange(count), np.float64)
    return values


def _disturbance_boxes(model: ControlModel, trees: Mapping[str, ExpressionNode]) -> dict[str, Interval]:
    """Pieces of each disturbance's range. One piece would do, as bounds hold for all of it; several keep apart what one
    value does to two variables."""
    finder, discrete = RangeFinder({}), discrete_disturbances(model)
    boxes = {name: Interval(values, values) for name, values in discrete.items()}
    free = [name for name in model.disturbances if name not in boxes]
    coupled = {name for name in free if sum(name in finder.names(tree) for tree in trees.values()) > 1}
    for name in free:
        bounds = model.config.disturbances[name]
        pieces = {1: 4, 2: 3, 3: 2}.get(len(coupled), 1) if name in coupled and bounds.low < bounds.high else 1
        edges = np.linspace(bounds.low, bounds.high, pieces + 1)
        boxes[name] = Interval(np.asarray(edges[:-1], np.float64), np.asarray(edges[1:], np.float64))
    return {name: boxes[name] for name in model.disturbances}


def _ends(model: ControlModel, grid: StateGrid, trees: Sequence[Mapping[str, ExpressionNode]]) -> dict[str, float]:
    """The least dangerous value of each variable that any state of the grid can reach; an infinity where it grows on.

    Beyond the dangerous end a state is lost, so that nothing is reached from there."""
    variables = model.config.variables
    reached = {name: [variables[name].low, variables[name].high] for name in grid.names}
    fixed = {name: [one.low, one.high] for name, one in model.config.disturbances.items()}
    grew, rounds = True, 0
    while grew:
        grew, rounds = False, rounds + 1
        boxes = {
            name: Interval(np.array([low]), np.array([high])) for name, (low, high) in {**reached, **fixed}.items()
        }
        finder = RangeFinder(boxes, rounds=8)
        for name, axis in zip(grid.names, grid.axes, strict=True):
            upper = axis.scale > 0
            if axis.exact or math.isinf(reached[name][upper]):
                continue
            there = [float(finder.end(tree[name], upper=upper)[0]) for tree in trees]
            end = max(*there, reached[name][1]) if upper else min(*there, reached[name][0])
            if end != reached[name][upper]:
                reached[name][upper] = end if rounds <= 2 else math.copysign(math.inf, end)
                grew = True
    return {name: reached[name][axis.scale > 0] for name, axis in zip(grid.names, grid.axes, strict=True)}


def _division_faults(
    model: ControlModel, trees: Sequence[Mapping[str, ExpressionNode]], whole: Mapping[str, Interval]
) -> list[str]:
    """Sentences about divisions by 0 in a safe state, or in the safety condition."""
    safe, faults, seen = safe_tree(model), list[str](), set[str]()
    formulas = [("safe", safe, ())] + [
        (f"next.{name} with {action}", node, (safe,))
        for action, tree in zip(model.actions, trees, strict=True)
        for name, node in tree.items()
    ]
    for place, node, path in formulas:
        for division in divisions(node, path):
            point = None if division.words in seen else zero_division(division, whole)
            seen.add(division.words)
            if point is not None:
                faults.append(
                    f"{place}: a division by 0 in {division.words} is not ruled out, for example near "
                    f"{describe_values(point)}; write `... if DIVISOR > 0 else ...`, or keep 0 out of its range"
                )
    return faults


def _no_better(grid: StateGrid, cells: Sequence[Places], pieces: int) -> Bools:
    """`[p, q]` disturbance p leads to no more dangerous cells than disturbance q, from every cell."""
    if pieces > 16:
        return np.eye(pieces, dtype=np.bool_)
    order = np.ones((pieces, pieces), np.bool_)
    for axis, places in zip(grid.axes, cells, strict=True):
        rows = places.reshape(-1, pieces)
        for p in range(pieces):
            for q in range(pieces):
                order[p, q] &= (
                    np.array_equal(rows[:, p], rows[:, q]) if axis.exact else bool((rows[:, p] >= rows[:, q]).all())
                )
    return order


def _numbers(grid: StateGrid, cells: Sequence[Places], pieces: int) -> Places:
    """Number `[pieces, S]` of the state with these coordinates; S: outside."""
    count = math.prod(grid.shape)
    number, lost = np.zeros(1, np.int32), np.zeros(1, np.bool_)
    for place, places in enumerate(cells):
        number = number + np.maximum(places, 0) * np.int32(math.prod(grid.shape[place + 1 :]))
        lost = lost | (places < 0)
    whole = np.broadcast_to(np.where(lost, np.int32(count), number), (*grid.shape, pieces))
    return whole.reshape(count, pieces).T


def describe_values(values: Mapping[str, float]) -> str:
    """Named numbers in a line: `gap 4.5, speed 3`."""
    return ", ".join(f"{name} {value:.6g}" for name, value in values.items()) or "no disturbance"
