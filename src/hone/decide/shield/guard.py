"""Guard around a shield that fails closed: late, raising or blind, it allows nothing, so that the fallback is taken.

Belongs here: the guard, and the nearest safe action to a wanted one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock
from hone.core.decisions import ActionSet, ActionShield
from hone.core.errors import ConfigError, did_you_mean

# -------------------------------------------------------------------------------------------------------------- sensors


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
        known_order = self._order.get(actions.names)
        if known_order is None:
            numbers = {name: number for number, name in enumerate(self.known)}
            order = np.array([numbers.get(name, len(self.known)) for name in actions.names], np.int64)
            place = actions.names.index(self.fallback) if self.fallback in actions.names else -1
            known_order = (order, place)
            if len(self._order) < 64:  # a service has few sets; a hostile one cannot fill the memory
                self._order[actions.names] = known_order
        return known_order


# ---------------------------------------------------------------------------------------------------------------- guard


DEADLINE_S: Final = 0.010


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShieldVerdict:
    """Judgement of a context's actions."""

    allowed: Bools
    """`[K]`; none: take the fallback."""
    reason: str = ""
    """Why nothing is allowed: `shield: late (20.1 ms)`, `shield: ...`; empty: the shield itself judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedShield:
    """A shield behind a deadline. Its `allowed` never raises; a verdict that comes late is not used."""

    inner: ActionShield
    clock: Clock
    deadline_s: float = DEADLINE_S

    @property
    def certificate(self) -> str:
        """sha256 of the proof; empty: rules without a proof."""
        return self.inner.certificate

    def judge(self, context: Floats, actions: ActionSet) -> _ShieldVerdict:
        """Judge the actions, and say why nothing is allowed where the shield itself could not judge."""
        none = np.zeros(len(actions), np.bool_)
        if not np.isfinite(context).all():
            place = int(np.flatnonzero(~np.isfinite(context))[0])
            return _ShieldVerdict(allowed=none, reason=f"shield: feature {place} is {context[place]}")
        began_s = self.clock.monotonic_s()
        try:
            allowed = self.inner.allowed(context, actions)
        except Exception as error:  # noqa: BLE001 - whatever a shield raises, nothing is known to be safe
            return _ShieldVerdict(allowed=none, reason=f"shield: {type(error).__name__}: {error}")
        spent_s = self.clock.monotonic_s() - began_s
        if spent_s > self.deadline_s:
            return _ShieldVerdict(allowed=none, reason=f"shield: late ({1000 * spent_s:.1f} ms)")
        if allowed.shape != (len(actions),) or allowed.dtype != np.bool_:
            return _ShieldVerdict(allowed=none, reason=f"shield: {len(actions)} actions, {allowed.shape} verdicts")
        return _ShieldVerdict(allowed=allowed)

    def allowed(self, context: Floats, actions: ActionSet) -> Bools:
        """Safe actions `[K]`; none where the shield is late, raises, or a feature is not finite."""
        return self.judge(context, actions).allowed

    def fallback(self, context: Floats, actions: ActionSet) -> int:
        """The shield's fallback."""
        return self.inner.fallback(context, actions)


def project_action(
    shield: ActionShield, context: Floats, actions: ActionSet, wanted: int | Floats, *, among: Floats | None = None
) -> int:
    """Number of the safe action that is nearest to `wanted`: an action's number, or its features `[f]`.

    `among` are the features `[K, f]` that distances are measured in, those of `actions` unless given. A safe number
    stays. The fallback stands for an unsafe number without features, a number that is no action's, and NaN.
    """
    allowed = shield.allowed(context, actions)
    if isinstance(wanted, int) and 0 <= wanted < len(actions) and allowed[wanted]:
        return wanted
    features = actions.features if among is None else among
    point = np.asarray(wanted, np.float64)
    if point.ndim == 0 and features is not None and wanted in range(len(actions)):
        point = features[int(wanted)]
    if features is None or point.ndim == 0 or not allowed.any() or not np.isfinite(point).all():
        return shield.fallback(context, actions)
    distance = np.where(allowed, np.square(features - point).sum(axis=1), np.inf)
    return int(distance.argmin())
