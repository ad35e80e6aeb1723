"""Wrappers that change actions: a memory for the current option of the agent, and a rule that replaces actions.

An option is a course of action that lasts several steps. Its memory, kept by the environment, ends with the episode, is
saved with it, and makes a policy over options a function of the observation, like any other.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import JsonValue

from hone.control.environments.make import GymConfig, env_factory, runs_isolated
from hone.control.environments.registration import OPTION_MEMORY_ID
from hone.core.errors import ConfigError


class OptionMemoryWrapper(gymnasium.Wrapper[Any, np.int64, Any, np.int64]):
    """Adds the current one of `options` to the observation; an action names the option and the inner action.

    Action `((begun * options) + option) * actions + action`. The observation is `state * (options + 1) +
    memory` for a finite observation space, and has `options` more columns for a box; memory 0 (all columns 0) is no
    option, at an episode's begin. `begun` (whether the option begins with this action) is read by the learner only.
    """

    def __init__(self, env: gymnasium.Env[Any, np.int64], options: int) -> None:
        super().__init__(env)
        seen, action = env.observation_space, env.action_space
        if not isinstance(action, spaces.Discrete):
            raise ConfigError(f"options act on a finite set of actions, not on {action}")
        self.options, self.memory = options, 0
        self.action_space = spaces.Discrete(2 * options * int(action.n), start=0)
        if isinstance(seen, spaces.Discrete):
            self.observation_space = spaces.Discrete(int(seen.n) * (options + 1))
        elif isinstance(seen, spaces.Box) and len(seen.shape) <= 1:
            low, high = (np.append(side, np.full(options, fill)) for side, fill in ((seen.low, 0), (seen.high, 1)))
            self.observation_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        else:
            raise ConfigError(
                f"options read a flat box or a finite set of states, not {seen}; wrap the environment in "
                "gymnasium.wrappers.FlattenObservation"
            )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)
        self.memory = 0
        return self._shown(seen), info

    def step(self, action: np.int64) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        inner = self.env.action_space
        assert isinstance(inner, spaces.Discrete)
        choice, inner_action = divmod(int(action), int(inner.n))
        self.memory = choice % self.options + 1
        seen, reward, terminated, truncated, info = self.env.step(np.int64(inner_action + int(inner.start)))
        return self._shown(seen), reward, terminated, truncated, info

    def _shown(self, seen: Any) -> Any:  # noqa: ANN401 - a number or an array
        inner = self.env.observation_space
        if isinstance(inner, spaces.Discrete):
            return np.int64((int(seen) - int(inner.start)) * (self.options + 1) + self.memory)
        columns = np.zeros(self.options, dtype=np.float32)
        if self.memory:
            columns[self.memory - 1] = 1.0
        return np.concatenate([np.asarray(seen, np.float32).ravel(), columns])


def make_option_memory_env(
    env: str, options: int, env_kwargs: dict[str, JsonValue] | None = None, env_steps: int | None = None
) -> OptionMemoryWrapper:
    """The environment of this id, its arguments and its `max_episode_steps`, with a memory for one of `options`."""
    inner = GymConfig(id=env, kwargs=env_kwargs or {}, max_episode_steps=env_steps)
    return OptionMemoryWrapper(env_factory(inner).make_one(), options)


def with_option_memory(config: GymConfig, options: int) -> GymConfig:
    """The same environments in the same place, each with a memory for its option."""
    changed = {
        "id": OPTION_MEMORY_ID,
        "kwargs": {
            "env": config.id, "options": options, "env_kwargs": config.kwargs, "env_steps": config.max_episode_steps
        },
        "max_episode_steps": None,
        "isolation": config.isolation if config.isolation == "ray" else "process" if runs_isolated(config) else "none",
    }  # fmt: skip
    return config.model_copy(update=changed)


# --------------------------------------------------------------------------------------------------- action replacement


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
        self.context = _context_of(seen, info)
        return seen, info

    def step(self, action: np.int64) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        chosen = int(action) - self.first
        executed = self.replace(self.context, chosen)
        seen, reward, terminated, truncated, info = self.env.step(np.int64(executed + self.first))
        self.context = _context_of(seen, info)
        info = {**info, "executed": executed + self.first, "intervened": float(executed != chosen)}
        return seen, reward, terminated, truncated, info


def _context_of(seen: Any, info: dict[str, Any]) -> Floats:  # noqa: ANN401 - an observation of any kind
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
