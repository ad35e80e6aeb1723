"""Policies over a finite set of actions that tell their whole distribution, and what each of them can save.

A policy is a rule (LinUCB, SquareCB ...) over a model of the rewards; a wrapper is a policy over policies. All of them
are a `BanditPolicy`: one method gives the distribution, and drawing from it is the same for all.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias, final

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, DecisionPolicy, Floats, draw_action, logp_each
from hone.core.errors import DataError

Setting: TypeAlias = "bool | int | float | str | list[str] | list[float] | None"


class PolicyDistribution(NamedTuple):
    """Distribution over the actions of one decision."""

    logp: Floats
    """`[K]` nats; -inf for an action that is never taken."""
    scores: Floats | None
    """`[K]` rewards that the policy's model expects; None: it has no model."""

    def repeated(self, rows: int) -> "PolicyDistribution":
        """The distribution of a policy that ignores contexts, for each of `rows` contexts."""
        scores = None if self.scores is None else np.broadcast_to(self.scores, (rows, len(self.scores)))
        return PolicyDistribution(np.broadcast_to(self.logp, (rows, len(self.logp))), scores)


class Saveable(ABC):
    """A policy or model that `saving.save_policy` can write."""

    kind: ClassVar[str]
    """Name of the kind in a saved file; it never changes."""

    @abstractmethod
    def contents(self) -> "PolicyContents":
        """Settings, arrays and parts, from which `from_contents` makes an equal one."""

    @classmethod
    @abstractmethod
    def from_contents(cls, contents: "PolicyContents") -> "Saveable":
        """An equal object to the one whose `contents` these are. Raises DataError where something is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContents:
    """All that a policy or model consists of."""

    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    arrays: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    parts: Mapping[str, Saveable] = field(default_factory=dict[str, Saveable])

    def number(self, name: str) -> float:
        """The setting `name`, a number. Raises DataError where it is absent or something else."""
        value = self.settings.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"setting {name!r} is {value!r}, not a number")
        return float(value)

    def flag(self, name: str) -> bool:
        """The setting `name`, true or false. Raises DataError where it is absent or something else."""
        value = self.settings.get(name)
        if not isinstance(value, bool):
            raise DataError(f"setting {name!r} is {value!r}, not true or false")
        return value

    def array(self, name: str, *shape: int | None) -> Floats:
        """A copy of the array `name`; None in `shape` stands for any size. Raises DataError for another shape."""
        value = self.arrays.get(name)
        if value is None:
            raise DataError(f"there is no array {name!r} among {sorted(self.arrays)}")
        fits = value.ndim == len(shape) and all(
            wanted is None or wanted == size for wanted, size in zip(shape, value.shape, strict=True)
        )
        if not fits:
            expected = tuple("any" if size is None else size for size in shape)
            raise DataError(f"array {name!r} has shape {value.shape}, not {expected}")
        return value.astype(np.float64)

    def policy(self, name: str) -> "BanditPolicy":
        """The part `name`, a policy. Raises DataError where it is absent or something else."""
        part = self.parts.get(name)
        if not isinstance(part, BanditPolicy):
            raise DataError(f"part {name!r} is {'absent' if part is None else part.kind}, not a policy")
        return part


class BanditPolicy(Saveable):
    """A policy that tells its whole distribution. Subclasses give `distribution`; everything else follows."""

    @abstractmethod
    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        """Distribution over the `K` actions for features `[d]`."""

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        """Distributions `[n, K]` for features `[n, d]`, one row after another unless a subclass is faster."""
        return PolicyDistribution(logp_each(self, contexts, actions), None)

    def restricts(self) -> bool:
        """True if some actions are forbidden on purpose, so that no wrapper may give them mass."""
        return False

    @final
    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[K]` in nats for features `[d]`."""
        return self.distribution(context, actions).logp

    @final
    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[n, K]` in nats for features `[n, d]`."""
        return self.distribution_rows(contexts, actions).logp

    @final
    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        """Draw an action from the distribution; the same key draws the same action."""
        return self.decide(context, actions, draw_key)[0]

    def decide(self, context: Floats, actions: ActionSet, draw_key: int) -> tuple[Choice, PolicyDistribution]:
        """Draw an action, and tell the distribution that it was drawn from, so that a wrapper asks for both once."""
        distribution = self.distribution(context, actions)
        logp, scores = distribution
        action = draw_action(logp, draw_key)
        return Choice(action=action, logp=min(0.0, float(logp[action])), scores=scores), distribution


class _ForeignPolicy(BanditPolicy):
    """Any `DecisionPolicy` as a part of a wrapper. It has no scores, and cannot be saved."""

    kind = "foreign"

    def __init__(self, policy: DecisionPolicy) -> None:
        self.policy = policy

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        return PolicyDistribution(self.policy.logp(context, actions), None)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return PolicyDistribution(self.policy.logp_rows(contexts, actions), None)

    def decide(self, context: Floats, actions: ActionSet, draw_key: int) -> tuple[Choice, PolicyDistribution]:
        return self.policy.act(context, actions, draw_key), self.distribution(context, actions)

    def contents(self) -> PolicyContents:
        raise DataError(f"a {type(self.policy).__name__} cannot be saved as a part of a policy; save it on its own")

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "_ForeignPolicy":
        del contents
        raise DataError("a policy of another program cannot be read from a file")


def replay_decision(policy: DecisionPolicy, decision: Decision) -> Choice:
    """Decide a logged decision again, by the policy of its version -> the choice, equal to the logged one to the bit.

    Raises DataError where it differs: it is another policy, the record was changed, or the machine rounds otherwise.
    """
    choice = policy.act(decision.context, decision.actions, decision.draw_key)
    if (choice.action, choice.logp) != (decision.executed, decision.executed_logp):
        raise DataError(
            f"decision {decision.id!r} of version {decision.version!r} executed action {decision.executed} with "
            f"log-probability {decision.executed_logp!r}; the policy now gives action {choice.action} with "
            f"{choice.logp!r}: it is not the policy that decided, or the record is not as it was written"
        )
    return choice


def as_bandit_policy(policy: DecisionPolicy) -> BanditPolicy:
    """The policy itself if it is a `BanditPolicy`, else a `_ForeignPolicy` around it."""
    return policy if isinstance(policy, BanditPolicy) else _ForeignPolicy(policy)


def point_mass(action: int, count: int) -> Floats:
    """Log-probabilities `[count]` of the policy that always takes `action`."""
    logp = np.full(count, -np.inf)
    logp[action] = 0.0
    return logp


def log_mass(mass: Floats) -> Floats:
    """Logarithms of probabilities; -inf for 0."""
    with np.errstate(divide="ignore"):
        return np.log(mass)


def best_action(scores: Floats) -> int:
    """Number of the greatest of `[K]` scores, the first of equals. Raises DataError for scores that are not numbers."""
    best = int(scores.argmax())
    if math.isnan(scores[best]):  # argmax takes the first NaN
        raise DataError(f"the score of action {best} is not a number; look for NaN among the context's features")
    return best


def numbered_actions(count: int) -> ActionSet:
    """Actions that are told apart by their numbers alone: `0`, `1`, ..."""
    return ActionSet(names=tuple(map(str, range(count))))
