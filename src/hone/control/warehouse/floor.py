"""Floors of warehouses: maps, the state of one, and the compiled rules, plans and assignments of `compiled/`.

A floor is RWARE's (Papoudakis et al., 2021): robots turn and move by cells, drive below shelves unless they carry one,
bring requested shelves to a goal and put them back. Belongs here: the C++ structures as numpy sees them, and the state
of one floor with what can be done to it. Environments for learners are in `envs.py`.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ConfigError, did_you_mean
from hone.native.build import LibraryFunctions, NativeSource, build, load_functions

Array: TypeAlias = NDArray[Any]

FOLDER: Final = Path(__file__).parent / "compiled"
LABEL: Final = "the compiled warehouse"
MAX_CELLS, MAX_ROBOTS, MAX_SHELVES, MAX_REQUESTS, MAX_GOALS, HORIZON = 512, 16, 320, 40, 8, 96
FEATURES: Final = 16
"""Numbers that describe a pair of a robot and a task."""
MAX_PAIRS: Final = 64
SIZES: Final = {"tiny": (1, 3), "small": (2, 3), "medium": (2, 5), "large": (3, 5)}
"""Rows and columns of shelf blocks of RWARE's floors."""
COLUMN_HEIGHT: Final = 8
ACTIONS: Final = ("stand", "forward", "left", "right", "load")
"""Actions of a robot by number, as RWARE counts them."""
HEADINGS: Final = ("up", "down", "left", "right")
SKILLS: Final = ("none", "fetch", "deliver", "store", "search", "wait", "evacuate")
NOBODY: Final = -1

_At = ctypes.c_void_p
_SIGNATURES: Final = {
    "hone_warehouse_sizes": (ctypes.c_int64, [ctypes.c_int32]),
    "hone_warehouse_reset": (None, [_At, _At, _At]),
    "hone_warehouse_step": (ctypes.c_int64, [_At, _At]),
    "hone_warehouse_begin": (None, [_At, _At, ctypes.c_uint64]),
    "hone_warehouse_choices": (ctypes.c_int32, [_At, _At, _At, _At, _At]),
    "hone_warehouse_default": (ctypes.c_int32, [_At, ctypes.c_int32]),
    "hone_warehouse_assign": (None, [_At, _At, _At]),
    "hone_warehouse_outcome": (ctypes.c_double, [_At, _At, _At]),
    "hone_warehouse_tick": (ctypes.c_int32, [_At, _At]),
    "hone_warehouse_actions": (ctypes.c_uint32, [_At, _At, _At]),
    "hone_warehouse_follow": (None, [_At, _At, _At, _At, ctypes.c_uint32, ctypes.c_uint32]),
    "hone_warehouse_shield": (ctypes.c_uint32, [_At, _At, _At]),
    "hone_warehouse_move": (ctypes.c_uint32, [_At, _At, _At]),
    "hone_warehouse_settle": (None, [_At, _At, ctypes.c_uint32, ctypes.c_int32]),
}

ROBOT: Final = np.dtype(
    [
        *((name, np.int16) for name in ("cell", "carrying", "target", "shelf", "still", "steps", "at")),
        *((name, np.int8) for name in ("heading", "dead", "skill", "planned")),
        ("asked", np.int16), ("since", np.int32), ("plan", np.int16, (HORIZON,)),
    ],
    align=True,
)  # fmt: skip
COUNTERS: Final = (
    "time", "deliveries", "collisions", "interventions", "failures", "searches", "unplanned", "longest_still", "idle",
    "decisions", "shelves",
)  # fmt: skip
"""Counters of an episode; `compiled/floor.h` says what each counts."""
STATE: Final = np.dtype(
    [
        ("random", np.uint64), *((name, np.int32) for name in COUNTERS), ("robot", ROBOT, (MAX_ROBOTS,)),
        ("shelf_cell", np.int16, (MAX_SHELVES,)), ("queue", np.int16, (MAX_REQUESTS,)),
        ("queued", np.int32, (MAX_REQUESTS,)), ("seen", np.uint8, (MAX_REQUESTS,)),
        ("blocked", np.uint8, (MAX_CELLS,)), ("belief", np.float32, (MAX_SHELVES,)),
    ],
    align=True,
)  # fmt: skip
PAIR: Final = np.dtype([(name, np.int16) for name in ("robot", "skill", "cell", "shelf", "steps", "probability")])


class Settings(ctypes.Structure):
    """`Settings` in compiled/floor.h."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("height", "width", "robots", "requests", "limit", "sensor")),
        *((name, ctypes.c_int32) for name in ("candidates", "difference", "preempt", "decisions", "goals")),
        ("goal", ctypes.c_int32 * MAX_GOALS),
        ("discount", ctypes.c_double),
        ("highway", ctypes.c_uint8 * MAX_CELLS),
    )


@cache
def functions() -> LibraryFunctions:
    """The compiled functions. Raises ResourceError without a compiler."""
    source = NativeSource(name="warehouse", description=LABEL, folder=FOLDER, files=(), instruction_sets=())
    loaded = load_functions(build(source).path, LABEL, _SIGNATURES)
    sizes = [loaded["hone_warehouse_sizes"](number) for number in range(6)]
    assert sizes == [ctypes.sizeof(Settings), STATE.itemsize, ROBOT.itemsize, PAIR.itemsize, FEATURES, MAX_PAIRS]
    return loaded


@cache
def skill_versions() -> dict[str, str]:
    """Skill -> digest of the compiled sources that define it and the motion below it: which skills a record was made
    with."""
    files = sorted(FOLDER.iterdir())
    whole = sha256(b"\0".join(part.name.encode() + b"\0" + part.read_bytes() for part in files)).hexdigest()[:12]
    return dict.fromkeys(SKILLS[1:], whole)


def rware_layout(rows: int, columns: int) -> list[str]:
    """The map of RWARE's floor with so many rows and columns of shelf blocks: `.` highway, `X` shelf, `G` goal."""
    height, width = (COLUMN_HEIGHT + 1) * rows + 2, 3 * columns + 1
    middle = (width // 2 - 1, width // 2)

    def mark(row: int, column: int) -> str:
        if row == height - 1:
            return "G" if column in middle else "."
        queue = row > height - (COLUMN_HEIGHT + 3) and column in middle
        return "." if column % 3 == 0 or row % (COLUMN_HEIGHT + 1) == 0 or queue else "X"

    return ["".join(mark(row, column) for column in range(width)) for row in range(height)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorSpec:
    """A map and what happens on it."""

    layout: tuple[str, ...]
    """Rows of `.` highway, `X` shelf and `G` goal."""
    robots: int
    requests: int
    """Shelves that are requested at a time; the next is drawn when one is delivered."""
    limit: int = 500
    """Steps of an episode."""
    sensor: int = 0
    """Cells around each robot in which it sees requests; 0: all requests are known."""
    preempt: bool = True
    """Whether a robot on its way to a shelf may be sent elsewhere when a request appears."""
    decisions: int = 0
    """Decisions after which an episode is cut; 0: after `limit` steps only."""
    difference: int = 0
    """Steps over which rewards, differences to the nearest pair, are simulated; 0: rewards are deliveries."""
    discount: float = 0.98
    """Discount factor of a delivery per step, in a difference."""

    @property
    def width(self) -> int:
        """Cells of a row."""
        return len(self.layout[0])

    @property
    def candidates(self) -> int:
        """Pairs that a dispatcher chooses from at most."""
        tasks = max(self.robots, self.requests) + (4 if self.sensor else 0)
        return min(MAX_PAIRS, max(8, -(-tasks * min(self.robots, 2) // 8) * 8))

    def settings(self) -> Settings:
        """The structure of the compiled functions."""
        made = Settings(
            len(self.layout), self.width, self.robots, self.requests, self.limit, self.sensor, self.candidates,
            self.difference, self.preempt, self.decisions,
        )  # fmt: skip
        made.discount = self.discount
        marks = "".join(self.layout)
        goals = [cell for cell, mark in enumerate(marks) if mark == "G"]
        made.goals = len(goals)
        made.goal[: len(goals)] = goals
        made.highway[: len(marks)] = [mark != "X" for mark in marks]
        return made


def floor_spec(
    floor: str | Sequence[str] = "small",
    *,
    robots: int = 4,
    requests: int | None = None,
    limit: int = 500,
    sensor: int = 0,
    difference: int = 0,
) -> FloorSpec:
    """A floor: one of RWARE's by its size (`tiny`, `small`, `medium`, `large`), or the rows of a map.

    `requests` are one a robot unless given (RWARE's `-easy`: twice as many, `-hard`: half). Raises ConfigError with all
    faults of a map or a number.
    """
    if isinstance(floor, str) and floor not in SIZES:
        raise ConfigError(f"floor = {floor!r} is not one of {', '.join(SIZES)}{did_you_mean(floor, [*SIZES])}")
    layout = rware_layout(*SIZES[floor]) if isinstance(floor, str) else list(floor)
    asked = robots if requests is None else requests
    marks = "".join(layout)
    shelves = marks.count("X")
    bounds = (
        ("robots", robots, 1, min(MAX_ROBOTS, len(marks))), ("requests", asked, 1, min(MAX_REQUESTS, shelves - 1)),
        ("limit", limit, 1, 2**31 - 1), ("sensor", sensor, 0, 16), ("difference", difference, 0, 10_000),
    )  # fmt: skip
    faults = [f"{name} = {value} is not in {low} .. {high}" for name, value, low, high in bounds
              if not low <= value <= high]  # fmt: skip
    if len({len(row) for row in layout}) != 1:
        faults.append("floor: its rows have different lengths")
    if unknown := sorted(set(marks) - set(".XG")):
        faults.append(f"floor: unknown mark {unknown[0]!r}; a map has . for a way, X for a shelf, G for a goal")
    counts = (
        ("goals (G)", marks.count("G"), 1, MAX_GOALS), ("shelves (X)", shelves, 2, MAX_SHELVES),
        ("cells", len(marks), 4, MAX_CELLS),
    )  # fmt: skip
    faults += [f"floor: {count} {name}; a map has {least} .. {most}" for name, count, least, most in counts
               if not least <= count <= most]  # fmt: skip
    if faults:
        raise ConfigError(*faults)
    return FloorSpec(
        layout=tuple(layout), robots=robots, requests=asked, limit=limit, sensor=sensor, difference=difference
    )  # fmt: skip


class Floor:
    """One floor: its state, and what a controller and a chance event do to it."""

    def __init__(self, spec: FloorSpec, seed: int = 0) -> None:
        self.spec = spec
        self.settings = spec.settings()
        self.state = np.zeros((), STATE)
        """One record of `STATE`."""
        self.pairs = np.zeros(MAX_PAIRS, PAIR)
        self.seen = np.zeros((spec.candidates, FEATURES), np.float32)
        """Numbers of the pairs of the last `choices`."""
        self.legal = np.zeros(spec.candidates, np.bool_)
        self._map = ctypes.addressof(self.settings)
        self._call = functions()
        self.begin(seed)

    @property
    def robots(self) -> Array:
        """Records `[robots]` of `ROBOT`: a view."""
        return self.state["robot"][: self.spec.robots]

    def begin(self, seed: int) -> None:
        """Begin an episode: robots and requests at random."""
        self._call["hone_warehouse_begin"](self._map, self.state.ctypes.data, seed)

    def choices(self) -> Array:
        """Assign what needs no choice; -> pairs `[n]` of `PAIR` to choose from, none where every robot has a task."""
        arrays = (self.state, self.pairs, self.seen, self.legal)
        count = self._call["hone_warehouse_choices"](self._map, *(one.ctypes.data for one in arrays))
        return self.pairs[:count]

    def greedy(self, pairs: Array) -> int:
        """The nearest pair: the default that a dispatcher is compared with."""
        return int(self._call["hone_warehouse_default"](pairs.ctypes.data, len(pairs)))

    def assign(self, pair: Array) -> None:
        """Give a robot its task, and plan its way around the reservations of the others."""
        self._call["hone_warehouse_assign"](self._map, self.state.ctypes.data, np.ascontiguousarray(pair).ctypes.data)

    def tick(self) -> int:
        """One step of all robots by their plans, behind the shield; -> deliveries."""
        return int(self._call["hone_warehouse_tick"](self._map, self.state.ctypes.data))

    def planned_actions(self) -> tuple[NDArray[np.int8], int]:
        """Next actions `[robots]` by the plans, behind the shield; and a bit for each robot that it holds back."""
        actions = np.zeros(MAX_ROBOTS, np.int8)
        held = self._call["hone_warehouse_actions"](self._map, self.state.ctypes.data, actions.ctypes.data)
        return actions[: self.spec.robots], int(held)

    def follow(self, poses: NDArray[np.int16], wanted: NDArray[np.int8], held: int, delivered: int) -> None:
        """Take note of a step that another world made: robots stood at `poses` (cell * 4 + heading), `wanted` was asked
        of them, and `state` holds what came of it."""
        arrays = (self.state, poses, np.ascontiguousarray(wanted))
        self._call["hone_warehouse_follow"](self._map, *(one.ctypes.data for one in arrays), held, delivered)

    def move(self, actions: Array, *, shielded: bool = False) -> tuple[NDArray[np.int8], int]:
        """One step by the rules of the floor alone, behind the shield if asked; -> the actions `[robots]` as they were
        done, and a bit for each robot that delivered."""
        taken = np.zeros(MAX_ROBOTS, np.int8)
        taken[: len(actions)] = actions
        if shielded:
            self._call["hone_warehouse_shield"](self._map, self.state.ctypes.data, taken.ctypes.data)
        delivered = self._call["hone_warehouse_move"](self._map, self.state.ctypes.data, taken.ctypes.data)
        return taken[: self.spec.robots], int(delivered)

    def settle(self, delivered: int = 0, *, replan: bool = True) -> None:
        """Take note of a change from outside: end skills that it ends, and plan anew."""
        self._call["hone_warehouse_settle"](self._map, self.state.ctypes.data, delivered, replan)

    # ----------------------------------------------------------------------------------------------- emergencies

    def close_cells(self, cells: Sequence[int]) -> None:
        """Close cells to all robots: those inside leave, those on their way through plan anew, skills that end there
        fail."""
        self.state["blocked"][list(cells)] = 1
        self.settle()

    def open_cells(self, cells: Sequence[int]) -> None:
        """Open closed cells."""
        self.state["blocked"][list(cells)] = 0
        self.settle()

    def stop_robot(self, number: int) -> None:
        """A robot dies where it stands, with what it carries: an obstacle, and its task is free for others."""
        self.robots["dead"][number] = 1
        self.robots["skill"][number] = SKILLS.index("none")
        self.settle()

    def give_up(self, number: int) -> None:
        """End a robot's skill as failed: it is free for the dispatcher, and all plans are made anew."""
        robots = self.robots
        robots["skill"][number], robots["target"][number] = SKILLS.index("none"), robots["cell"][number]
        robots["steps"][number] = robots["at"][number] = 0
        self.state["failures"] += 1
        self.settle()

    def lose_shelf(self, shelf: int) -> None:
        """A shelf vanishes: skills that need it fail, and a request of it is replaced by the next one."""
        if (self.robots["carrying"] == shelf).any():
            raise ConfigError(f"shelf {shelf} is carried by a robot: stop the robot instead")
        self.state["shelf_cell"][shelf] = NOBODY
        for place in np.flatnonzero(self.state["queue"][: self.spec.requests] == shelf):
            taken = {*self.state["queue"][: self.spec.requests].tolist()}
            left = [one for one in range(int(self.state["shelves"])) if self.state["shelf_cell"][one] >= 0]
            self.state["queue"][place] = next((one for one in left if one not in taken), NOBODY)
        self.settle()
