"""Spaces of every kind and an environment that has them, in a module that is light to import: processes load it."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
BYTES = spaces.Box(0, 255, (3, 4), np.uint8)
OBSERVATIONS = {
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary([2, 2]),
    "dict": spaces.Dict({"a": BOX, "b": spaces.Discrete(3)}),
    "nested": spaces.Dict({"a": spaces.Tuple([BOX, spaces.MultiBinary(2)])}),
    "tuple": spaces.Tuple([spaces.Discrete(2), BOX]),
    "text": spaces.Text(5),
}
ACTIONS = {
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "shifted": spaces.MultiDiscrete([2, 3], start=[4, 0]),
    "square": spaces.MultiDiscrete([[2, 3], [2, 2]]),
    "large": spaces.MultiDiscrete([50, 60, 70]),
    "multi_binary": spaces.MultiBinary(4),
    "binary_square": spaces.MultiBinary([2, 3]),
    "dict": spaces.Dict({"a": BOX, "b": spaces.Box(0.0, 1.0, (2, 2), np.float32)}),
    "tuple": spaces.Tuple([BOX, BOX]),
}
IMAGES = {
    "colour": spaces.Box(0, 255, (16, 16, 3), np.uint8),
    "grey": spaces.Box(0, 255, (16, 16), np.uint8),
    "stacked": spaces.Box(0.0, 1.0, (4, 16, 16), np.float32),
}
SPACES: dict[str, dict[str, spaces.Space[Any]]] = {"observation": OBSERVATIONS, "action": ACTIONS, "image": IMAGES}


class Odd(gymnasium.Env):
    """Three steps; its spaces are named by its arguments. It asserts that actions are of its space."""

    def __init__(self, kind: str = "", name: str = "") -> None:
        self.observation_space, self.action_space = BOX, spaces.Discrete(2)
        if kind == "action":
            self.action_space = ACTIONS[name]
        elif kind:
            self.observation_space = SPACES[kind][name]
        self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.time += 1
        return self.observation_space.sample(), 1.0, self.time == 3, False, {}
