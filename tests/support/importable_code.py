"""A reward function and an environment that an import finds, in a module that is light to import."""

import gymnasium
import numpy as np


def starts_with_digit(completion: str) -> float:
    """A reward function that an import finds."""
    return float(completion[:1].isdigit())


class ImportableCorridor(gymnasium.Env):
    """Walk five places to the right."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        return np.array([self.place / 5], np.float32), -1.0, self.place >= 5, False, {}
