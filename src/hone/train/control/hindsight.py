"""What recipes that learn by hindsight share: the goals of an environment, and a memory that relabels them.

Belongs here: wiring between environments with goals and `replay.hindsight`. Does not: a loss, a network.
"""

from typing import TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.envs.gym.goals import GoalEnv, goal_columns, has_goals
from hone.envs.gym.make import GymConfig, describe_placement, env_factory, runs_isolated
from hone.replay.hindsight import GoalReached, GoalReward, GoalSpec, HindsightBuffer, Strategy
from hone.replay.store import EpisodeStore
from hone.train.control.replay_config import IterationReplayConfig


class HindsightConfig(Config):
    """Hindsight relabelling: the share of relabelled transitions and the source of the new goals."""

    strategy: Strategy = "future"
    """Step of the same episode whose outcome becomes the goal: this or a later one, the last, or any."""
    share: float = Field(default=0.8, ge=0, le=1)
    """Share of relabelled transitions: 0.8 is the paper's k = 4; 0 is plain replay."""


Array: TypeAlias = NDArray[np.generic]


def goal_spec(config: GymConfig) -> GoalSpec:
    """Where goals stand in a flattened observation, and what meeting them pays and ends.

    Asks an environment made for it, in this process. Raises ConfigError for one that runs in others, or has no goals.
    """
    if runs_isolated(config):
        raise ConfigError(
            f"env.id = {config.id!r} runs in processes of its own, and hindsight asks its compute_reward and "
            'compute_terminated in the trainer; if you trust it, set env.isolation = "none"'
        )
    env = env_factory(config).make_one()
    inside, space = env.unwrapped, env.unwrapped.observation_space
    if not has_goals(space) or not isinstance(inside, GoalEnv):
        env.close()
        raise ConfigError(
            f"env.id = {config.id!r} has no goals: hindsight needs observations that are a dict of observation, "
            "achieved_goal and desired_goal, and the methods compute_reward(achieved, desired, info) and "
            "compute_terminated(achieved, desired, info), of one goal or many at once"
        )
    assert isinstance(space, spaces.Dict)
    reached, wanted = goal_columns(space)
    return GoalSpec(
        achieved=reached, desired=wanted, reward=_reward_function(inside), terminates=_termination_function(inside)
    )


def hindsight_buffer(config: GymConfig, replay: IterationReplayConfig, hindsight: HindsightConfig) -> HindsightBuffer:
    """A store of whole episodes whose samples have some of their goals replaced."""
    goals = goal_spec(config)
    return HindsightBuffer(EpisodeStore(replay.capacity), goals, strategy=hindsight.strategy, share=hindsight.share)


def derive_hindsight(
    env: GymConfig, *, steps: int, updates: int, replay: IterationReplayConfig, hindsight: HindsightConfig
) -> dict[str, str]:
    """What a config comes to: `steps` turns of `updates` updates."""
    batch = env.num_envs * replay.collect
    return {
        "environment steps": f"{replay.warmup} + {steps} x {batch}",
        "environments": describe_placement(env),
        "updates": f"{steps} x {updates} = {steps * updates}",
        "update": f"{replay.batch} transitions, {hindsight.share:.0%} of them with another goal",
    }


def _reward_function(env: GoalEnv) -> GoalReward:
    def reward(reached: Array, wanted: Array) -> NDArray[np.floating]:
        paid = np.asarray(env.compute_reward(reached, wanted, {}), dtype=np.float32)
        return np.broadcast_to(paid, (len(reached),))

    return reward


def _termination_function(env: GoalEnv) -> GoalReached:
    def met(reached: Array, wanted: Array) -> NDArray[np.bool_]:
        ended = np.asarray(env.compute_terminated(reached, wanted, {}), dtype=np.bool_)
        return np.broadcast_to(ended, (len(reached),))

    return met
