"""Who does what: policies over assignments, an episode under one, and the dispatcher of a file for programs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from numpy.typing import NDArray
from pydantic import Field

from hone.config.resolve import load
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.mlp import DiscreteActions
from hone.control.warehouse.floor import ACTIONS, HEADINGS, NOBODY, SKILLS, Floor, FloorSpec, floor_spec
from hone.control.warehouse.skills import SkillPolicy, begun_execution, planned_skill, skill_rows
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


def play_floor(
    floor: Floor,
    choose: Chooser,
    *,
    seed: int,
    watch: Callable[[Floor], None] | None = None,
    step: Callable[[Floor], int] = Floor.tick,
) -> Floor:
    """An episode from its seed to its limit; `watch` sees the floor before each step, and `step` makes it."""
    floor.begin(seed)
    while floor.state["time"] < floor.spec.limit:
        pairs = floor.choices()
        if len(pairs):
            floor.assign(pairs[choose(floor, pairs)])
        else:
            if watch is not None:
                watch(floor)
            step(floor)
    return floor


# -------------------------------------------------------------------------------------------------------- for programs


class SkillsConfig(Config):
    """Versions of skills: those of a library, or the planned way that is built in."""

    library: str = ""
    """Folder of a library; empty: every skill follows its planned way."""
    versions: dict[str, str] = {}
    """Skill -> version that is used whatever the library's champion is."""


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
    limit: int = Field(default=500, ge=1)
    """Steps of an episode, where episodes are played."""
    skills: SkillsConfig = SkillsConfig()
    """Versions of skills."""

    def spec(self) -> FloorSpec:
        """The floor. Raises ConfigError with all faults of the map."""
        return floor_spec(self.floor, robots=self.robots, requests=self.requests, limit=self.limit)

    def chooser(self) -> Chooser:
        """The policy over pairs. Raises DataError for a damaged folder, ConfigError for another number of pairs."""
        return choose_nearest if self.policy == GREEDY else policy_chooser(load_policy(Path(self.policy)), self.spec())


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
    move: str
    """The next move by that version, behind the shield: `stand`, `forward`, `left`, `right` or `load`."""
    cell: tuple[int, int]
    """Cell that it goes to."""
    plan: tuple[tuple[int, int], ...]
    """Reserved cells, step by step from the next one: no other plan has the same cell at the same step."""


class Dispatcher:
    """Assignments and reserved ways for robots and tasks, by the policy of a file."""

    def __init__(self, config: DispatcherConfig, skills: Mapping[str, SkillPolicy] | None = None) -> None:
        self.floor = Floor(config.spec())
        self.choose = config.chooser()
        self.skills = {skill: planned_skill(skill) for skill in SKILLS[1:]} | dict(skills or {})
        """Version of each skill."""

    @classmethod
    def open(cls, file: str | Path) -> "Dispatcher":
        """The dispatcher of a TOML file. Raises ConfigError with all faults, and for a file with versions of skills,
        which `hone.api.warehouse.load` opens; DataError for another policy."""
        config = load(DispatcherConfig, file).config
        if config.skills.library or config.skills.versions:
            raise ConfigError(f"{file} names versions of skills: open it with hone.api.warehouse.load({str(file)!r})")
        return cls(config)

    def assign(self, robots: Sequence[RobotReport], tasks: Sequence[tuple[int, int]]) -> list[Assignment]:
        """A skill and a plan for each robot; `tasks` are the homes of requested shelves. Plans of all robots are made
        anew, so the world may have changed in any way. Raises ConfigError naming every robot and task that does not
        fit the floor."""
        self._place(robots, tasks)
        floor, width = self.floor, self.floor.spec.width
        floor.settle()
        while len(pairs := floor.choices()):
            floor.assign(pairs[self.choose(floor, pairs)])

        plans = [robot["plan"][robot["at"] : robot["steps"]].tolist() for robot in floor.robots]
        targets, names = floor.robots["target"].tolist(), [SKILLS[skill] for skill in floor.robots["skill"]]
        moves = self._moves(names)
        return [
            Assignment(
                robot=number, skill=skill, version=self.skills[skill].version, move=ACTIONS[move],
                cell=divmod(target, width), plan=tuple(divmod(pose // 4, width) for pose in plan),
            )
            for number, (skill, move, target, plan) in enumerate(zip(names, moves, targets, plans, strict=True))
        ]  # fmt: skip

    def _moves(self, names: Sequence[str]) -> list[int]:
        """The next move of each robot by the version of its skill."""
        floor = self.floor
        asked = floor.planned_actions()[0]
        learnt = [
            (begun_execution(floor, number, 0, policy), policy.moves)
            for number, policy in enumerate(map(self.skills.__getitem__, names))
            if policy.moves is not None
        ]
        rows = skill_rows(floor, [execution for execution, _ in learnt], asked)
        chosen = [int(moves(row[None])[0]) for (_, moves), row in zip(learnt, rows, strict=True)]
        for (execution, _), move in zip(learnt, chosen, strict=True):
            asked[execution.robot] = move
        return floor.move(asked, shielded=True)[0].tolist()  # plans are made anew at the next call

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
