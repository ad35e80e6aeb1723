"""Environments of the warehouse for learners: assignments as decisions, and the flat one of single robot moves.

In `hone/Warehouse-v0` a decision is a pair of a free robot and a task: a request to fetch, or a place to put a shelf
back. Between decisions the skills run on the motion layer, so that a step of the environment is as long as nobody has
to choose (a semi-Markov decision process over options). Its observation is a row of numbers for each pair.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from hone.control.environments.masks import MASK
from hone.control.warehouse.floor import FEATURES, STATE, Floor, FloorSpec, floor_spec, functions
from hone.core.errors import ConfigError

Array: TypeAlias = NDArray[np.generic]


class _FloorBatch(ctypes.Structure):
    """`Batch` in compiled/api.cpp."""

    _fields_ = (
        ("count", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in ("states", "actions", "seen", "legal", "last", "reward", "truncated")
        ),
    )  # fmt: skip


class _FloorArrays:
    """What the C functions read and write in each step. Slots, so that no snapshot holds it."""

    __slots__ = ("actions", "batch", "last", "legal", "reward", "seen", "settings", "truncated")

    def __init__(self, count: int, spec: FloorSpec) -> None:
        self.settings = spec.settings()
        shape = (count, spec.candidates * FEATURES)
        self.actions, self.reward = np.zeros(count, np.int64), np.zeros(count)
        self.seen, self.last = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.legal, self.truncated = np.zeros((count, spec.candidates), np.bool_), np.zeros(count, np.bool_)
        arrays = (self.actions, self.seen, self.legal, self.last, self.reward, self.truncated)
        self.batch = _FloorBatch(count, None, *(array.ctypes.data for array in arrays))


class WarehouseVectorEnv(VectorEnv[Array, Array, Array]):
    """Many floors; an action is the number of a pair, and `info["action_mask"]` says which there are.

    The options are those of `floor_spec`. A reward is the number of deliveries until the next decision or, with
    `difference`, the difference reward of the assignment (Wolpert & Tumer, 2002): the discounted deliveries of the next
    `difference` steps, less those after the nearest pair, both simulated from here with the same chance and the nearest
    pairs from then on. An episode is cut at `limit` steps. Raises ConfigError with all faults of the options.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(  # noqa: PLR0913 - one for each option of a config
        self,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        floor: str | Sequence[str] = "small",
        robots: int = 4,
        requests: int | None = None,
        limit: int = 500,
        sensor: int = 0,
        difference: int = 0,
    ) -> None:
        self.num_envs = num_envs
        spec = floor_spec(floor, robots=robots, requests=requests, limit=limit, sensor=sensor, difference=difference)
        self.floor_spec = replace(spec, decisions=max_episode_steps or 0)
        self.single_observation_space = spaces.Box(
            -np.inf, np.inf, (self.floor_spec.candidates * FEATURES,), np.float32
        )  # pyright: ignore[reportIncompatibleVariableOverride]
        self.single_action_space = spaces.Discrete(self.floor_spec.candidates)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.states = np.zeros((num_envs, STATE.itemsize), np.uint8)
        """`[B, bytes]`: everything about each floor."""
        self._step = _FloorArrays(num_envs, self.floor_spec)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None, options=options)
        seeds = self.np_random.integers(0, 2**63, self.num_envs, dtype=np.uint64)
        for number, own in enumerate(seed if isinstance(seed, list) else []):
            if own is not None:
                seeds[number] = np.random.SeedSequence(own).generate_state(1, np.uint64)[0]
        held = self._step
        held.batch.states = self.states.ctypes.data
        functions()["hone_warehouse_reset"](ctypes.byref(held.settings), ctypes.byref(held.batch), seeds.ctypes.data)
        return held.seen.copy(), {MASK: held.legal.copy()}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        held = self._step
        held.actions[:] = actions
        held.batch.states = self.states.ctypes.data  # a restored snapshot is another array
        refused = functions()["hone_warehouse_step"](ctypes.byref(held.settings), ctypes.byref(held.batch))
        if refused >= 0:
            raise ConfigError(
                f"action {held.actions[refused]} of environment {refused} is none of its pairs: take one of "
                f'info["{MASK}"]'
            )
        info: dict[str, Any] = {MASK: held.legal.copy()}
        if held.truncated.any():
            info |= {"final_obs": held.last.copy(), "_final_obs": held.truncated.copy()}
        return held.seen.copy(), held.reward.copy(), np.zeros(self.num_envs, np.bool_), held.truncated.copy(), info


class WarehouseEnv(gymnasium.Env[Array, Any]):
    """One floor, with the options of `WarehouseVectorEnv`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of floor_spec
        self.many = WarehouseVectorEnv(1, **options)
        self.observation_space, self.action_space = self.many.single_observation_space, self.many.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        seen, info = self.many.reset(seed=seed)
        return seen[0], {MASK: info[MASK][0]}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - a number
        seen, reward, _, truncated, info = self.many.step(np.asarray(action).reshape(1))
        mask = info[MASK][0]
        shown = info["final_obs"] if truncated[0] else seen
        return shown[0], float(reward[0]), False, bool(truncated[0]), {MASK: mask}


# --------------------------------------------------------------------------------------------------------------- flat


_LOADS, _WAYS = 3, 9


class _FlatFloors:
    """The floors of a flat environment. Slots, so that no snapshot holds them."""

    __slots__ = ("floors",)

    def __init__(self, floors: list[Floor]) -> None:
        self.floors = floors


class FlatWarehouseVectorEnv(VectorEnv[Array, Array, Array]):
    """Robots one by one, without skills: a row is a robot, an action one of its five moves, a reward its delivery.

    The numbered observation is the robot's cell, heading, load (none, requested, other) and the direction of the
    nearest requested shelf. Rows beyond whole floors do not exist: `num_envs` is rounded up to whole floors, and
    surplus robots stand.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        floor: str | Sequence[str] = "small",
        robots: int = 4,
        requests: int | None = None,
        limit: int = 500,
    ) -> None:
        self.num_envs = num_envs
        self.floor_spec = floor_spec(
            floor, robots=robots, requests=requests, limit=min(limit, max_episode_steps or limit)
        )
        cells = sum(map(len, self.floor_spec.layout))
        self.single_observation_space = spaces.Discrete(cells * 4 * _LOADS * _WAYS)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.single_action_space = spaces.Discrete(5)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        count = -(-num_envs // self.floor_spec.robots)
        self.states = np.zeros((count, STATE.itemsize), np.uint8)
        """`[floors, bytes]`: everything about each floor."""
        self._own = _FlatFloors([Floor(self.floor_spec) for _ in range(count)])

    @property
    def floors(self) -> list[Floor]:
        """The floors, over `states`, which a restored snapshot replaces."""
        for floor, row in zip(self._own.floors, self.states, strict=True):
            floor.state = row.view(STATE).reshape(())
        return self._own.floors

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None, options=options)
        for number, floor in enumerate(self.floors):
            own = seed[number * self.floor_spec.robots] if isinstance(seed, list) else None
            floor.begin(int(self.np_random.integers(2**63)) if own is None else own)
        return self._seen(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        robots = self.floor_spec.robots
        padded = np.zeros(len(self.states) * robots, np.int8)
        padded[: self.num_envs] = actions
        reward = np.zeros(len(padded))
        over = np.zeros(len(padded), np.bool_)
        floors = self.floors
        for number, floor in enumerate(floors):
            rows = slice(number * robots, (number + 1) * robots)
            _, delivered = floor.move(padded[rows])
            reward[rows] = delivered >> np.arange(robots) & 1
            over[rows] = floor.state["time"] >= self.floor_spec.limit
        info: dict[str, Any] = {}
        truncated = over[: self.num_envs]
        if truncated.any():
            info = {"final_obs": self._seen(), "_final_obs": truncated.copy()}
            for floor, ended in zip(floors, over[::robots], strict=True):
                if ended:
                    floor.begin(int(floor.state["random"] >> np.uint64(1)))
        return self._seen(), reward[: self.num_envs], np.zeros_like(truncated), truncated, info

    def _seen(self) -> NDArray[np.int64]:
        rows = [self._rows(floor) for floor in self.floors]
        return np.concatenate(rows)[: self.num_envs]

    def _rows(self, floor: Floor) -> NDArray[np.int64]:
        robots, width = floor.robots, self.floor_spec.width
        queue = floor.state["queue"][: self.floor_spec.requests]
        cells = floor.state["shelf_cell"][queue[queue >= 0]].astype(np.int64)
        place, carried = robots["cell"].astype(np.int64), robots["carrying"]
        down = cells[None] // width - place[:, None] // width
        right = cells[None] % width - place[:, None] % width
        nearest = (np.abs(down) + np.abs(right)).argmin(axis=1)
        rows = np.arange(len(robots))
        way = (np.sign(down[rows, nearest]) + 1) * 3 + np.sign(right[rows, nearest]) + 1
        load = np.where(carried < 0, 0, np.where(np.isin(carried, queue), 1, 2))
        return ((place * 4 + robots["heading"]) * _LOADS + load) * _WAYS + way


class FlatWarehouseEnv(gymnasium.Env[Any, Any]):
    """One robot of a floor on which the others stand, in the flat form; `FlatWarehouseVectorEnv` has all of them."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of floor_spec
        self.many = FlatWarehouseVectorEnv(1, **options)
        self.observation_space, self.action_space = self.many.single_observation_space, self.many.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.many.reset(seed=seed)[0][0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - a number
        seen, reward, _, truncated, info = self.many.step(np.asarray(action).reshape(1))
        shown = info["final_obs"] if truncated[0] else seen
        return shown[0], float(reward[0]), False, bool(truncated[0]), {}
