"""The built-in environments, under Gymnasium's kind of name: `hone/BitFlip-v0`.

Belongs here: their registration by the names of their classes, so that nothing is imported before it is used. After an
import of this module `gymnasium.make` knows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

OPTION_MEMORY_ID = "hone/Remembering-v0"
"""Name of the built-in wrapper; it is isolated as the wrapped environment is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BuiltinEnv:
    """Registration of a built-in environment."""

    entry_point: str
    """`module:Class`."""
    max_episode_steps: int | None = None
    """Steps after which episodes are truncated; None: the environment does so itself."""
    vector_entry_point: str | None = None
    """`module:Class` of its own vector form, which truncates by itself."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Passed to both."""


def _compiled(world: str, limit: int | None = None, **options: Any) -> _BuiltinEnv:  # noqa: ANN401 - of the world
    """A world in C++."""
    return _BuiltinEnv(
        entry_point="hone.control.suite.compiled_worlds:CompiledEnv",
        max_episode_steps=limit,
        vector_entry_point="hone.control.suite.compiled_worlds:CompiledVectorEnv",
        kwargs={"world": world, **options},
    )


_MINATAR = {
    name: name.title().replace("_", "") for name in ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
}

_BUILTIN_ENVS = {
    "hone/BitFlip-v0": _BuiltinEnv(entry_point="hone.control.suite.goal_tasks:BitFlipEnv"),
    "hone/Reach-v0": _BuiltinEnv(entry_point="hone.control.suite.goal_tasks:ReachEnv"),
    "hone/Maze-v0": _BuiltinEnv(entry_point="hone.control.suite.grid_worlds:MazeEnv", max_episode_steps=200),
    "hone/Stitching-v0": _BuiltinEnv(entry_point="hone.control.finite.stitching:StitchingEnv", max_episode_steps=100),
    "hone/FourRooms-v0": _BuiltinEnv(entry_point="hone.control.suite.grid_worlds:FourRoomsEnv", max_episode_steps=300),
    "hone/CartPoleSwingUp-v0": _BuiltinEnv(
        entry_point="hone.control.suite.cartpole_swing_up:CartPoleSwingUpEnv",
        max_episode_steps=200,
        vector_entry_point="hone.control.suite.cartpole_swing_up:CartPoleSwingUpVectorEnv",
    ),
    "hone/BanditTrials-v0": _BuiltinEnv(
        entry_point="hone.control.suite.meta_tasks:make_bandit_trial",
        vector_entry_point="hone.control.suite.meta_tasks:BanditTrialsVectorEnv",
    ),
    "hone/ChainTrials-v0": _BuiltinEnv(
        entry_point="hone.control.suite.meta_tasks:make_chain_trial",
        vector_entry_point="hone.control.suite.meta_tasks:ChainTrialsVectorEnv",
    ),
    "hone/SineTrials-v0": _BuiltinEnv(
        entry_point="hone.control.suite.meta_tasks:make_sine_trial",
        vector_entry_point="hone.control.suite.meta_tasks:SineTrialsVectorEnv",
    ),
    "hone/Warehouse-v0": _BuiltinEnv(
        entry_point="hone.control.warehouse.envs:WarehouseEnv",
        max_episode_steps=100_000,  # decisions; `limit` ends an episode long before, after so many steps of the robots
        vector_entry_point="hone.control.warehouse.envs:WarehouseVectorEnv",
    ),
    "hone/WarehouseFlat-v0": _BuiltinEnv(
        entry_point="hone.control.warehouse.envs:FlatWarehouseEnv",
        max_episode_steps=100_000,
        vector_entry_point="hone.control.warehouse.envs:FlatWarehouseVectorEnv",
    ),
    "hone/WarehouseSkill-v0": _BuiltinEnv(
        entry_point="hone.control.warehouse.skills:WarehouseSkillEnv", max_episode_steps=500
    ),
    "hone/CarFollowing-v0": _BuiltinEnv(
        entry_point="hone.decide.simulators.car_following:CarFollowingEnv", max_episode_steps=200
    ),
    "hone/CartPole-v1": _compiled("cart_pole", 500),
    "hone/CartPoleNoVel-v1": _compiled("cart_pole", 500, velocities=False),
    "hone/Pendulum-v1": _compiled("pendulum", 200),
    "hone/PendulumNoVel-v1": _compiled("pendulum", 200, velocities=False),
    "hone/RepeatFirst-v0": _compiled("repeat_first"),
    **{f"hone/MinAtar{title}-v0": _compiled(name, minimal_actions=False) for name, title in _MINATAR.items()},
    **{f"hone/MinAtar{title}-v1": _compiled(name) for name, title in _MINATAR.items()},
    **{f"hone/Empty{size}x{size}-v0": _compiled(f"empty_{size}", 4 * size * size) for size in (5, 8)},
    **{f"hone/DoorKey{size}x{size}-v0": _compiled(f"door_key_{size}", 10 * size * size) for size in (5, 6, 8)},
    **{f"hone/MemoryS{size}-v0": _compiled(f"memory_{size}", 5 * size * size) for size in (7, 13)},
    OPTION_MEMORY_ID: _BuiltinEnv(entry_point="hone.control.environments.option_wrapper:make_option_memory_env"),
}


def register_builtin_envs() -> None:
    """Register the built-in environments with Gymnasium, once."""
    for name, own in _BUILTIN_ENVS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point=own.entry_point,
                vector_entry_point=own.vector_entry_point,
                max_episode_steps=own.max_episode_steps,
                kwargs=dict(own.kwargs),
            )


register_builtin_envs()
