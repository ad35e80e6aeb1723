"""One-step tasks in a box of actions of any place and size."""

import gymnasium
import numpy as np
from gymnasium import spaces


class TargetBox(gymnasium.Env):
    """Pays minus the squared distance of the action from a target, in half widths of the box; one step an episode.

    The target is at (0.75, -0.8) of the way from the middle to the bounds, wherever the box is.
    """

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, middle: float = 0.0, reach: float = 1000.0, whole: bool = False) -> None:
        kind = np.int64 if whole else np.float32
        low, high = (np.full(2, middle + side * reach, kind) for side in (-1, 1))
        self.action_space = spaces.Box(low, high, dtype=kind)
        self.target, self.reach = middle + reach * np.array([0.75, -0.8]), reach

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is outside {self.action_space}"
        distance = (np.asarray(action, np.float64) - self.target) / self.reach
        return np.zeros(1, np.float32), -float((distance**2).sum()), True, False, {}
