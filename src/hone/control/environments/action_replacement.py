"""An environment that executes another action than the chosen one where a rule says so, as a shield does."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.core.errors import ConfigError

Floats = NDArray[np.float64]


class ActionReplacementWrapper(gymnasium.Wrapper[Any, np.int64, Any, np.int64]):
    """Executes `replace(context, action)`, the number of an action, in place of each chosen action.

    The context `[d]` is `info["context"]` of the last step where the environment tells one, else its observation, a
    flat box. To the learner the replacement is a part of the environment: the log-probability of the chosen action is
    the right one, and the best policy here is the best that the rule lets through. `info` gains `executed`, and
    `intervened` (1.0 where the actions differ).
    """

    def __init__(self, env: gymnasium.Env[Any, np.int64], replace: Callable[[Floats, int], int]) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise ConfigError(f"a shield chooses among numbered actions, the environment has {env.action_space}")
        self.replace, self.first = replace, int(env.action_space.start)
        self.context: Floats = np.zeros(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)
        self.context = context_of(seen, info)
        return seen, info

    def step(self, action: np.int64) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        chosen = int(action) - self.first
        executed = self.replace(self.context, chosen)
        seen, reward, terminated, truncated, info = self.env.step(np.int64(executed + self.first))
        self.context = context_of(seen, info)
        told = {**info, "executed": executed + self.first, "intervened": float(executed != chosen)}
        return seen, reward, terminated, truncated, told


def context_of(seen: Any, info: dict[str, Any]) -> Floats:  # noqa: ANN401 - an observation of any kind
    """Context `[d]` of an observation: what the environment tells as one, else the observation itself.

    Raises ConfigError for an observation that is no flat box and comes without a context.
    """
    if "context" in info:
        return np.asarray(info["context"], np.float64)
    flat = np.asarray(seen)
    if flat.ndim != 1 or flat.dtype.kind not in "fiu":
        raise ConfigError(
            'a shield reads a flat box of numbers; give the context of other observations as info["context"]'
        )
    return flat.astype(np.float64)
