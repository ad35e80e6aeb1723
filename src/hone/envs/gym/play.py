"""One episode of each environment, for evaluating a policy.

Every environment contributes its first episode and no other: taking the first episodes to finish would favour short
ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hone.core.episodes import ScoreStatus
from hone.core.errors import HoneError, UserCodeError
from hone.envs.gym.make import GymConfig, GymVectorEnv, autoreset_mode, describe_exception, env_factory, runs_isolated
from hone.envs.gym.subprocess_env import ProcessVectorEnv, reset_seeded

STEP_LIMIT = 100_000
ActionFn = Callable[[NDArray[np.generic]], NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeReturns:
    """Returns of an evaluation."""

    returns: NDArray[np.float64]
    """`[n]` undiscounted returns of the episodes that were not lost."""
    lost_episodes: int
    """Episodes whose environment was lost; they have no return."""
    truncated_episodes: int
    """Episodes that did not end within `limit` steps; their return is that of those steps."""
    step_limit: int


def play_episodes(envs: GymVectorEnv, best: ActionFn, *, seed: int) -> EpisodeReturns:
    """The first episode of each environment after a reset from `seed`.

    `best`: `[B, *observation]` -> actions `[B, *action]`, clipped to the box. Raises UserCodeError where an environment
    fails or gives a reward that is not a number, ResourceError where environments are lost too often.
    """
    try:
        return _play(envs, best, seed=seed)
    except HoneError:
        raise
    except Exception as fault:
        raise UserCodeError(
            f"the environment failed while a policy was evaluated: {describe_exception(fault)}"
        ) from fault


def _play(envs: GymVectorEnv, best: ActionFn, *, seed: int) -> EpisodeReturns:
    space = envs.single_action_space
    disabled = autoreset_mode(envs) is AutoresetMode.DISABLED
    seen = reset_seeded(envs, seed)
    total, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=np.bool_)
    lost = np.zeros_like(running)
    for _ in range(STEP_LIMIT):
        action = best(seen)
        if isinstance(space, spaces.Box):
            action = np.clip(action, space.low, space.high)
        seen, reward, terminated, truncated, info = envs.step(action)
        total += np.where(running, reward, 0.0)
        done = np.logical_or(terminated, truncated)
        lost |= running & _lost(info, running)
        running &= ~(done | lost)
        if disabled and done.any() and running.any():
            seen, info = envs.reset(options={"reset_mask": done})
            lost |= running & _lost(info, running)
            running &= ~lost
        if not running.any():
            break
    if not np.isfinite(total[~lost]).all():
        number = int(np.flatnonzero(~np.isfinite(total) & ~lost)[0])
        raise UserCodeError(
            f"environment {number} of an evaluation returned {total[number]} in one episode (seed {seed})"
        )
    return EpisodeReturns(
        returns=total[~lost],
        lost_episodes=int(lost.sum()),
        truncated_episodes=int(running.sum()),
        step_limit=STEP_LIMIT,
    )


def _lost(info: dict[str, Any], like: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`[B]` environments that were lost just now."""
    return info["lost"] != ScoreStatus.SCORED if "lost" in info else np.zeros_like(like)


def open_evaluation_envs(config: GymConfig, *, episodes: int) -> GymVectorEnv:
    """Environments for an evaluation: as many as episodes."""
    if not runs_isolated(config):
        return env_factory(config).make_many(episodes)
    envs = ProcessVectorEnv(config, num_envs=episodes)
    try:
        envs.start()
    except HoneError:
        envs.close()
        raise
    return envs
