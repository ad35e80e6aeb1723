"""Grid worlds as Gymnasium environments with a known table: a winding maze, with or without a key, and four rooms.

Belongs here: environments with one distant reward. `mdp_from_gymnasium("hone/Maze-v0", ...)` gives the table for exact
solutions; `desc` is the map, as in Gymnasium's own grids.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.control.finite.build import MOVES, GymnasiumTable, grid_mdp
from hone.control.finite.model import FiniteMdp, Floats, MdpOutcomes, make_mdp
from hone.control.finite.options import MarkovOption
from hone.core.errors import ConfigError
from hone.core.ragged import Ints

ROOMS = (
    "#############",
    "#.....#.....#",
    "#.....#.....#",
    "#.....+.....#",
    "#.....#.....#",
    "#.....#.....#",
    "##+####.....#",
    "#.....###+###",
    "#.....#.....#",
    "#.....#.....#",
    "#.....+.....#",
    "#.....#.....#",
    "#############",
)
"""Four rooms of Sutton, Precup & Singh (1999); `+` are the hallways."""


class GridEnv(gymnasium.Env[np.int64, np.int64]):
    """Environment over a finite process: observations are state numbers, outcomes are sampled from the table."""

    def __init__(self, mdp: FiniteMdp, rows: Sequence[str]) -> None:
        self.mdp, self.rows = mdp, tuple(rows)
        self.observation_space = spaces.Discrete(mdp.states)
        self.action_space = spaces.Discrete(mdp.actions)
        self.state = 0

    @property
    def desc(self) -> NDArray[np.bytes_]:
        """Map `[rows, columns]`, one byte per cell."""
        return np.array([list(row) for row in self.rows], dtype="S1")

    @property
    def P(self) -> GymnasiumTable:  # noqa: N802 - Gymnasium's name for it
        """Table in Gymnasium's form: state -> action -> [(probability, next state, reward, terminated)]."""
        mdp = self.mdp
        table: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = {s: {} for s in range(mdp.states)}
        for pair in range(mdp.states * mdp.actions):
            outcomes = slice(mdp.offsets[pair], mdp.offsets[pair + 1])
            columns = (mdp.probability, mdp.next_state, mdp.reward, mdp.terminates)
            rows = list(zip(*(column[outcomes].tolist() for column in columns), strict=True))
            if rows:
                table[pair // mdp.actions][pair % mdp.actions] = rows
        return table

    @property
    def initial_state_distrib(self) -> Floats:
        """`[S]`."""
        return self.mdp.start_distribution

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        del options
        super().reset(seed=seed)
        self.state = _drawn(self.mdp.start_distribution, self.np_random.random())
        return np.int64(self.state), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        mdp, pair = self.mdp, self.state * self.mdp.actions + int(action)
        first, last = int(mdp.offsets[pair]), int(mdp.offsets[pair + 1])
        outcome = first
        if last - first > 1:  # a deterministic outcome needs no random number
            outcome += _drawn(mdp.probability[first:last], self.np_random.random())
        self.state = int(mdp.next_state[outcome])
        return np.int64(self.state), float(mdp.reward[outcome]), bool(mdp.terminates[outcome]), False, {}


class MazeEnv(GridEnv):
    """Winding corridor through a square of `size` rows, with a reward of 1 at its far end only.

    The path has (size + 1)^2 / 2 - 2 steps (48 for size 9) with four actions each; a random walk of 200 steps reaches
    the end in none of a million episodes. `distance`: start that many steps before the goal instead (a curriculum).
    `key`: start in the middle, fetch a key at one end (without reward), and carry it to the other.
    """

    def __init__(self, size: int = 9, *, key: bool = False, distance: int | None = None, slip: float = 0.0) -> None:
        if size < 3 or size % 2 == 0:
            raise ConfigError(f"hone/Maze-v0: size = {size}; it must be odd, and at least 3")
        rows = winding_map(size, key=key)
        plain = grid_mdp(rows, discount=0.99, slip=slip, rewards={"G": 1.0})
        mdp = _mdp_with_key(plain, rows) if key else plain
        super().__init__(mdp if distance is None else with_start_distance(mdp, distance), rows)


class FourRoomsEnv(GridEnv):
    """Four rooms joined by four hallways; uniform start, reward 1 and termination at `goal` (row, column).

    With probability `slip` a move goes to one of the sides instead (1/3 in the paper).
    """

    def __init__(self, goal: Sequence[int] = (7, 9), *, slip: float = 1 / 3) -> None:
        row, column = goal
        inside = 0 <= row < len(ROOMS) and 0 <= column < len(ROOMS[0])
        if not inside or ROOMS[row][column] == "#":
            raise ConfigError(f"hone/FourRooms-v0: goal = {list(goal)} is not a floor cell of the map")
        marked = [list(line.replace(".", "S").replace("+", "S")) for line in ROOMS]
        marked[row][column] = "G"
        rows = ["".join(line) for line in marked]
        super().__init__(grid_mdp(rows, discount=0.99, slip=slip), rows)

    def options(self) -> list[MarkovOption]:
        """Eight hallway options: for each room and each of its hallways, the shortest path there."""
        return _hallway_options(ROOMS, actions=self.mdp.actions)


@runtime_checkable
class HasOptions(Protocol):
    """Environment with options."""

    def options(self) -> list[MarkovOption]: ...


def winding_map(size: int, *, key: bool = False) -> list[str]:
    """Make the map of `MazeEnv`: corridors in the even rows, gaps at alternate ends of the walls between them."""
    rows: list[list[str]] = []
    for number in range(size):
        corridor = number % 2 == 0
        line = list(("." if corridor else "#") * size)
        if not corridor:
            line[-1 if number % 4 == 1 else 0] = "."
        rows.append(line)
    rows[-1][-1 if (size // 2) % 2 == 0 else 0] = "G"
    if key:
        rows[0][0], rows[size // 2 - size // 2 % 2][size // 2] = "K", "S"
    else:
        rows[0][0] = "S"
    return ["".join(line).replace("K", ".") for line in rows]


def _mdp_with_key(mdp: FiniteMdp, rows: Sequence[str]) -> FiniteMdp:
    """Double the states: without the key (the goal is then plain floor), and with it.

    The key is in the upper left corner and is picked up on arrival.
    """
    goal = int(np.flatnonzero(np.array([mark == "G" for row in rows for mark in row]))[0])
    cells, owner = mdp.states, mdp.pair_of_outcome
    state, action = owner // mdp.actions, owner % mdp.actions
    moves = [(goal, move, _there(rows, goal, move)) for move in range(mdp.actions)]  # the way back from the closed goal
    back_state, back_action, back = (np.array(column, dtype=np.int64) for column in zip(*moves, strict=True))
    taken = mdp.next_state == 0
    return make_mdp(
        MdpOutcomes(
            state=np.concatenate([state, back_state, state + cells]),
            action=np.concatenate([action, back_action, action]),
            next_state=np.concatenate([np.where(taken, cells, mdp.next_state), back, mdp.next_state + cells]),
            probability=np.concatenate([mdp.probability, np.ones(len(back)), mdp.probability]),
            reward=np.concatenate([np.zeros(len(state) + len(back)), mdp.reward]),
            terminates=np.concatenate([np.zeros(len(state) + len(back), np.bool_), mdp.terminates]),
        ),
        states=2 * cells, actions=mdp.actions, start=np.concatenate([mdp.start_distribution, np.zeros(cells)]),
        discount=mdp.discount, limit=mdp.step_limit,
    )  # fmt: skip


def with_start_distance(mdp: FiniteMdp, distance: int) -> FiniteMdp:
    """Copy with a uniform start among the states `distance` steps before the end. Raises ConfigError without any."""
    away = steps_to_end(mdp)
    start = (away == distance).astype(np.float64)
    if not start.any():
        raise ConfigError(f"hone/Maze-v0: distance = {distance}; the furthest place is {away.max()} steps from its end")
    return replace(mdp, start_distribution=start / start.sum())


def steps_to_end(mdp: FiniteMdp) -> Ints:
    """Fewest steps to termination `[S]`; -1 if unreachable."""
    away = np.full(mdp.states, -1, dtype=np.int64)
    source = mdp.pair_of_outcome // mdp.actions
    new = np.unique(source[mdp.terminates])
    steps = 1
    while len(new):
        away[new] = steps
        reaches = ~mdp.terminates & np.isin(mdp.next_state, new) & (away[source] < 0)
        new = np.unique(source[reaches])
        steps += 1
    return away


def _hallway_options(rows: Sequence[str], *, actions: int) -> list[MarkovOption]:
    """Options for each room (cells joined without `+`) and each adjacent `+`: the shortest path there, stopping outside
    the room. Available in the room and its other hallways."""
    cells = np.array([list(row) for row in rows])
    width = cells.shape[1]
    halls: list[int] = [int(row * width + column) for row, column in np.argwhere(cells == "+")]
    options: list[MarkovOption] = []
    for room in _rooms(rows):
        beside = [hall for hall in halls if any(_there(rows, hall, move) in room for move in range(actions))]
        for target in beside:
            inside = np.zeros(cells.size, dtype=np.bool_)
            inside[sorted(room)] = True
            begins = inside.copy()
            begins[[hall for hall in beside if hall != target]] = True
            policy = _shortest(rows, begins, target, actions)
            options.append(
                MarkovOption(policy=policy, termination=1.0 - inside.astype(np.float64), initiation_set=begins)
            )
    return options


def _rooms(rows: Sequence[str]) -> list[set[int]]:
    width = len(rows[0])
    left = {row * width + column for row, line in enumerate(rows) for column, mark in enumerate(line) if mark == "."}
    rooms: list[set[int]] = []
    while left:
        room, waiting = set[int](), [min(left)]
        while waiting:
            cell = waiting.pop()
            if cell in left:
                left.remove(cell)
                room.add(cell)
                waiting += [_there(rows, cell, move) for move in range(4)]
        rooms.append(room)
    return rooms


def _shortest(rows: Sequence[str], within: NDArray[np.bool_], target: int, actions: int) -> Ints:
    """First action `[S]` of a shortest path to `target` through cells `within`; 0 elsewhere."""
    policy = np.zeros(len(within), dtype=np.int64)
    known, front = {target}, [target]
    while front:
        fresh: list[int] = []
        for cell in np.flatnonzero(within).tolist():
            ways = [move for move in range(actions) if _there(rows, cell, move) in front]
            if cell not in known and ways:
                policy[cell] = ways[0]
                fresh.append(cell)
        known.update(fresh)
        front = fresh
    return policy


def _there(rows: Sequence[str], cell: int, move: int) -> int:
    """Cell after a move; a wall blocks it."""
    height, width = len(rows), len(rows[0])
    down, right = MOVES[move]
    row, column = cell // width + down, cell % width + right
    inside = 0 <= row < height and 0 <= column < width and rows[row][column] != "#"
    return row * width + column if inside else cell


def _drawn(weight: Floats, luck: float) -> int:
    """Index at which the cumulative sum of `weight` exceeds `luck`."""
    return min(int(np.searchsorted(weight.cumsum(), luck * weight.sum(), side="right")), len(weight) - 1)
