"""An environment whose observation and action are boxes of any shape and type."""

import gymnasium
import numpy as np
from gymnasium import spaces

KINDS = {"float32": np.float32, "float64": np.float64, "int64": np.int64, "uint8": np.uint8, "int8": np.int8}


class OddBox(gymnasium.Env):
    """Five steps; pays minus the mean distance of the action from 3. It asserts that actions are of its space."""

    def __init__(
        self,
        seen_shape: list[int] | None = None,
        seen_kind: str = "float32",
        action_shape: list[int] | None = None,
        action_kind: str = "float32",
        numbered: bool = False,
    ) -> None:
        shape, kind = tuple(seen_shape or ()), KINDS[seen_kind]
        self.observation_space = spaces.Box(0, 5, shape, kind)
        box = spaces.Box(0, 7, tuple(action_shape or ()), KINDS[action_kind])
        self.action_space = spaces.Discrete(4) if numbered else box
        self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action):
        space = self.action_space
        assert isinstance(space, spaces.Discrete) or np.asarray(action).dtype == space.dtype, f"{action!r}"
        assert space.contains(np.asarray(action)[()] if isinstance(space, spaces.Discrete) else np.asarray(action))
        self.time += 1
        return self._seen(), -float(np.abs(np.asarray(action, np.float64) - 3).mean()), False, self.time == 5, {}

    def _seen(self):
        space = self.observation_space
        assert isinstance(space, spaces.Box)
        return np.full(space.shape, self.time, space.dtype)[()]
