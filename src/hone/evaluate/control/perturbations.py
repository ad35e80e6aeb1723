"""What may be wrong with a world: noisy sensors, late or stuck actions, other physics.

Belongs here: how a judgement is disturbed. What a policy makes of it is `robustness.py`'s.
"""

import inspect
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field, JsonValue, model_validator

from hone.core.config import Config
from hone.core.errors import ConfigError, did_you_mean
from hone.core.random import generator
from hone.envs.gym.make import GymConfig, Single, Vector, isolated, maker, together
from hone.envs.gym.play import Best, open_arena

Array = NDArray[np.generic]
Floats = NDArray[np.float64]

DERIVED = {
    "CartPoleEnv": {
        "total_mass": lambda known: known["masspole"] + known["masscart"],
        "polemass_length": lambda known: known["masspole"] * known["length"],
    }
}
"""Attributes that an environment computes from others once, when it is made: class -> attribute -> how."""


class Perturbation(Config):
    """How the world of a judgement differs from the one that the policy was trained in."""

    name: str = ""
    """What the row is called; by default, what is changed."""
    sensor_noise: float = Field(default=0.0, ge=0)
    """Gaussian noise on every number that is seen, in units of its own standard deviation over undisturbed episodes."""
    sensor_noise_absolute: float = Field(default=0.0, ge=0)
    """The same in the numbers' own units."""
    action_delay: int = Field(default=0, ge=0, le=1000)
    """Steps until a decision is carried out; until the first one arrives, it is carried out already."""
    sticky_actions: float = Field(default=0.0, ge=0, le=1)
    """Probability that a decision is dropped and the action before it repeated (Machado et al., 2018)."""
    random_actions: float = Field(default=0.0, ge=0, le=1)
    """Probability that any other action is carried out instead."""
    physics: dict[str, JsonValue] = Field(default={})
    """Arguments of the environment's constructor, or attributes of the environment."""

    @model_validator(mode="after")
    def _changes_something(self) -> "Perturbation":
        if not self.changes:
            raise ValueError("nothing is changed: give one of " + ", ".join(sorted(KEYS)))
        return self

    @property
    def changes(self) -> dict[str, JsonValue]:
        """What is not as it was."""
        values = {key: value for key, value in self.model_dump(mode="json").items() if key != "name" and value}
        physics = values.pop("physics", {})
        return values | {f"physics.{key}": value for key, value in physics.items()}

    @property
    def label(self) -> str:
        return self.name or ", ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in self.changes.items())  # fmt: skip  # noqa: E501


KEYS = tuple(key for key in Perturbation.model_fields if key != "name")


class Perturbations(Config):
    """A file of perturbations."""

    perturb: list[Perturbation] = Field(min_length=1)
    """Each is judged by itself, on the same seeds."""


@dataclass
class Spread:
    """Hears what a policy sees, for its standard deviation."""

    best: Best
    count: int = 0
    total: Floats | float = 0.0
    squares: Floats | float = 0.0

    def __call__(self, seen: Array) -> Array:
        values = seen.astype(np.float64)
        self.count += len(values)
        self.total = self.total + values.sum(axis=0)
        self.squares = self.squares + np.square(values).sum(axis=0)
        return self.best(seen)

    def deviation(self) -> Floats:
        """`[*observation]` standard deviation of all that was seen."""
        mean = np.asarray(self.total) / self.count
        return np.sqrt(np.maximum(np.asarray(self.squares) / self.count - mean * mean, 0.0))


@dataclass
class Disturbed:
    """A policy behind bad sensors and bad motors. Chance is a function of (seed, step), whatever is disturbed."""

    best: Best
    change: Perturbation
    deviation: Floats
    """`[*observation]` of undisturbed episodes."""
    space: spaces.Space[Any]
    """Of actions."""
    seed: int
    time: int = 0
    late: deque[Array] = field(default_factory=deque[Array])
    before: Array | None = None
    """What was carried out last."""

    def __call__(self, seen: Array) -> Array:
        self.late.append(np.array(self.best(self._sensed(seen))))
        if len(self.late) > self.change.action_delay + 1:
            self.late.popleft()
        self.before = self._carried_out(self.late[0])
        self.time += 1
        return self.before

    def _sensed(self, seen: Array) -> Array:
        scale = self.change.sensor_noise * self.deviation + self.change.sensor_noise_absolute
        if not np.any(scale):
            return seen
        draws = generator(self.seed, "perturb", "sensor", self.time).standard_normal(seen.shape)
        return (seen.astype(np.float64) + scale * draws).astype(seen.dtype)

    def _carried_out(self, action: Array) -> Array:
        luck = generator(self.seed, "perturb", "motor", self.time).random((2, len(action)))
        across = (slice(None), *(None,) * (action.ndim - 1))
        if self.change.random_actions:
            action = np.where((luck[0] < self.change.random_actions)[across], self._any(action), action)
        if self.change.sticky_actions and self.before is not None:
            action = np.where((luck[1] < self.change.sticky_actions)[across], self.before, action)
        return action

    def _any(self, like: Array) -> Array:
        share = generator(self.seed, "perturb", "any", self.time).random(like.shape)
        if isinstance(self.space, spaces.Discrete):
            return (self.space.start + np.floor(share * self.space.n)).astype(like.dtype)
        assert isinstance(self.space, spaces.Box)
        return (self.space.low + share * (self.space.high - self.space.low)).astype(like.dtype)


def refuse_what_cannot_be(change: Perturbation, seen: spaces.Space[Any], action: spaces.Space[Any]) -> list[str]:
    """What of a perturbation makes no sense for these spaces."""
    faults: list[str] = []
    if (change.sensor_noise or change.sensor_noise_absolute) and not isinstance(seen, spaces.Box):
        faults.append(f"{change.label}: what is seen is one of finitely many states ({seen}), which takes no noise")
    box_without_ends = isinstance(action, spaces.Box) and not np.isfinite([action.low, action.high]).all()
    if change.random_actions and box_without_ends:
        faults.append(f"{change.label}: the box of actions has no bounds ({action}), so none is drawn from it")
    return faults


# ------------------------------------------------------------------------------------------ physics


def disturbed_arena(config: GymConfig, *, episodes: int, physics: Mapping[str, JsonValue], alone: bool) -> Vector:
    """Environments with other physics; `alone` makes single ones also where there is a vector form, whose attributes
    are others. Raises ConfigError for a name that the environment does not know."""
    if isolated(config):
        return open_arena(_with(config, physics), episodes=episodes)
    if not alone:
        return open_arena(config, episodes=episodes)
    arguments, attributes = _sorted_out(config, physics)
    making = maker(_with(config, arguments))
    return together([partial(_changed, making.single, attributes)] * episodes)


def _with(config: GymConfig, arguments: Mapping[str, JsonValue]) -> GymConfig:
    return config.model_copy(update={"kwargs": {**config.kwargs, **arguments}})


def _sorted_out(
    config: GymConfig, physics: Mapping[str, JsonValue]
) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Arguments of the constructor, and attributes. Raises ConfigError with every name that is neither."""
    env = maker(config).single()
    try:
        inside = env.unwrapped
        accepted = [name for name in inspect.signature(type(inside).__init__).parameters if name not in NO_PHYSICS]
        numbers = numbers_of(inside)
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


NO_PHYSICS = ("self", "render_mode", "args", "kwargs")


def numbers_of(env: gymnasium.Env[Any, Any]) -> dict[str, float]:
    """Public attributes of an environment that are numbers, its class's constants among them."""
    found: dict[str, object] = {}
    for owner in reversed(type(env).__mro__):
        found |= vars(owner)
    found |= vars(env)
    return {
        name: value
        for name, value in found.items()
        if not name.startswith("_") and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _changed(single: Any, attributes: Mapping[str, JsonValue]) -> Single:  # noqa: ANN401 - a constructor
    env: Single = single()
    held = vars(env.unwrapped)
    held.update(attributes)
    for name, derive in DERIVED.get(type(env.unwrapped).__name__, {}).items():
        if name not in attributes:
            held[name] = derive(numbers_of(env.unwrapped))
    return env


def needs_singles(changes: Sequence[Perturbation]) -> bool:
    """Whether any of them reaches into the environments."""
    return any(change.physics for change in changes)
