"""The boundary between one environment and hone: observations are copied, and an episode that never ends is truncated.

Belongs here: what holds for every single environment, wherever it runs. An environment may return the same array at
each step, or share one with others; whatever leaves it here is hone's own.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hone.core.errors import UserCodeError


class EnvBoundary(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations are copies, without `info`, which hone does not read.

    With `step_limit`, an episode that has not ended after so many steps is truncated. Raises UserCodeError for an
    observation of another shape than the space's.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, number: int = 0, step_limit: int | None = None) -> None:
        super().__init__(env)
        self.number, self.step_limit = number, step_limit
        self.steps = 0
        """Steps of the running episode, counted where there is a limit."""
        space = env.observation_space
        self._shape = space.shape if isinstance(space, spaces.Box) else ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seen, _ = self.env.reset(seed=seed, options=options)
        self.steps = 0
        return self._own(seen), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - the user's
        seen, reward, terminated, truncated, _ = self.env.step(action)
        if self.step_limit is not None:
            self.steps += 1
            truncated = truncated or (self.steps >= self.step_limit and not terminated)
        return self._own(seen), reward, terminated, truncated, {}

    def _own(self, seen: Any) -> Any:  # noqa: ANN401 - a number or an array
        copied = np.array(seen)
        if copied.shape != self._shape:
            raise UserCodeError(
                f"environment {self.number}: the observation has shape {list(copied.shape)}, and observation_space "
                f"has {list(self._shape)}; "
                "resize or pad it, for instance with gymnasium.wrappers.ResizeObservation"
            )
        return copied
