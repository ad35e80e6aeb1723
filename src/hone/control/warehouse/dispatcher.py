"""Who does what: policies over assignments, an episode under one, and the dispatcher of a file for programs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from numpy.typing import NDArray
from pydantic import Field

from hone.config.resolve import load
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.mlp import DiscreteActions
from hone.control.warehouse.floor import HEADINGS, NOBODY, SKILLS, Floor, FloorSpec, floor_spec, skill_versions
from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.core.random import generator

Array: TypeAlias = NDArray[Any]
Chooser: TypeAlias = Callable[[Floor, Array], int]
"""A floor and its pairs `[n]` -> the number of the pair to assign."""

GREEDY: Final = "greedy"


def choose_nearest(floor: Floor, pairs: Array) -> int:
    """The nearest task of any free robot."""
    return floor.greedy(pairs)


def random_chooser(seed: int) -> Chooser:
    """Any pair, with equal probability."""
    draws = generator(seed, "assign")

    def choose(floor: Floor, pairs: Array) -> int:
        del floor
        return int(draws.integers(len(pairs)))

    return choose


def policy_chooser(policy: ControlPolicy, spec: FloorSpec) -> Chooser:
    """The best pair by a trained policy. Raises ConfigError for one of another number of pairs."""
    actions = policy.spaces.actions
    if not isinstance(actions, DiscreteActions) or actions.count != spec.candidates:
        raise ConfigError(
            f"the policy chooses among {actions}, and this floor has {spec.candidates} pairs; train it with as many "
            "robots and requests"
        )
    acting = policy.numpy_policy()

    def choose(floor: Floor, pairs: Array) -> int:
        del pairs
        return int(acting.best(floor.seen.reshape(1, -1), floor.legal[None])[0])

    return choose


def play_floor(floor: Floor, choose: Chooser, *, seed: int, watch: Callable[[Floor], None] | None = None) -> Floor:
    """An episode from its seed to its limit; `watch` sees the floor before each step."""
    floor.begin(seed)
    while floor.state["time"] < floor.spec.limit:
        pairs = floor.choices()
        if len(pairs):
            floor.assign(pairs[choose(floor, pairs)])
        else:
            if watch is not None:
                watch(floor)
            floor.tick()
    return floor


# -------------------------------------------------------------------------------------------------------- for programs


class DispatcherConfig(Config):
    """The file of a dispatcher."""

    floor: str | list[str] = "small"
    """One of RWARE's floors by its size (`tiny`, `small`, `medium`, `large`), or the rows of a map: `.` way, `X` shelf,
    `G` goal."""
    robots: int = Field(default=4, ge=1, le=16)
    """Robots."""
    requests: int = Field(default=4, ge=1, le=40)
    """Tasks at a time, at most."""
    policy: str = GREEDY
    """`greedy` (the nearest pair), or the folder of a policy that `recipe = "dispatch"` trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotReport:
    """Where a robot is. Cells are row and column."""

    cell: tuple[int, int]
    heading: str = "up"
    carrying: tuple[int, int] | None = None
    """Home of the shelf that it carries; None: none. A shelf that is a task is delivered, another one put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a robot does next."""

    robot: int
    skill: str
    """`fetch`, `deliver`, `store`, or `wait`."""
    version: str
    """Version of the skill, for the record."""
    cell: tuple[int, int]
    """Cell that it goes to."""
    plan: tuple[tuple[int, int], ...]
    """Reserved cells, step by step from the next one: no other plan has the same cell at the same step."""


class Dispatcher:
    """Assignments and reserved ways for robots and tasks, by the policy of a file."""

    def __init__(self, config: DispatcherConfig) -> None:
        spec = floor_spec(config.floor, robots=config.robots, requests=config.requests)
        self.floor = Floor(spec)
        self.choose = (
            choose_nearest if config.policy == GREEDY else policy_chooser(load_policy(Path(config.policy)), spec)
        )

    @classmethod
    def open(cls, file: str | Path) -> "Dispatcher":
        """The dispatcher of a TOML file. Raises ConfigError with all faults, DataError for another policy."""
        return cls(load(DispatcherConfig, file).config)

    def assign(self, robots: Sequence[RobotReport], tasks: Sequence[tuple[int, int]]) -> list[Assignment]:
        """A skill and a plan for each robot; `tasks` are the homes of requested shelves. Plans of all robots are made
        anew, so the world may have changed in any way. Raises ConfigError naming every robot and task that does not
        fit the floor."""
        self._place(robots, tasks)
        floor, width, versions = self.floor, self.floor.spec.width, skill_versions()
        floor.settle()
        while len(pairs := floor.choices()):
            floor.assign(pairs[self.choose(floor, pairs)])

        def as_cell(number: int) -> tuple[int, int]:
            return divmod(number, width)

        return [
            Assignment(
                robot=number, skill=skill, version=versions[skill], cell=as_cell(int(robot["target"])),
                plan=tuple(as_cell(int(pose) // 4) for pose in robot["plan"][robot["at"] : robot["steps"]]),
            )
            for number, robot in enumerate(floor.robots)
            for skill in (SKILLS[robot["skill"]],)
        ]  # fmt: skip

    def _place(self, robots: Sequence[RobotReport], tasks: Sequence[tuple[int, int]]) -> None:
        floor = self.floor
        spec, state = floor.spec, floor.state
        floor.begin(0)
        homes = state["shelf_cell"][: int(state["shelves"])].tolist()
        places = _Places(spec, {cell: shelf for shelf, cell in enumerate(homes)})
        places.faults += _misfits(spec, robots, tasks)
        for number, (robot, report) in enumerate(zip(floor.robots, robots, strict=False)):
            robot["cell"] = robot["target"] = places.cell(report.cell, f"robot {number}")
            robot["heading"] = HEADINGS.index(report.heading) if report.heading in HEADINGS else 0
            if report.carrying is not None:
                robot["carrying"] = shelf = places.shelf(report.carrying, f"robot {number}: its shelf")
                state["shelf_cell"][shelf] = robot["cell"]
        queue = [places.shelf(cell, f"task {number}") for number, cell in enumerate(tasks)]
        if places.faults:
            raise ConfigError(*places.faults)
        state["queue"][: spec.requests] = queue + [NOBODY] * (spec.requests - len(queue))


@dataclass
class _Places:
    """Cells and shelves by row and column, and what is wrong with those asked for."""

    spec: FloorSpec
    homes: dict[int, int]
    """Cell -> shelf."""
    faults: list[str] = field(default_factory=list[str])

    def cell(self, place: tuple[int, int], what: str) -> int:
        row, column = place
        height, width = len(self.spec.layout), self.spec.width
        if 0 <= row < height and 0 <= column < width:
            return row * width + column
        self.faults.append(f"{what} at {place} is beyond the floor of {height} x {width} cells")
        return 0

    def shelf(self, place: tuple[int, int], what: str) -> int:
        shelf = self.homes.get(self.cell(place, what), NOBODY)
        if shelf == NOBODY:
            self.faults.append(f"{what} at {place}: no shelf has its place there")
        return shelf


def _misfits(spec: FloorSpec, robots: Sequence[RobotReport], tasks: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Faults of robots and tasks among each other."""
    if len(robots) != spec.robots:
        yield f"{len(robots)} robots, and the floor has {spec.robots}"
    if len(tasks) > spec.requests:
        yield f"{len(tasks)} tasks, and the floor takes {spec.requests} at a time"
    cells, loads = [report.cell for report in robots], [report.carrying for report in robots]
    for number, report in enumerate(robots):
        if report.heading not in HEADINGS:
            yield f"robot {number}: heading {report.heading!r} is not one of {', '.join(HEADINGS)}"
        if (first := cells.index(report.cell)) < number:
            yield f"robots {first} and {number} are both at {report.cell}"
        if report.carrying is not None and (first := loads.index(report.carrying)) < number:
            yield f"robots {first} and {number} both carry the shelf of {report.carrying}"
