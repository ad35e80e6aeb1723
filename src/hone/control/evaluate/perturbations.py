"""Perturbations of an environment: noisy observations, delayed or repeated actions, other physics.

Belongs here: applying perturbations. `robustness.py` evaluates under them.
"""

import inspect
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field, JsonValue, model_validator

from hone.control.environments.make import GymConfig, GymEnv, GymVectorEnv, env_factory, runs_isolated, sync_vector_env
from hone.control.environments.play import ActionFn, open_evaluation_envs
from hone.core.config import Config
from hone.core.errors import ConfigError, did_you_mean
from hone.core.random import generator

Array = NDArray[np.generic]
Floats = NDArray[np.float64]

_DERIVED_ATTRIBUTES = {
    "CartPoleEnv": {
        "total_mass": lambda known: known["masspole"] + known["masscart"],
        "polemass_length": lambda known: known["masspole"] * known["length"],
    }
}
"""Attributes that an environment derives from others in its constructor: class -> attribute -> formula."""


class PerturbationConfig(Config):
    """Difference of the evaluation environment from the training environment."""

    name: str = ""
    """Name of the row; by default, the changed settings."""
    sensor_noise: float = Field(default=0.0, ge=0)
    """Gaussian noise on observations, in units of each component's standard deviation over unperturbed episodes."""
    sensor_noise_absolute: float = Field(default=0.0, ge=0)
    """Gaussian noise on observations, in absolute units."""
    action_delay: int = Field(default=0, ge=0, le=1000)
    """Steps between choosing and executing an action; the first action also fills the steps before it."""
    sticky_actions: float = Field(default=0.0, ge=0, le=1)
    """Probability of repeating the previous action instead (sticky actions; Machado et al., 2018)."""
    random_actions: float = Field(default=0.0, ge=0, le=1)
    """Probability of a random action instead."""
    physics: dict[str, JsonValue] = Field(default={})
    """Constructor arguments or attributes of the environment."""

    @model_validator(mode="after")
    def _changes_something(self) -> "PerturbationConfig":
        if not self.changes:
            raise ValueError("nothing is changed: give one of " + ", ".join(sorted(_PERTURBATION_KEYS)))
        return self

    @property
    def changes(self) -> dict[str, JsonValue]:
        """Settings that differ from their defaults."""
        values = {key: value for key, value in self.model_dump(mode="json").items() if key != "name" and value}
        physics = values.pop("physics", {})
        return values | {f"physics.{key}": value for key, value in physics.items()}

    @property
    def label(self) -> str:
        """Name of the row."""
        return self.name or ", ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in self.changes.items())  # fmt: skip  # noqa: E501


_PERTURBATION_KEYS = tuple(key for key in PerturbationConfig.model_fields if key != "name")


class PerturbationFile(Config):
    """File of perturbations."""

    perturb: list[PerturbationConfig] = Field(min_length=1)
    """Perturbations, each evaluated separately on the same seeds."""


@dataclass
class ObservationSpread:
    """Listener that estimates the standard deviation of observations."""

    greedy_action: ActionFn
    count: int = 0
    total: Floats | float = 0.0
    squares: Floats | float = 0.0

    def __call__(self, seen: Array) -> Array:
        values = seen.astype(np.float64)
        self.count += len(values)
        self.total = self.total + values.sum(axis=0)
        self.squares = self.squares + np.square(values).sum(axis=0)
        return self.greedy_action(seen)

    def std(self) -> Floats:
        """Standard deviation `[*observation]` of all observations."""
        mean = np.asarray(self.total) / self.count
        return np.sqrt(np.maximum(np.asarray(self.squares) / self.count - mean * mean, 0.0))


@dataclass
class PerturbedPolicy:
    """Policy with perturbed observations and actions. Random numbers are a function of (seed, step) only."""

    greedy_action: ActionFn
    perturbation: PerturbationConfig
    observation_std: Floats
    """Standard deviation `[*observation]` in unperturbed episodes."""
    action_space: spaces.Space[Any]
    """Action space."""
    seed: int
    step: int = 0
    pending_actions: deque[Array] = field(default_factory=deque[Array])
    last_action: Array | None = None
    """Last executed action."""

    def __call__(self, seen: Array) -> Array:
        self.pending_actions.append(np.array(self.greedy_action(self._noisy_observation(seen))))
        if len(self.pending_actions) > self.perturbation.action_delay + 1:
            self.pending_actions.popleft()
        self.last_action = self._executed_action(self.pending_actions[0])
        self.step += 1
        return self.last_action

    def _noisy_observation(self, seen: Array) -> Array:
        scale = self.perturbation.sensor_noise * self.observation_std + self.perturbation.sensor_noise_absolute
        if not np.any(scale):
            return seen
        draws = generator(self.seed, "perturb", "sensor", self.step).standard_normal(seen.shape)
        return (seen.astype(np.float64) + scale * draws).astype(seen.dtype)

    def _executed_action(self, action: Array) -> Array:
        luck = generator(self.seed, "perturb", "motor", self.step).random((2, len(action)))
        across = (slice(None), *(None,) * (action.ndim - 1))
        if self.perturbation.random_actions:
            action = np.where((luck[0] < self.perturbation.random_actions)[across], self._random_action(action), action)
        if self.perturbation.sticky_actions and self.last_action is not None:
            action = np.where((luck[1] < self.perturbation.sticky_actions)[across], self.last_action, action)
        return action

    def _random_action(self, like: Array) -> Array:
        share = generator(self.seed, "perturb", "any", self.step).random(like.shape)
        if isinstance(self.action_space, spaces.Discrete):
            return (self.action_space.start + np.floor(share * self.action_space.n)).astype(like.dtype)
        assert isinstance(self.action_space, spaces.Box)
        return (self.action_space.low + share * (self.action_space.high - self.action_space.low)).astype(like.dtype)


def incompatible_perturbations(
    change: PerturbationConfig, seen: spaces.Space[Any], action: spaces.Space[Any]
) -> list[str]:
    """Messages about perturbations that do not fit these spaces."""
    faults: list[str] = []
    if (change.sensor_noise or change.sensor_noise_absolute) and not isinstance(seen, spaces.Box):
        faults.append(f"{change.label}: observations are discrete ({seen}), so noise cannot be added")
    box_without_ends = isinstance(action, spaces.Box) and not np.isfinite([action.low, action.high]).all()
    if change.random_actions and box_without_ends:
        faults.append(f"{change.label}: the action space is unbounded ({action}), so random actions cannot be drawn")
    return faults


# ------------------------------------------------------------------------------------------ physics


def open_perturbed_envs(
    config: GymConfig, *, episodes: int, physics: Mapping[str, JsonValue], single_envs: bool
) -> GymVectorEnv:
    """Open environments with other physics; `single_envs`: single ones even if there is a vector form, whose attributes
    differ. Raises ConfigError for an unknown name."""
    if runs_isolated(config):
        return open_evaluation_envs(_with(config, physics), episodes=episodes)
    if not single_envs:
        return open_evaluation_envs(config, episodes=episodes)
    arguments, attributes = _split_physics(config, physics)
    making = env_factory(_with(config, arguments))

    def make_one() -> GymEnv:
        env = making.make_one()
        held = vars(env.unwrapped)
        held.update(attributes)
        for name, derive in _DERIVED_ATTRIBUTES.get(type(env.unwrapped).__name__, {}).items():
            if name not in attributes:
                held[name] = derive(_numeric_attributes(env.unwrapped))
        return env

    return sync_vector_env([make_one] * episodes)


def _with(config: GymConfig, arguments: Mapping[str, JsonValue]) -> GymConfig:
    return config.model_copy(update={"kwargs": {**config.kwargs, **arguments}})


def _split_physics(
    config: GymConfig, physics: Mapping[str, JsonValue]
) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Split into constructor arguments and attributes. Raises ConfigError with every name that is neither."""
    env = env_factory(config).make_one()
    try:
        inside = env.unwrapped
        accepted = [
            name for name in inspect.signature(type(inside).__init__).parameters if name not in _NON_PHYSICS_ARGUMENTS
        ]
        numbers = _numeric_attributes(inside)
    finally:
        env.close()
    known = [*accepted, *numbers]
    faults = [
        f"physics.{name}: {config.id} has none{did_you_mean(name, known)}" for name in physics if name not in known
    ]
    for name, value in physics.items():
        if name in numbers and name not in accepted and not isinstance(value, int | float):
            faults.append(f"physics.{name} must be a number as {numbers[name]!r} is, got {value!r}")
    if faults:
        raise ConfigError(*faults)
    arguments = {name: value for name, value in physics.items() if name in accepted}
    return arguments, {name: value for name, value in physics.items() if name not in accepted}


_NON_PHYSICS_ARGUMENTS = ("self", "render_mode", "args", "kwargs")


def _numeric_attributes(env: gymnasium.Env[Any, Any]) -> dict[str, float]:
    """Public numeric attributes of an environment, including class constants."""
    attributes: dict[str, object] = {}
    for owner in reversed(type(env).__mro__):
        attributes |= vars(owner)
    attributes |= vars(env)
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("_") and isinstance(value, int | float) and not isinstance(value, bool)
    }
