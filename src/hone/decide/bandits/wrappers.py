"""Policies around policies: an exploration floor, a mask, a clip, a fallback, a shield and a route.

Each transforms the whole distribution, so that the log-probability of the executed action is the one that it was drawn
with. The executed action with the inner policy's probability would bias every estimate that weights by it.

A wrapper that draws for itself uses its key, and hands a key derived from it to the policy inside, so that the draws of
nested wrappers are independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from hone.core.decisions import (
    LOGP_TOLERANCE,
    ActionSet,
    ActionShield,
    Bools,
    Choice,
    DecisionPolicy,
    Floats,
    Ints,
    draw_action,
)
from hone.core.errors import ConfigError, DataError, HoneError
from hone.core.random import key
from hone.decide.bandits.policy import BanditPolicy, PolicyContents, PolicyDistribution, as_bandit_policy, log_mass

# -------------------------------------------------------------------------------------------------------------- filters


class _ActionFilter(Protocol):
    """Rule that says which actions may be taken in a context. Pure."""

    def __call__(self, context: Floats, actions: ActionSet) -> Bools:
        """Allowed actions `[K]` for features `[d]`."""
        ...


@dataclass(frozen=True, slots=True)
class ForbiddenActions:
    """Filter that allows all actions but those of some names."""

    names: tuple[str, ...]

    def __call__(self, context: Floats, actions: ActionSet) -> Bools:
        del context
        return np.array([name not in self.names for name in actions.names])


@dataclass(frozen=True, slots=True)
class ActionRange:
    """Filter that allows the actions of numbers `low` to `high`, both included."""

    low: int
    high: int

    def __call__(self, context: Floats, actions: ActionSet) -> Bools:
        del context
        numbers = np.arange(len(actions))
        return (numbers >= self.low) & (numbers <= self.high)


def _some_allowed(allowed: Bools, actions: ActionSet) -> Bools:
    """The allowed actions `[K]` themselves. Raises DataError where none is."""
    if not allowed.any():
        raise DataError(f"the filter allows none of the {len(actions)} actions; an action set needs an allowed one")
    return allowed


# ------------------------------------------------------------------------------------------------------------- wrappers


class EpsilonFloor(BanditPolicy):
    """Policy that explores: with probability `epsilon` a uniform action, else the inner policy's.

    p_k = (1 - epsilon) p_k + epsilon / K, so that every action has probability epsilon / K or more.
    """

    kind = "epsilon_floor"

    def __init__(self, inner: DecisionPolicy, epsilon: float) -> None:
        if not 0.0 < epsilon <= 1.0:
            raise ConfigError(f"epsilon must be above 0 and at most 1, got {epsilon}")
        self.inner = as_bandit_policy(inner)
        self.epsilon = float(epsilon)
        if self.inner.restricts():
            raise ConfigError(
                f"an EpsilonFloor around {self.inner.kind} would give forbidden actions mass; put the floor inside: "
                "mask, clip and shield wrap the EpsilonFloor"
            )

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._floored(self.inner.distribution(context, actions), len(actions))

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._floored(self.inner.distribution_rows(contexts, actions), len(actions))

    def _floored(self, inner: PolicyDistribution, count: int) -> PolicyDistribution:
        mass = np.exp(inner.logp)
        mass *= 1.0 - self.epsilon
        mass += self.epsilon / count
        return PolicyDistribution(np.log(mass, out=mass), inner.scores)

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"epsilon": self.epsilon}, parts={"inner": self.inner})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "EpsilonFloor":
        return cls(contents.policy("inner"), contents.number("epsilon"))


class _Filtered(BanditPolicy):
    """The inner policy over the actions that a filter allows in each context."""

    def __init__(self, inner: DecisionPolicy, allowed: _ActionFilter) -> None:
        self.inner = as_bandit_policy(inner)
        self.allowed = allowed

    def restricts(self) -> bool:
        return True

    def contents(self) -> PolicyContents:
        """Raises DataError for a filter that cannot be saved."""
        match self.allowed:
            case ForbiddenActions(names):
                return PolicyContents(settings={"forbidden": list(names)}, parts={"inner": self.inner})
            case ActionRange(low, high):
                return PolicyContents(settings={"low": low, "high": high}, parts={"inner": self.inner})
            case _:
                raise DataError(
                    f"a filter of the type {type(self.allowed).__name__} cannot be saved; use ForbiddenActions or "
                    "ActionRange, or save the inner policy and wrap it where it is loaded"
                )

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> Self:
        inner, forbidden = contents.policy("inner"), contents.settings.get("forbidden")
        if isinstance(forbidden, list):
            return cls(inner, ForbiddenActions(tuple(map(str, forbidden))))
        return cls(inner, ActionRange(int(contents.number("low")), int(contents.number("high"))))


class Masked(_Filtered):
    """The inner policy given that its action is allowed: probabilities are renormalised over the allowed actions.

    Where the inner policy gives all its mass to forbidden actions, each allowed one is equally likely. Raises DataError
    where a filter allows none.
    """

    kind = "masked"

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        logp, scores = self.inner.distribution(context, actions)
        allowed = _some_allowed(self.allowed(context, actions), actions)
        return PolicyDistribution(_normalized(np.where(allowed, logp, -np.inf), allowed), scores)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        logp, scores = self.inner.distribution_rows(contexts, actions)
        rows = [_some_allowed(self.allowed(context, actions), actions) for context in contexts]
        allowed = np.array(rows, dtype=np.bool_).reshape(len(contexts), len(actions))
        return PolicyDistribution(_normalized(np.where(allowed, logp, -np.inf), allowed), scores)


class Clipped(_Filtered):
    """Policy whose forbidden actions are replaced by the nearest allowed number, the lower one of two.

    For actions in an order, such as speeds or prices. The distribution is the push-forward: the mass of a forbidden
    action is added to its replacement. Raises DataError where a filter allows none.
    """

    kind = "clipped"

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        logp, scores = self.inner.distribution(context, actions)
        return PolicyDistribution(_pushed(logp, self._targets(context, actions)), scores)

    def decide(self, context: Floats, actions: ActionSet, draw_key: int) -> tuple[Choice, PolicyDistribution]:
        drawn, inner = self.inner.decide(context, actions, draw_key)
        targets = self._targets(context, actions)
        pushed = PolicyDistribution(_pushed(inner.logp, targets), inner.scores)
        return _intervened(drawn, int(targets[drawn.action]), pushed.logp, "clip"), pushed

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        logp, scores = self.inner.distribution_rows(contexts, actions)
        pushed = [_pushed(row, self._targets(x, actions)) for row, x in zip(logp, contexts, strict=True)]
        return PolicyDistribution(np.array(pushed).reshape(logp.shape), scores)

    def _targets(self, context: Floats, actions: ActionSet) -> Ints:
        """The action `[K]` that is executed for each action."""
        allowed = np.flatnonzero(_some_allowed(self.allowed(context, actions), actions))
        distance = np.abs(np.arange(len(actions))[:, None] - allowed)
        return allowed[distance.argmin(axis=1)]


class Shielded(BanditPolicy):
    """Policy that takes safe actions only: an unsafe one is replaced by a draw from the inner policy's safe actions.

    Without mass on safe actions, or without safe actions, the shield's fallback is taken.
    """

    kind = "shielded"

    def __init__(self, inner: DecisionPolicy, shield: ActionShield) -> None:
        self.inner = as_bandit_policy(inner)
        self.shield = shield

    def restricts(self) -> bool:
        return True

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        logp, scores = self.inner.distribution(context, actions)
        return PolicyDistribution(self._shielded(logp, context, actions), scores)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        logp, scores = self.inner.distribution_rows(contexts, actions)
        rows = [self._shielded(row, x, actions) for row, x in zip(logp, contexts, strict=True)]
        return PolicyDistribution(np.array(rows).reshape(logp.shape), scores)

    def decide(self, context: Floats, actions: ActionSet, draw_key: int) -> tuple[Choice, PolicyDistribution]:
        drawn, inner = self.inner.decide(context, actions, key(draw_key, self.kind))
        logp = self._shielded(inner.logp, context, actions)
        action = drawn.action if logp[drawn.action] > -np.inf else draw_action(logp, draw_key)
        return _intervened(drawn, action, logp, "shield"), PolicyDistribution(logp, inner.scores)

    def _shielded(self, logp: Floats, context: Floats, actions: ActionSet) -> Floats:
        safe = np.where(self.shield.allowed(context, actions), logp, -np.inf)
        if safe.max() > -np.inf:
            return _normalized(safe, None)
        taken = self.shield.fallback(context, actions)
        return np.where(np.arange(len(actions)) == taken, 0.0, -np.inf)

    def contents(self) -> PolicyContents:
        raise DataError("a shielded policy cannot be saved: save the inner policy, and let the service add the shield")

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "Shielded":
        del contents
        raise DataError("a shield is not part of a policy folder; load the inner policy and wrap it")


class Fallback(BanditPolicy):
    """Policy with a default: the mass of actions that the inner policy's model does not trust is the default's.

    An action is not trusted if its score is below `min_score` or NaN. Where the inner policy's largest probability is
    below `min_confidence` the default decides alone: that depends on the context and not on the draw, so the
    log-probability is the default's own. Where the inner policy fails (an arithmetic,
    value or look-up error, or a distribution that is none) the default decides alone. A deadline is the caller's: one
    that stops waiting executes the default, with the default's log-probability.
    """

    kind = "fallback"

    def __init__(
        self, inner: DecisionPolicy, default: DecisionPolicy, min_score: float = -np.inf, min_confidence: float = 0.0
    ) -> None:
        if not 0.0 <= min_confidence <= 1.0:
            raise ConfigError(f"min_confidence must be from 0 to 1, got {min_confidence}")
        self.inner = as_bandit_policy(inner)
        self.default = as_bandit_policy(default)
        self.min_score = float(min_score)
        self.min_confidence = float(min_confidence)

    def restricts(self) -> bool:
        return self.inner.restricts() or self.default.restricts()

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        inner = self._inner_distribution(context, actions)
        if inner is None or not self._confident(inner):
            return self.default.distribution(context, actions)
        trusted = self._trusted(inner)
        if trusted.all():
            return inner
        return _with_default(inner, trusted, self.default.distribution(context, actions))

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        rows = [self.distribution(context, actions).logp for context in contexts]
        return PolicyDistribution(np.array(rows).reshape(len(contexts), len(actions)), None)

    def decide(self, context: Floats, actions: ActionSet, draw_key: int) -> tuple[Choice, PolicyDistribution]:
        inner = self._inner_distribution(context, actions)
        if inner is None:
            chosen, default = self.default.decide(context, actions, draw_key)
            return replace(chosen, intervention="fallback: the policy failed"), default
        if not self._confident(inner):
            chosen, default = self.default.decide(context, actions, draw_key)
            return replace(chosen, intervention="fallback: low confidence"), default
        drawn, _ = self.inner.decide(context, actions, key(draw_key, self.kind))
        trusted = self._trusted(inner)
        if trusted.all():
            return drawn, inner
        other, default = self.default.decide(context, actions, draw_key)
        mixed = _with_default(inner, trusted, default)
        if trusted[drawn.action]:
            return _intervened(drawn, drawn.action, mixed.logp, ""), mixed
        chosen = _intervened(drawn, other.action, mixed.logp, "")
        return replace(chosen, intervention="fallback: low score"), mixed

    def _inner_distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution | None:
        """Distribution of the inner policy; None where it fails."""
        try:
            inner = self.inner.distribution(context, actions)
        except (ArithmeticError, ValueError, LookupError, HoneError):
            return None
        return inner if abs(np.exp(inner.logp).sum() - 1.0) <= LOGP_TOLERANCE else None  # NaN is no distribution

    def _confident(self, inner: PolicyDistribution) -> bool:
        return float(np.exp(inner.logp.max())) >= self.min_confidence - LOGP_TOLERANCE

    def _trusted(self, inner: PolicyDistribution) -> Bools:
        return np.ones(len(inner.logp), np.bool_) if inner.scores is None else inner.scores >= self.min_score

    def contents(self) -> PolicyContents:
        settings: dict[str, float | None] = {"min_score": None if self.min_score == -np.inf else self.min_score}
        if self.min_confidence:  # absent in policies that were saved before it existed
            settings["min_confidence"] = self.min_confidence
        return PolicyContents(settings=settings, parts={"inner": self.inner, "default": self.default})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "Fallback":
        unlimited = contents.settings.get("min_score") is None
        lowest = -np.inf if unlimited else contents.number("min_score")
        confidence = contents.number("min_confidence") if "min_confidence" in contents.settings else 0.0
        return cls(contents.policy("inner"), contents.policy("default"), lowest, confidence)


class Routed(BanditPolicy):
    """Mixture of policies: each decides a share of the decisions, by the key of the draw.

    The log-probability is the mixture's, log sum_i share_i p_i: the route is part of the chance. Where units are
    assigned for good, as in a rollout, the unit's own policy decides, and this wrapper is not needed.
    """

    kind = "routed"

    def __init__(self, policies: Sequence[DecisionPolicy], shares: Sequence[float]) -> None:
        total = sum(shares)
        if len(policies) != len(shares) or not policies or min(shares) <= 0 or abs(total - 1.0) > LOGP_TOLERANCE:
            raise ConfigError(f"{len(policies)} policies need as many shares above 0 that sum to 1, got {list(shares)}")
        self.policies = tuple(map(as_bandit_policy, policies))
        self.shares = tuple(float(share) for share in shares)
        self._log_shares = np.log(self.shares)

    def restricts(self) -> bool:
        return any(policy.restricts() for policy in self.policies)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._mixed([policy.distribution(context, actions) for policy in self.policies])

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._mixed([policy.distribution_rows(contexts, actions) for policy in self.policies])

    def decide(self, context: Floats, actions: ActionSet, draw_key: int) -> tuple[Choice, PolicyDistribution]:
        place, mixed = draw_action(self._log_shares, draw_key), self.distribution(context, actions)
        drawn = self.policies[place].act(context, actions, key(draw_key, self.kind))
        return _intervened(drawn, drawn.action, mixed.logp, ""), mixed

    def _mixed(self, parts: Sequence[PolicyDistribution]) -> PolicyDistribution:
        mass = np.tensordot(self.shares, np.exp([part.logp for part in parts]), axes=1)
        return PolicyDistribution(log_mass(mass), None)

    def contents(self) -> PolicyContents:
        names = [f"route_{place}" for place in range(len(self.policies))]
        parts = dict(zip(names, self.policies, strict=True))
        return PolicyContents(settings={"shares": list(self.shares)}, parts=parts)

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "Routed":
        shares = contents.settings.get("shares")
        if not isinstance(shares, list):
            raise DataError(f"setting 'shares' is {shares!r}, not a list of numbers")
        policies = [contents.policy(f"route_{place}") for place in range(len(shares))]
        return cls(policies, [float(share) for share in shares])


def _normalized(logp: Floats, otherwise: Bools | None) -> Floats:
    """Log-probabilities `[..., K]` that sum to 1; rows without mass are uniform over `otherwise`."""
    greatest = logp.max(axis=-1, keepdims=True)
    if otherwise is not None and not (greatest > -np.inf).all():
        logp = np.where((greatest == -np.inf) & otherwise, 0.0, logp)
        greatest = logp.max(axis=-1, keepdims=True)
    return logp - (greatest + np.log(np.exp(logp - greatest).sum(axis=-1, keepdims=True)))


def _with_default(inner: PolicyDistribution, trusted: Bools, default: PolicyDistribution) -> PolicyDistribution:
    """The inner policy's mass on trusted actions, and the rest as the default has it."""
    mass = np.exp(inner.logp)
    missing = mass[~trusted].sum()
    mass[~trusted] = 0.0
    mass += missing * np.exp(default.logp)
    return PolicyDistribution(log_mass(mass / mass.sum()), inner.scores)


def _pushed(logp: Floats, targets: Ints) -> Floats:
    """Push-forward of a distribution `[K]` along the map `targets` `[K]`."""
    mass = np.bincount(targets, weights=np.exp(logp), minlength=len(logp))
    return log_mass(mass.astype(np.float64))


def _intervened(drawn: Choice, action: int, logp: Floats, reason: str) -> Choice:
    """The choice of `action` from `logp` `[K]`; the reason counts if the action is not the one drawn."""
    intervention = reason if action != drawn.action else drawn.intervention
    return replace(drawn, action=action, logp=min(0.0, float(logp[action])), intervention=intervention)
