"""The order of failure: the present version, the last good one, the safe default.

Each is asked until one gives a usable choice, so every request is answered. The choice is logged with the distribution
that it was drawn from: a decision of the last good version has that version's name and log-probability. Whether a
version fails does not depend on the action that it would have drawn, so the logged propensity is the right one.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hone.core.clock import Clock
from hone.core.decisions import ActionSet, Choice, DecisionPolicy, Floats, draw_action
from hone.decide.gateway.guarded_policy import GuardedPolicy, PolicyFailureError, describe_error

_ROUNDING: Final = 1e-9
"""A log-probability may exceed 0 by so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingVersion:
    """A policy under the name of its version."""

    name: str
    policy: DecisionPolicy
    guard: GuardedPolicy | None = None
    """Thread of a policy that may be late; None: it acts in the caller's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedChoice:
    """A usable choice, the version that made it, and the failures before it."""

    choice: Choice
    version: str
    failures: tuple[tuple[str, str], ...] = ()
    """Version and reason of each that failed, in order."""


class SafeDefault:
    """A policy that cannot fail: a named action where it is on offer, else each action with equal probability."""

    def __init__(self, action: str = "") -> None:
        self._action = action
        self.version = f"default:{action or 'uniform'}"

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[K]`."""
        del context
        if self._action in actions.names:
            return np.where(np.array([name == self._action for name in actions.names]), 0.0, -np.inf)
        return np.full(len(actions), 0.0 - math.log(len(actions)))  # of one action 0, not -0

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[n, K]`."""
        return np.tile(self.logp(contexts, actions), (len(contexts), 1))

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        """Draw an action."""
        logp = self.logp(context, actions)
        action = draw_action(logp, draw_key)
        return Choice(action=action, logp=float(logp[action]))


class FallbackChain:
    """Versions in the order in which they are asked; the last one must not fail."""

    def __init__(self, versions: tuple[ServingVersion, ...], clock: Clock) -> None:
        self.versions = versions
        self._clock = clock

    def choose(self, context: Floats, actions: ActionSet, draw_key: int, deadline_s: float) -> ServedChoice:
        """A choice before `deadline_s` on the monotonic clock, by the first version that gives a usable one.

        A version that may be late gets half of the time that is left. Raises PolicyFailureError if even the default
        fails.
        """
        failures: list[tuple[str, str]] = []
        for version in self.versions:
            try:
                choice = self._ask(version, context, actions, draw_key, deadline_s)
            except PolicyFailureError as failure:
                failures.append((version.name, str(failure)))
                continue
            if failures or choice.logp > 0.0:
                choice = _amended(choice, failures[0][1] if failures else "")
            return ServedChoice(choice=choice, version=version.name, failures=tuple(failures))
        raise PolicyFailureError("; ".join(f"{name}: {reason}" for name, reason in failures))

    def _ask(
        self, version: ServingVersion, context: Floats, actions: ActionSet, draw_key: int, deadline_s: float
    ) -> Choice:
        if version.guard is not None:
            left_s = deadline_s - self._clock.monotonic_s()
            choice = version.guard.act(context, actions, draw_key, left_s / 2)
        else:
            try:
                choice = version.policy.act(context, actions, draw_key)
            except Exception as error:  # noqa: BLE001 - a policy's failure is answered by the next version
                raise PolicyFailureError(describe_error(error)) from None
        check_choice(choice, actions)
        return choice


def check_choice(choice: object, actions: ActionSet) -> None:
    """Raise PolicyFailureError for a choice with an unsound action, probability or score."""
    if not isinstance(choice, Choice):
        raise PolicyFailureError(f"not a Choice: {type(choice).__name__}")
    if not 0 <= choice.action < len(actions):
        raise PolicyFailureError(f"action {choice.action} of {len(actions)}")
    if not math.isfinite(choice.logp):
        raise PolicyFailureError(f"non-finite log-probability {choice.logp}")
    if choice.logp > _ROUNDING:
        raise PolicyFailureError(f"log-probability {choice.logp} above 0")
    if choice.scores is not None and np.isnan(choice.scores).any():
        raise PolicyFailureError("non-finite scores")


def _amended(choice: Choice, failure: str) -> Choice:
    """The choice with the first failure in its intervention, and without a rounding error above 0."""
    reasons = [f"fallback: {failure}"] if failure else []
    reasons += [choice.intervention] if choice.intervention else []
    return replace(choice, logp=min(choice.logp, 0.0), intervention="; ".join(reasons))
