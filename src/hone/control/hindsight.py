"""What recipes that learn by hindsight share: the goals of an environment, and a memory that relabels them.

Belongs here: wiring between environments with goals and `replay.hindsight`. Does not: a loss, a network.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from pydantic import Field

from hone.control.environments.make import runs_isolated
from hone.control.environments.space_advice import GoalEnv, goal_columns, has_goals
from hone.control.environments.world import GymWorld
from hone.control.job import ControlEvaluationConfig
from hone.control.off_policy import IterationReplayConfig, MethodWrapper, OffPolicyMethod, ReplayRunConfig
from hone.control.replay.hindsight import GoalSpec, HindsightBuffer, Strategy
from hone.control.replay.store import EpisodeStore
from hone.core.config import Config, new_default
from hone.core.errors import ConfigError

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
    evaluation = new_default(ControlEvaluationConfig(episodes=100))

    def check(self) -> list[str]:
        if runs_isolated(self.env):
            raise ConfigError(
                f"env.id = {self.env.id!r} runs in processes of its own, and hindsight asks its compute_reward and "
                'compute_terminated in the trainer; if you trust it, set env.isolation = "none"'
            )
        return []

    def open_replay(self, world: GymWorld) -> MethodWrapper:
        """Wrapper of a method that replaces its replay buffer by one of whole episodes, some of whose samples get other
        goals. Raises ConfigError for environments without goals."""
        goals, hindsight, replay = _goal_spec(world, self.env.id), self.hindsight, self.replay

        def relabelled(method: OffPolicyMethod[Any]) -> OffPolicyMethod[Any]:
            store = EpisodeStore(replay.capacity, half_life=replay.half_life)
            buffer = HindsightBuffer(store, goals, strategy=hindsight.strategy, share=hindsight.share)
            return replace(method, buffer=buffer)

        return relabelled

    def describe_update(self) -> str:
        return f"{self.replay.batch} transitions, {self.hindsight.share:.0%} of them with another goal"


Array: TypeAlias = NDArray[np.generic]


def _goal_spec(world: GymWorld, name: str) -> GoalSpec:
    """Places of the goals in a flattened observation, and the reward and end of a step, asked of the first environment.

    Raises ConfigError for environments `name` without goals.
    """
    inside = world.envs.envs[0].unwrapped if isinstance(world.envs, SyncVectorEnv) else None
    space = None if inside is None else inside.observation_space
    if space is None or not has_goals(space) or not isinstance(inside, GoalEnv):
        raise ConfigError(
            f"env.id = {name!r} has no goals: hindsight needs observations that are a dict of observation, "
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


def _of_pairs(ask: Callable[[Array, Array, dict[str, object]], object], dtype: type) -> Callable[[Array, Array], Any]:
    """A method of an environment with goals, of many pairs of goals at once -> `[n]` of one type."""
    return lambda reached, wanted: np.broadcast_to(np.array(ask(reached, wanted, {}), dtype=dtype), (len(reached),))
