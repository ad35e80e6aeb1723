"""Skills as versioned policies: the folder of a version, a robot's moves by it, and the executions on a floor.

A skill takes its robot to the target of its task and loads or unloads there. Its moves are those of the planned way
(`kind = "planned"`), or those of a policy that was trained in `hone/WarehouseSkill-v0` (`kind = "policy"`). The shield
stands behind both. An execution that takes too long, or takes hold of the wrong shelf, has failed: its robot is free
for the dispatcher at once, and its next execution follows the planned way.

Belongs here: what a version does on a floor. Which version an execution gets is its caller's choice.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import DiscreteActions
from hone.control.warehouse.floor import ACTIONS, HEADINGS, NOBODY, SKILLS, STATE, Floor, floor_spec, skill_versions
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.core.strict_json import strict_json

Array: TypeAlias = NDArray[Any]

VERSIONED: Final = ("fetch", "deliver", "store", "search")
"""Skills that have versions. To wait and to leave a closed aisle are the motion layer's own."""
ROW: Final = 12
"""Numbers that a skill's policy sees."""
SKILL_FILE: Final = "skill.json"
_FORMAT: Final = 1
_LEFT_OF: Final = dict(zip(HEADINGS, ("left", "right", "down", "up"), strict=True))
_STEP: Final = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


# ------------------------------------------------------------------------------------------------------------- versions


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillPolicy:
    """A version of a skill."""

    skill: str
    version: str
    moves: Callable[[Array], Array] | None = None
    """Rows `[n, ROW]` -> actions `[n]`; None: the planned way."""


def planned_skill(skill: str) -> SkillPolicy:
    """The built-in version: the planned way, named by the digest of the compiled sources."""
    return SkillPolicy(skill=skill, version=skill_versions()[skill])


def write_skill(folder: str | Path, skill: str, policy: str | Path | None = None) -> None:
    """Write the folder of a version: of the planned way, or of the control policy in the folder `policy`. Raises
    ConfigError for a skill without versions, DataError for a policy that is none for a skill."""
    require_skill(skill)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kind = "planned" if policy is None else "policy"
    sources = skill_versions()[skill] if policy is None else ""
    if policy is not None:
        save_policy(load_policy(Path(policy)), folder / "policy")
    content = {"format": _FORMAT, "skill": skill, "kind": kind, "sources": sources}
    (folder / SKILL_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    read_skill(folder, skill)


def read_skill(folder: Path, skill: str, version: str = "") -> SkillPolicy:
    """The version in a folder. Raises DataError for one of another skill, of other compiled sources, or without a
    policy for it."""
    path = folder / SKILL_FILE
    if not path.is_file():
        raise DataError(f"{folder} has no {SKILL_FILE}: write the folder of a version with `warehouse.write_skill`")
    try:
        content = cast("dict[str, object]", strict_json(path.read_bytes()))
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}; recall another version, or add it again") from error
    if content.get("format") != _FORMAT:
        raise DataError(
            f"{path} has format {content.get('format')}, this hone reads {_FORMAT}; use the hone that wrote it"
        )
    if content.get("skill") != skill:
        raise DataError(f"{path} is a version of {content.get('skill')!r}, and {skill!r} was asked for")
    if content.get("kind") == "planned":
        own = skill_versions()[skill]
        if content.get("sources") != own:
            raise DataError(
                f"{path} is the planned way of the sources {content.get('sources')}, and this hone has {own}: plans "
                "could differ; add this hone's version, or use the hone that wrote it"
            )
        return SkillPolicy(skill=skill, version=version or own)
    policy = load_policy(folder / "policy")
    actions = policy.spaces.actions
    if policy.spaces.inputs.size != ROW or not isinstance(actions, DiscreteActions) or actions.count != len(ACTIONS):
        raise DataError(
            f"{folder / 'policy'} sees {policy.spaces.inputs.size} numbers and chooses {actions}; a skill sees {ROW} "
            f"and chooses among {len(ACTIONS)} moves: train it in hone/WarehouseSkill-v0"
        )
    acting = policy.numpy_policy()

    def moves(rows: Array) -> Array:
        return acting.best(rows)

    return SkillPolicy(skill=skill, version=version, moves=moves)


def require_skill(skill: str) -> None:
    """Raise ConfigError for a skill that has no versions."""
    if skill not in VERSIONED:
        raise ConfigError(f"skill {skill!r} has no versions{did_you_mean(skill, VERSIONED)}")


# ----------------------------------------------------------------------------------------------------------- executions


ExecutionEnd: TypeAlias = Literal["", "done", "failed", "interrupted"]
"""Empty: under way."""


@dataclass(slots=True, kw_only=True)
class SkillExecution:
    """A robot's way to the end of one task, by one version."""

    number: int
    robot: int
    skill: str
    version: str
    route: str = ""
    """Trial, arm and stage that the execution was assigned to; empty: none."""
    shelf: int
    begun: int
    """Step of the floor at which it began."""
    way: int
    """Steps of the way that was planned at its begin, with the step that loads or unloads."""
    steps: int = 0
    end: ExecutionEnd = ""
    """`failed`: not done within `allotted` steps, with the wrong load, or called off after twice the planned way.
    `interrupted`: called off earlier, which says nothing about the version."""

    @property
    def allotted(self) -> int:
        """Steps after which it has failed."""
        return 3 * self.way + 20

    @property
    def score(self) -> float | None:
        """Planned steps over taken ones, at most 1, and 0 for a failure; None: neither done nor failed."""
        scores = {"done": min(1.0, self.way / max(self.steps, 1)), "failed": 0.0}
        return scores.get(self.end)


def begun_execution(floor: Floor, robot: int, number: int, policy: SkillPolicy, route: str = "") -> SkillExecution:
    """The execution that a robot begins now."""
    own, width = floor.robots[robot], floor.spec.width
    ends = np.array([divmod(int(own["cell"]), width), divmod(int(own["target"]), width)])
    way = max(int(own["steps"]) - int(own["at"]), int(np.abs(ends[0] - ends[1]).sum()))  # no plan yet: the distance
    return SkillExecution(
        number=number, robot=robot, skill=policy.skill, version=policy.version, route=route, shelf=int(own["shelf"]),
        begun=int(own["since"]), way=way + (policy.skill in ("fetch", "store")),
    )  # fmt: skip


def _note_step(floor: Floor, execution: SkillExecution, delivered: int) -> None:
    """Count a step of an execution, and end it where it is done or has failed. `delivered`: a bit for each robot."""
    robot = floor.robots[execution.robot]
    carrying, shelf = int(robot["carrying"]), execution.shelf
    execution.steps += 1
    is_done = {
        "fetch": carrying == shelf,
        "deliver": bool(delivered >> execution.robot & 1),
        "store": carrying == NOBODY,
        "search": robot["cell"] == robot["target"],
    }[execution.skill]
    wrong_load = {"fetch": carrying != NOBODY, "deliver": carrying == NOBODY}.get(execution.skill, False)
    if is_done:
        execution.end = "done"
    elif wrong_load or execution.steps >= execution.allotted:
        execution.end = "failed"


def _is_under_way(floor: Floor, execution: SkillExecution) -> bool:
    """True while the robot is at the task that the execution began with."""
    robot = floor.robots[execution.robot]
    same = (SKILLS[robot["skill"]], int(robot["shelf"]), int(robot["since"]))
    return not robot["dead"] and same == (execution.skill, execution.shelf, execution.begun)


def skill_rows(floor: Floor, executions: list[SkillExecution], planned: Array) -> NDArray[np.float32]:
    """Rows `[n, ROW]` that the policies of executions see: the planned move (one of five), whether the cells ahead, to
    the left and to the right can be entered, the target's distance ahead and to the right in sides of the floor, the
    load, and the part of the allotted steps that is used."""
    state, width, height = floor.state, floor.spec.width, len(floor.spec.layout)
    occupied = set(floor.robots["cell"].tolist())
    carried = {int(shelf) for shelf in floor.robots["carrying"]}
    standing = {
        int(cell) for shelf, cell in enumerate(state["shelf_cell"][: int(state["shelves"])]) if shelf not in carried
    }
    rows = np.zeros((len(executions), ROW), np.float32)
    for row, execution in zip(rows, executions, strict=True):
        robot = floor.robots[execution.robot]
        heading, loaded = HEADINGS[robot["heading"]], robot["carrying"] != NOBODY
        line, column = divmod(int(robot["cell"]), width)
        left = _LEFT_OF[heading]
        right = next(name for name in HEADINGS if _LEFT_OF[name] == heading)
        row[int(planned[execution.robot])] = 1.0
        for place, side in enumerate((heading, left, right), start=5):
            down, east = line + _STEP[side][0], column + _STEP[side][1]
            cell = down * width + east
            inside = 0 <= down < height and 0 <= east < width
            blocked = not inside or state["blocked"][cell] or cell in occupied or (loaded and cell in standing)
            row[place] = not blocked
        down, east = (int(robot["target"]) // width - line, int(robot["target"]) % width - column)
        for place, side in ((8, heading), (9, right)):
            row[place] = (down * _STEP[side][0] + east * _STEP[side][1]) / (height + width)
        row[10] = loaded
        row[11] = execution.steps / execution.allotted
    return rows


def step_by_moves(floor: Floor, moves: Mapping[int, int]) -> int:
    """One step in which robots make moves of their own, behind the shield -> robots that delivered, a bit each."""
    planned, held_by_plan = floor.planned_actions()
    asked = planned.copy()
    for robot, action in moves.items():
        asked[robot] = action
    poses = (floor.robots["cell"] * 4 + floor.robots["heading"]).astype(np.int16)
    taken, delivered = floor.move(asked, shielded=True)
    held = held_by_plan & ~sum(1 << robot for robot in moves)
    held |= sum(1 << number for number in range(len(asked)) if asked[number] != taken[number])
    floor.follow(poses, taken, held, delivered)
    if (asked != planned).any():
        floor.settle()
    return delivered


SkillSelector: TypeAlias = Callable[[str, int], tuple[SkillPolicy, str]]
"""A skill and the number of an execution -> the version that it gets, and the route of its trial."""


@dataclass(slots=True, kw_only=True)
class SkillRunner:
    """Executions of skills on a floor; `step` takes the place of `Floor.tick`."""

    floor: Floor
    select: SkillSelector
    executions: list[SkillExecution] = field(default_factory=list[SkillExecution])
    """All of them, in the order of their begin; those under way have no end."""
    _open: dict[int, tuple[SkillExecution, SkillPolicy]] = field(default_factory=dict)
    _failed: set[int] = field(default_factory=set[int])
    """Robots whose last execution failed: the next one follows the planned way."""

    def step(self, floor: Floor) -> int:
        """One step of all robots -> deliveries."""
        self._begin()
        learnt = [pair for pair in self._open.values() if pair[1].moves is not None]
        before = int(floor.state["deliveries"])
        moves: dict[int, int] = {}
        rows = skill_rows(floor, [execution for execution, _ in learnt], floor.planned_actions()[0])
        for (execution, policy), row in zip(learnt, rows, strict=True):
            assert policy.moves is not None
            moves[execution.robot] = int(policy.moves(row[None])[0])
        delivered = step_by_moves(floor, moves)
        for execution, _ in list(self._open.values()):
            _note_step(floor, execution, delivered)
            if execution.end:
                self._end(execution, execution.end)
        return int(floor.state["deliveries"]) - before

    def close(self) -> None:
        """End what is under way as interrupted: the episode is over."""
        for execution, _ in self._open.values():
            execution.end = "interrupted"
        self._open.clear()

    def _begin(self) -> None:
        floor = self.floor
        for robot, own in enumerate(floor.robots):
            held = self._open.get(robot)
            if held is not None and _is_under_way(floor, held[0]):
                continue
            if held is not None:
                late = held[0].steps > 2 * held[0].way
                self._end(held[0], "failed" if late else "interrupted")
            skill = SKILLS[own["skill"]]
            if own["dead"] or skill not in VERSIONED:
                continue
            number = len(self.executions)
            policy, route = (planned_skill(skill), "") if robot in self._failed else self.select(skill, number)
            self._failed.discard(robot)
            execution = begun_execution(floor, robot, number, policy, route)
            self.executions.append(execution)
            self._open[robot] = execution, policy

    def _end(self, execution: SkillExecution, end: ExecutionEnd) -> None:
        execution.end = end
        del self._open[execution.robot]
        if end == "failed":
            self._failed.add(execution.robot)
            if _is_under_way(self.floor, execution):
                self.floor.give_up(execution.robot)


# ---------------------------------------------------------------------------------------------------------- environment


class _OwnFloor:
    """The floor of an environment. Slots, so that no snapshot holds it: its state is the environment's."""

    __slots__ = ("floor",)

    def __init__(self, floor: Floor) -> None:
        self.floor = floor


class WarehouseSkillEnv(gymnasium.Env[Array, Any]):
    """One execution of a skill by the first robot, among others that follow their planned ways.

    An observation has the numbers of `skill_rows`; an action is one of the five moves, behind the shield. A step costs
    0.01 and the end of the task pays 1; a failure ends the episode with nothing. Options: `skill`, and those of
    `floor_spec` but for `limit` and `difference`. Raises ConfigError with all faults of the options.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, *, skill: str = "fetch", robots: int = 2, **options: Any) -> None:  # noqa: ANN401 - floor_spec's
        require_skill(skill)
        spec = replace(floor_spec(robots=robots, **options), preempt=False)
        self.skill, self.robots = skill, robots
        self.observation_space = spaces.Box(-1.0, 1.0, (ROW,), np.float32)
        self.action_space = spaces.Discrete(len(ACTIONS))
        self._own = _OwnFloor(Floor(spec))
        self.state = np.zeros(STATE.itemsize, np.uint8)
        """`[bytes]`: everything about the floor."""
        self.way = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        floor = self._floor
        while True:
            floor.begin(int(self.np_random.integers(2**63)))
            while floor.state["time"] < floor.spec.limit:
                assign_nearest(floor)
                if SKILLS[floor.robots["skill"][0]] == self.skill:
                    begun = begun_execution(floor, 0, 0, planned_skill(self.skill))
                    self.way, self.steps = begun.way, 0
                    return self._seen(begun), {}
                floor.tick()

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - a number
        floor = self._floor
        execution = self._execution()
        delivered = step_by_moves(floor, {0: int(action)})
        _note_step(floor, execution, delivered)
        self.steps = execution.steps
        assign_nearest(floor)
        over = bool(execution.end) or not _is_under_way(floor, execution)
        reward = (1.0 if execution.end == "done" else 0.0) - 0.01
        return self._seen(execution), reward, over, False, {}

    @property
    def _floor(self) -> Floor:
        """The floor, over `state`, which a restored snapshot replaces."""
        floor = self._own.floor
        floor.state = self.state.view(STATE).reshape(())
        return floor

    def _execution(self) -> SkillExecution:
        begun = begun_execution(self._floor, 0, 0, planned_skill(self.skill))
        begun.way, begun.steps = self.way, self.steps
        return begun

    def _seen(self, execution: SkillExecution) -> Array:
        return skill_rows(self._floor, [execution], self._floor.planned_actions()[0])[0]


def assign_nearest(floor: Floor) -> None:
    """Give every free robot the nearest task."""
    while len(pairs := floor.choices()):
        floor.assign(pairs[floor.greedy(pairs)])
