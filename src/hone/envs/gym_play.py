"""One episode of each environment, for judging a policy.

Every environment contributes its first episode and no other: taking the first episodes to finish would favour short
ones.
"""

from collections.abc import Callable

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hone.core.errors import UserCodeError
from hone.envs.gym_make import GymConfig, Vector, autoreset_of, maker, reset_all

STEP_LIMIT = 100_000


def play(envs: Vector, best: Callable[[NDArray[np.generic]], NDArray[np.generic]], *, seed: int) -> NDArray[np.float64]:
    """Undiscounted return of the first episode of each environment after a reset from `seed` -> `[B]`.

    `best`: `[B, *observation]` -> actions `[B, *action]`, clipped to the box. Raises UserCodeError for episodes that
    do not end within 100,000 steps.
    """
    space = envs.single_action_space
    disabled = autoreset_of(envs) is AutoresetMode.DISABLED
    seen = reset_all(envs, seed)
    total, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=np.bool_)
    for _ in range(STEP_LIMIT):
        action = best(seen)
        if isinstance(space, spaces.Box):
            action = np.clip(action, space.low, space.high)
        seen, reward, terminated, truncated, _ = envs.step(action)
        total += np.where(running, reward, 0.0)
        done = np.logical_or(terminated, truncated)
        running &= ~done
        if not running.any():
            return total
        if disabled and done.any():
            seen, _ = envs.reset(options={"reset_mask": done})
    raise UserCodeError(f"{np.count_nonzero(running)} episodes did not end within {STEP_LIMIT} steps: set a time limit")


def open_arena(config: GymConfig, *, episodes: int) -> Vector:
    """Environments to judge in: as many as episodes."""
    return maker(config).many(episodes)
