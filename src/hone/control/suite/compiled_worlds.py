"""Worlds in C++: games of MinAtar, rooms of MiniGrid, cart pole, pendulum, and a card game of memory.

Belongs here: their spaces and options, and both of Gymnasium's forms of them, one at a time and many. The rules are in
`compiled/`, where tests compare each step with the packages that published them, drawn from the same chance. All
states of a vector form are one array of bytes, so a copy of it is a snapshot.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from hone.core.errors import ConfigError, did_you_mean
from hone.native.build import BuiltLibrary, LibraryFunctions, NativeSource, build, load_functions

Array: TypeAlias = NDArray[np.generic]

FOLDER: Final = Path(__file__).parent / "compiled"
LIBRARY_LABEL: Final = "the compiled worlds"
STICKY: Final = 0.1
"""Probability that a game of MinAtar takes the last action again, as its authors play it."""

_BOARD_AXES: Final = 3
_CELL_PIXELS: Final = 32
_OBJECTS: Final = 11
"""Channels that say what is in a cell of a room of MiniGrid; games have fewer channels."""

_At = ctypes.c_void_p
_SIGNATURES: Final = {
    "hone_find_world": (ctypes.c_int32, [ctypes.c_char_p]),
    "hone_state_bytes": (ctypes.c_int64, [ctypes.c_int32]),
    "hone_reset_worlds": (None, [ctypes.c_int32, _At, _At, _At]),
    "hone_step_worlds": (ctypes.c_int64, [ctypes.c_int32, _At, _At]),
}


class _Rules(ctypes.Structure):
    """`Rules` in compiled/world.h."""

    _fields_ = (
        ("sticky", ctypes.c_double),
        ("ramping", ctypes.c_int32),
        ("minimal", ctypes.c_int32),
        ("limit", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("choices", ctypes.c_int32),
    )


class _Batch(ctypes.Structure):
    """`Batch` in compiled/world.h."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("states", _At),
        ("actions", _At),
        ("seen", _At),
        ("last", _At),
        ("reward", _At),
        ("terminated", _At),
        ("truncated", _At),
    )


# --------------------------------------------------------------------------------------------------------------- worlds


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """Spaces of a world, its default limit, and which options it has."""

    observation: spaces.Box
    action: spaces.Discrete | spaces.Box
    limit: int | None = None
    minimal: int = 0
    """Number of the actions that do something, where that is a choice: the first ones of a room of MiniGrid, and those
    that compiled/minatar.h lists; 0 elsewhere."""
    has_velocities: bool = False


def _game(channels: int, minimal: int, limit: int | None = None) -> _World:
    board = spaces.Box(0, 1, (10, 10, channels), np.bool_)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return _World(observation=board, action=spaces.Discrete(6), minimal=minimal, limit=limit)


def _room(size: int, minimal: int, steps_per_cell: int) -> _World:
    view = spaces.Box(0, 1, (7, 7, 20), np.bool_)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return _World(observation=view, action=spaces.Discrete(7), minimal=minimal, limit=steps_per_cell * size * size)


_POLE = np.array([4.8, np.inf, 2 * 12 * 2 * np.pi / 360, np.inf], np.float32)
_WORLDS: Final = {
    "cart_pole": _World(
        observation=spaces.Box(-_POLE, _POLE), action=spaces.Discrete(2), limit=500, has_velocities=True
    ),
    "pendulum": _World(
        observation=spaces.Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32)),
        action=spaces.Box(-2.0, 2.0, (1,), np.float32),
        limit=200,
        has_velocities=True,
    ),
    "repeat_first": _World(observation=spaces.Box(0.0, 1.0, (5,), np.float32), action=spaces.Discrete(4)),
    "asterix": _game(4, 5),
    "breakout": _game(4, 3),
    "freeway": _game(7, 3),
    "seaquest": _game(10, 6),
    "space_invaders": _game(6, 4),
    **{f"empty_{size}": _room(size, 3, 4) for size in (5, 8)},
    **{f"door_key_{size}": _room(size, 6, 10) for size in (5, 6, 8)},
    **{f"memory_{size}": _room(size, 3, 5) for size in (7, 13)},
}


def build_worlds(*, force: bool = False, checked: bool = False) -> BuiltLibrary:
    """The library, as `hone.native.build.build` makes it."""
    source = NativeSource(name="worlds", description=LIBRARY_LABEL, folder=FOLDER, files=(), instruction_sets=())
    return build(source, force=force, checked=checked)


@cache
def _functions() -> LibraryFunctions:
    return load_functions(build_worlds().path, LIBRARY_LABEL, _SIGNATURES)


class CompiledVectorEnv(VectorEnv[Array, Array, Array]):
    """Many of one compiled world; an episode that ends is followed by the next in the same step.

    `minimal_actions` leaves out the actions that do nothing in a game of MinAtar or a room of MiniGrid. `sticky` is the
    probability that a game takes the last action again, `ramping` raises its difficulty. `velocities = False` sets the
    velocities in the observation of cart pole and pendulum to 0, so that a policy needs memory. Raises ConfigError for
    an unknown world or an option that it does not have, ResourceError without a compiler.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        world: str,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        minimal_actions: bool = True,
        sticky: float = STICKY,
        ramping: bool = True,
        velocities: bool = True,
    ) -> None:
        kind = _WORLDS.get(world)
        if kind is None:
            raise ConfigError(f"world = {world!r} is not one of {', '.join(_WORLDS)}{did_you_mean(world, [*_WORLDS])}")
        if not 0.0 <= sticky <= 1.0:
            raise ConfigError(f"sticky = {sticky} is not a probability")
        if not velocities and not kind.has_velocities:
            raise ConfigError(f"velocities = false: {world} has none")
        self.num_envs = num_envs
        self.single_observation_space: spaces.Box = kind.observation  # pyright: ignore[reportIncompatibleVariableOverride]
        self.single_action_space = spaces.Discrete(kind.minimal) if kind.minimal and minimal_actions else kind.action
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._number: int = _functions()["hone_find_world"](world.encode())
        bytes_each: int = _functions()["hone_state_bytes"](self._number)
        self.states = np.zeros((num_envs, bytes_each), np.uint8)
        """`[B, bytes]`: chance, age and board of each."""
        limit = kind.limit if max_episode_steps is None else max_episode_steps
        choices = self.single_action_space.n if isinstance(self.single_action_space, spaces.Discrete) else 0
        self._rules = _Rules(sticky, ramping, minimal_actions, limit or 0, not velocities, choices)
        self._step = _StepArrays(num_envs, kind)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None, options=options)
        seeds = self.np_random.integers(0, 2**63, self.num_envs, dtype=np.uint64)
        for number, own in enumerate(seed if isinstance(seed, list) else []):
            if own is not None:
                seeds[number] = np.random.SeedSequence(own).generate_state(1, np.uint64)[0]
        self._step.batch.states = self.states.ctypes.data
        _functions()["hone_reset_worlds"](
            self._number, ctypes.byref(self._rules), ctypes.byref(self._step.batch), seeds.ctypes.data
        )
        return self._step.seen.copy(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        held = self._step
        held.chosen[:] = np.asarray(actions).reshape(held.chosen.shape)
        held.batch.states = self.states.ctypes.data  # a restored snapshot is another array
        refused = _functions()["hone_step_worlds"](self._number, ctypes.byref(self._rules), ctypes.byref(held.batch))
        if refused >= 0:
            raise ConfigError(
                f"action {held.chosen[refused]} of environment {refused} is not in {self.single_action_space}"
            )
        terminated, truncated = held.terminated.copy(), held.truncated.copy()
        ended = terminated | truncated
        info = {"final_obs": held.last.copy(), "_final_obs": ended} if ended.any() else {}
        return held.seen.copy(), held.reward.copy(), terminated, truncated, info


class _StepArrays:
    """What the C functions read and write in each step, and where it is. Slots, so that no snapshot holds it."""

    __slots__ = ("batch", "chosen", "last", "reward", "seen", "terminated", "truncated")

    def __init__(self, count: int, world: _World) -> None:
        space = world.observation
        self.chosen = np.zeros(count, np.int64 if isinstance(world.action, spaces.Discrete) else np.float32)
        self.seen, self.last = (np.zeros((count, *space.shape), space.dtype) for _ in range(2))
        self.reward = np.zeros(count)
        self.terminated, self.truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        arrays = (self.chosen, self.seen, self.last, self.reward, self.terminated, self.truncated)
        self.batch = _Batch(count, None, *(array.ctypes.data for array in arrays))


class CompiledEnv(gymnasium.Env[Array, Any]):
    """One compiled world, with the options of `CompiledVectorEnv`. Gymnasium's wrapper adds the time limit."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, world: str, *, render_mode: str | None = None, **options: Any) -> None:  # noqa: ANN401
        self.many = CompiledVectorEnv(world, 1, **options)
        self.observation_space, self.action_space = self.many.single_observation_space, self.many.single_action_space
        self.render_mode = render_mode
        self.seen: Array = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        if self.seen.ndim != _BOARD_AXES:
            self.metadata = {"render_modes": []}  # pyright: ignore[reportAttributeAccessIssue, reportIncompatibleVariableOverride]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.seen = self.many.reset(seed=seed)[0][0]
        return self.seen, {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - number or array
        seen, reward, terminated, truncated, info = self.many.step(np.asarray(action).reshape(1, -1)[:, 0])
        self.seen = info["final_obs"][0] if info else seen[0]
        return self.seen, float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> NDArray[np.uint8]:
        """The board or the agent's view `[side * 32, side * 32, 3]`.

        Each cell has the colour of its highest channel, in a room of its object. Raises ConfigError without a board.
        """
        if self.seen.ndim != _BOARD_AXES:
            raise ConfigError("this world has no board to draw")
        board = self.seen[..., :_OBJECTS]
        top = (board * np.arange(1, board.shape[-1] + 1)).max(axis=-1)
        # Colours `[channels + 1, 3]`: black for an empty cell, then hues around the circle, brighter with the channel.
        channels = board.shape[-1]
        hue = np.arange(channels)[:, None] / channels + np.array([0.0, 1 / 3, 2 / 3])
        bright = np.linspace(0.6, 1.0, channels)[:, None]
        rgb = bright * (0.5 + 0.5 * np.cos(2 * np.pi * hue))
        return np.kron(
            np.concatenate([np.zeros((1, 3)), 255 * rgb]).astype(np.uint8)[top],
            np.ones((_CELL_PIXELS, _CELL_PIXELS, 1), np.uint8),
        )
