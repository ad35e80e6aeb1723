"""Goal tasks with sparse rewards: flipping bits, reaching a point."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hone.control.environments.space_advice import ACHIEVED, DESIRED, OBSERVATION, Floats, GoalObservation, goal_space
from hone.core.errors import ConfigError


class BitFlipEnv(gymnasium.Env[Any, np.int64]):
    """Bit flipping: each action flips one of `bits` bits. Reward 1 and termination at the goal; truncated after `bits`.

    The task of Andrychowicz et al. (2017, 1707.01495): a random policy reaches the goal in about one of 3,000 episodes
    with 15 bits, and never with 40. A bit is -1 or 1. With `every_step` the reward is -1 before the goal and 0 at the
    goal, as in the paper.
    """

    def __init__(self, bits: int = 8, *, every_step: bool = False) -> None:
        if bits < 1:
            raise ConfigError(f"hone/BitFlip-v0: bits = {bits}; there must be at least 1")
        self.bits, self.every_step = bits, every_step
        self.observation_space = goal_space(np.ones(bits), np.ones(bits))
        self.action_space = spaces.Discrete(bits)
        self.now: Floats = np.ones(bits, np.float32)
        self.goal: Floats = np.ones(bits, np.float32)
        self.taken = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[GoalObservation, dict[str, Any]]:
        del options
        super().reset(seed=seed)
        self.now, self.goal = (2 * self.np_random.integers(0, 2, (2, self.bits)) - 1).astype(np.float32)
        if (self.now == self.goal).all():  # the start must differ from the goal
            self.goal[self.np_random.integers(self.bits)] *= -1.0
        self.taken = 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[GoalObservation, float, bool, bool, dict[str, Any]]:
        self.now = self.now.copy()
        self.now[action] *= -1.0
        self.taken += 1
        met = bool(self.compute_terminated(self.now, self.goal, None))
        reward = float(self.compute_reward(self.now, self.goal, None))
        return self._seen(), reward, met, self.taken >= self.bits and not met, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:  # noqa: ANN401 - GoalEnv
        """Reward, `[]` or `[n]`."""
        met = self.compute_terminated(achieved_goal, desired_goal, info)
        return np.asarray(met, np.float32) - (1.0 if self.every_step else 0.0)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:  # noqa: ANN401 - GoalEnv
        """True if every bit equals the goal, `[]` or `[n]`."""
        del info
        return (np.asarray(achieved_goal) == np.asarray(desired_goal)).all(axis=-1)

    def _seen(self) -> GoalObservation:
        return {OBSERVATION: self.now.copy(), ACHIEVED: self.now.copy(), DESIRED: self.goal.copy()}


class ReachEnv(gymnasium.Env[Any, Floats]):
    """Reaching: move a point with inertia in the cube [-1, 1]^d to within `radius` of a goal.

    Actions in [-1, 1]^d accelerate it: velocity = 0.7 * velocity + 0.1 * action. Reward 1 and termination at the goal;
    truncated after `limit` steps. With `every_step` the reward is -1 before the goal. In 4 dimensions random actions
    rarely reach it: a ball of radius 0.2 is 0.05% of the cube.
    """

    def __init__(self, dimensions: int = 4, *, radius: float = 0.2, limit: int = 50, every_step: bool = False) -> None:
        if dimensions < 1 or not radius > 0 or limit < 1:
            raise ConfigError(
                f"hone/Reach-v0: dimensions = {dimensions}, radius = {radius}, limit = {limit}; all must be above 0"
            )
        self.dimensions, self.radius, self.limit, self.every_step = dimensions, radius, limit, every_step
        self.observation_space = goal_space(np.ones(dimensions), np.ones(dimensions))
        self.action_space = spaces.Box(-1.0, 1.0, (dimensions,), np.float32)
        self.place: Floats = np.zeros(dimensions, np.float32)
        self.velocity: Floats = np.zeros(dimensions, np.float32)
        self.goal: Floats = np.zeros(dimensions, np.float32)
        self.taken = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[GoalObservation, dict[str, Any]]:
        del options
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1.0, 1.0, (2, self.dimensions)).astype(np.float32)
        self.velocity = np.zeros(self.dimensions, np.float32)
        self.taken = 0
        return self._seen(), {}

    def step(self, action: Floats) -> tuple[GoalObservation, float, bool, bool, dict[str, Any]]:
        push = np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        self.velocity = (0.7 * self.velocity + 0.1 * push).astype(np.float32)
        self.place = np.clip(self.place + self.velocity, np.float32(-1), np.float32(1))
        self.taken += 1
        met = bool(self.compute_terminated(self.place, self.goal, None))
        reward = float(self.compute_reward(self.place, self.goal, None))
        return self._seen(), reward, met, self.taken >= self.limit and not met, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:  # noqa: ANN401 - GoalEnv
        """Reward, `[]` or `[n]`."""
        met = self.compute_terminated(achieved_goal, desired_goal, info)
        return np.asarray(met, np.float32) - (1.0 if self.every_step else 0.0)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:  # noqa: ANN401 - GoalEnv
        """True if the point is within `radius` of the goal, `[]` or `[n]`."""
        del info
        away = np.asarray(achieved_goal, np.float64) - np.asarray(desired_goal, np.float64)
        return np.linalg.norm(away, axis=-1) <= self.radius

    def _seen(self) -> GoalObservation:
        return {OBSERVATION: self.velocity.copy(), ACHIEVED: self.place.copy(), DESIRED: self.goal.copy()}
