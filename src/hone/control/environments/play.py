"""One episode of each environment, for evaluating a policy.

Every environment contributes its first episode and no other: taking the first episodes to finish would favour short
ones.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hone.control.environments.make import (
    DEFAULT_STEP_LIMIT,
    GymConfig,
    GymVectorEnv,
    autoreset_mode,
    describe_exception,
    env_factory,
    runs_isolated,
)
from hone.control.environments.masks import with_choices
from hone.control.environments.rollout import env_actions, not_finite
from hone.control.environments.subprocess_env import ProcessVectorEnv, lost_status, reset_seeded
from hone.core.clock import LongWork, long_work
from hone.core.episodes import ScoreStatus
from hone.core.errors import HoneError, UserCodeError
from hone.core.out_of_memory import out_of_memory

HISTORY_ACTIONS = 3
ActionFn = Callable[..., NDArray[np.generic]]
"""Observations `[B, *observation]`, and masks `[B, M]` of legal actions where the environments tell them -> actions
`[B, *action]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EpisodeReturns:
    """Returns of an evaluation."""

    returns: NDArray[np.float64]
    """`[n]` undiscounted returns of the episodes that were not lost."""
    lost_episodes: int
    """Episodes whose environment was lost; they have no return."""
    truncated_episodes: int
    """Episodes that did not end within `step_limit` steps; their return is that of those steps."""
    step_limit: int


def play_episodes(
    envs: GymVectorEnv, best: ActionFn, *, seed: int, step_limit: int = DEFAULT_STEP_LIMIT
) -> _EpisodeReturns:
    """The first episode of each environment after a reset from `seed`, for at most `step_limit` steps.

    `best`: `[B, *observation]` -> actions `[B, *action]`, clipped to the box. Raises UserCodeError where an environment
    fails or gives numbers that are not finite, ResourceError where environments are lost too often.
    """
    try:
        with long_work("episodes played", envs.num_envs) as work:
            return _play(envs, best, work, seed=seed, step_limit=step_limit)
    except HoneError:
        raise
    except Exception as fault:
        if out_of_memory(fault):
            raise
        raise UserCodeError(
            f"the environment failed while a policy was evaluated: {describe_exception(fault)}"
        ) from fault


def _play(envs: GymVectorEnv, best: ActionFn, work: LongWork, *, seed: int, step_limit: int) -> _EpisodeReturns:
    disabled = autoreset_mode(envs) is AutoresetMode.DISABLED
    (seen, masks), space = reset_seeded(envs, seed), envs.single_action_space
    total, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=np.bool_)
    lost, unended, step = np.zeros_like(running), np.zeros_like(running), 0
    recent: deque[NDArray[np.generic]] = deque(maxlen=HISTORY_ACTIONS)
    _require_finite("observation", seen, running, recent, seed=seed, step=0)
    for step in range(1, step_limit + 1):
        masks.require_choice(running, where=f"before step {step} of an evaluation (seed {seed})")
        legal = () if masks.now is None else (with_choices(masks.now, space),)
        action = env_actions(best(seen, *legal), space, clip=True)
        recent.append(action)
        seen, reward, terminated, truncated, info = envs.step(action)
        masks.after_step(info, where=f"step {step} of an evaluation")
        lost |= running & _lost(envs, info)
        running &= ~lost
        _require_finite("reward", np.asarray(reward), running, recent, seed=seed, step=step)
        total += np.where(running, reward, 0.0)
        unended = running & ~terminated
        done = np.logical_or(terminated, truncated)
        running &= ~done
        if disabled and done.any() and running.any():
            seen, info = envs.reset(options={"reset_mask": done})
            masks.after_reset(info, done, where=f"the reset after step {step} of an evaluation")
            lost |= running & _lost(envs, info)
            running &= ~lost
        work.advance(envs.num_envs - int(running.sum()) - work.done)
        if not running.any():
            break
        _require_finite("observation", np.asarray(seen), running, recent, seed=seed, step=step)
    cut = unended if step == step_limit else running
    return _EpisodeReturns(
        returns=total[~lost], lost_episodes=int(lost.sum()), truncated_episodes=int(cut.sum()), step_limit=step_limit
    )


def _require_finite(
    name: str,
    values: NDArray[np.generic],
    running: NDArray[np.bool_],
    recent: Sequence[NDArray[np.generic]],
    *,
    seed: int,
    step: int,
) -> None:
    """Raises UserCodeError for numbers `[B, ...]` of a running environment that are not finite."""
    wrong = not_finite(values)
    if not wrong.any():
        return
    rows = np.flatnonzero(running & wrong.reshape(len(values), -1).any(axis=1))
    if len(rows):
        number = int(rows[0])
        raise UserCodeError(
            f"{name} of environment {number} at step {step} of an evaluation is not finite: "
            f"{values[number].tolist()}; seed {seed}, its last actions {[action[number].tolist() for action in recent]}"
        )


def _lost(envs: GymVectorEnv, info: dict[str, Any]) -> NDArray[np.bool_]:
    """`[B]` environments that were lost just now."""
    status = lost_status(info)
    return np.zeros(envs.num_envs, np.bool_) if status is None else status != ScoreStatus.SCORED


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
