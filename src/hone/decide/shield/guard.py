"""Guard around a shield that fails closed: late, raising or blind, it allows nothing, so that the fallback is taken.

Belongs here: the guard, and the nearest safe action to a wanted one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from hone.core.clock import Clock
from hone.core.decisions import ActionSet, ActionShield
from hone.decide.shield.sensors import Bools, Floats

DEADLINE_S: Final = 0.010


@dataclass(frozen=True, slots=True, kw_only=True)
class ShieldVerdict:
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

    def judge(self, context: Floats, actions: ActionSet) -> ShieldVerdict:
        """Judge the actions, and say why nothing is allowed where the shield itself could not judge."""
        none = np.zeros(len(actions), np.bool_)
        if not np.isfinite(context).all():
            place = int(np.flatnonzero(~np.isfinite(context))[0])
            return ShieldVerdict(allowed=none, reason=f"shield: feature {place} is {context[place]}")
        began_s = self.clock.monotonic_s()
        try:
            allowed = self.inner.allowed(context, actions)
        except Exception as error:  # noqa: BLE001 - whatever a shield raises, nothing is known to be safe
            return ShieldVerdict(allowed=none, reason=f"shield: {type(error).__name__}: {error}")
        spent_s = self.clock.monotonic_s() - began_s
        if spent_s > self.deadline_s:
            return ShieldVerdict(allowed=none, reason=f"shield: late ({1000 * spent_s:.1f} ms)")
        if allowed.shape != (len(actions),) or allowed.dtype != np.bool_:
            return ShieldVerdict(allowed=none, reason=f"shield: {len(actions)} actions, {allowed.shape} verdicts")
        return ShieldVerdict(allowed=allowed)

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
