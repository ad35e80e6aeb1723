"""From a decision's context to sensors, and from its actions to those that a shield knows, by their names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError, did_you_mean

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SensorReader:
    """Places of a shield's sensors among the features of a context."""

    places: tuple[int, ...]

    def read(self, context: Floats) -> list[float] | None:
        """Values of the sensors; None where one is missing or not finite."""
        if context.shape[0] <= max(self.places):
            return None
        values = [float(context[place]) for place in self.places]
        return values if math.isfinite(sum(values)) else None


def sensor_reader(sensors: Sequence[str], features: Sequence[str]) -> SensorReader:
    """Reader of `sensors` from contexts with these `features`. Raises ConfigError for every sensor that is missing."""
    missing = [name for name in sensors if name not in features]
    if missing:
        raise ConfigError(*(
            f"shield: sensor {name} is none of the features of the context{did_you_mean(name, features)}"
            for name in missing
        ))  # fmt: skip
    return SensorReader(tuple(list(features).index(name) for name in sensors))


@dataclass(slots=True)
class ActionMatcher:
    """Numbers of a decision's actions in a shield, by name; an action that the shield does not know is never safe."""

    known: tuple[str, ...]
    fallback: str
    _order: dict[tuple[str, ...], tuple[NDArray[np.int64], int]] = field(
        default_factory=dict[tuple[str, ...], "tuple[NDArray[np.int64], int]"]
    )

    def match(self, flags: Bools, actions: ActionSet) -> Bools:
        """Flags `[K]` of a decision's actions, from those of the shield's."""
        if actions.names == self.known:
            return flags
        order, _ = self._find(actions)
        return np.append(flags, False)[order]

    def place_of_fallback(self, actions: ActionSet) -> int:
        """Number of the fallback in a decision. Raises ConfigError where it is not among the actions."""
        place = self._find(actions)[1]
        if place < 0:
            hint = did_you_mean(self.fallback, actions.names)
            raise ConfigError(f"shield: the fallback {self.fallback} is none of the actions{hint}")
        return place

    def _find(self, actions: ActionSet) -> tuple[NDArray[np.int64], int]:
        found = self._order.get(actions.names)
        if found is None:
            numbers = {name: number for number, name in enumerate(self.known)}
            order = np.array([numbers.get(name, len(self.known)) for name in actions.names], np.int64)
            place = actions.names.index(self.fallback) if self.fallback in actions.names else -1
            found = (order, place)
            if len(self._order) < 64:  # a service has few sets; a hostile one cannot fill the memory
                self._order[actions.names] = found
        return found
