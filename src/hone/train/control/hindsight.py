"""What recipes that learn by hindsight share: the goals of an environment, and a memory that relabels them.

Belongs here: wiring between environments with goals and `replay.hindsight`. Does not: a loss, a network.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.envs.gym.goals import GoalEnv, goal_columns, has_goals
from hone.envs.gym.make import GymConfig, env_factory, runs_isolated
from hone.replay.hindsight import GoalSpec, HindsightBuffer, Strategy
from hone.replay.store import EpisodeStore
from hone.train.control.job import ControlEvaluationConfig
from hone.train.control.off_policy import IterationReplayConfig, ReplayRunConfig

GOAL_SOURCE = "Replay(Live(Gymnasium with goals), Hindsight)"
"""Source of the episodes of these recipes, for people to read."""


class HindsightConfig(Config):
    """Hindsight relabelling: the share of relabelled transitions and the source of the new goals."""

    strategy: Strategy = "future"
    """Step of the same episode whose outcome becomes the goal: this or a later one, the last, or any."""
    share: float = Field(default=0.8, ge=0, le=1)
    """Share of relabelled transitions: 0.8 is the paper's k = 4; 0 is plain replay."""


class HindsightRunConfig(ReplayRunConfig):
    """Training in Gymnasium environments with goals, on transitions some of which have other goals."""

    replay: IterationReplayConfig = IterationReplayConfig(collect=1, batch=256, capacity=200_000)  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """The replay buffer."""
    hindsight: HindsightConfig = HindsightConfig()
    """Relabelling of goals."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig(episodes=100)
    """Evaluation of the policy."""

    def check(self) -> list[str]:
        goal_spec(self.env)
        return []

    def describe_update(self) -> str:
        return f"{self.replay.batch} transitions, {self.hindsight.share:.0%} of them with another goal"


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
        achieved=reached,
        desired=wanted,
        reward=_of_pairs(inside.compute_reward, np.float32),
        terminates=_of_pairs(inside.compute_terminated, np.bool_),
    )


def hindsight_buffer(config: HindsightRunConfig) -> HindsightBuffer:
    """Replay buffer of whole episodes, some of whose samples get other goals."""
    store, hindsight = EpisodeStore(config.replay.capacity), config.hindsight
    return HindsightBuffer(store, goal_spec(config.env), strategy=hindsight.strategy, share=hindsight.share)


def _of_pairs(ask: Callable[[Array, Array, dict[str, object]], object], dtype: type) -> Callable[[Array, Array], Any]:
    """A method of an environment with goals, of many pairs of goals at once -> `[n]` of one type."""
    return lambda reached, wanted: np.broadcast_to(np.asarray(ask(reached, wanted, {}), dtype=dtype), (len(reached),))
