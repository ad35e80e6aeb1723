"""Models of the rewards of a bandit's actions: what a policy's rule explores with, and what learns from rewards."""

import math
from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from hone.core.decisions import ActionSet, Floats, Ints
from hone.core.errors import DataError
from hone.decide.bandits.policy import PolicyContents, Saveable


class RewardEstimate(NamedTuple):
    """Expected rewards and the uncertainty about them."""

    mean: Floats
    """`[..., K]`."""
    variance: Floats
    """`[..., K]` posterior variance of the expected reward (not of a single reward)."""


class RewardModel(Saveable):
    """Belief about the rewards of actions, given contexts of d numbers. Learns in closed form, in place."""

    @property
    @abstractmethod
    def observed(self) -> float:
        """Rows learnt; models that forget, or count weights, may tell what is left of them."""

    @abstractmethod
    def estimate(self, context: Floats, actions: ActionSet) -> RewardEstimate:
        """Expected rewards `[K]` for features `[d]`."""

    @abstractmethod
    def estimate_rows(self, contexts: Floats, actions: ActionSet) -> RewardEstimate:
        """Expected rewards `[n, K]` for features `[n, d]`."""

    @abstractmethod
    def mean(self, context: Floats, actions: ActionSet) -> Floats:
        """The expected rewards `[K]` alone, at less cost than `estimate`."""

    @abstractmethod
    def mean_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """The expected rewards `[n, K]` alone, for features `[n, d]`."""

    @abstractmethod
    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        """Learn from decisions: features `[n, d]`, actions `[n]`, rewards `[n]`, weights `[n]` of the rows.

        Raises DataError for rewards that the model has no room for; then nothing was learnt.
        """

    @abstractmethod
    def load_contents(self, contents: PolicyContents) -> None:
        """Take up the arrays of another model of this kind and size, in place. Raises DataError for others."""


def check_observations(contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, count: int) -> None:
    """Raise DataError for actions that do not exist, and for features, rewards and weights that are no numbers."""
    if len(chosen) == 1 and 0 <= chosen[0] < count and weights[0] >= 0.0:
        numbers = float(contexts.sum()) + float(rewards[0]) + float(weights[0])
        if math.isfinite(numbers):
            return  # the usual case of a service, which learns one row at a time
    if not np.isfinite(contexts).all():
        row, feature = (int(place) for place in np.argwhere(~np.isfinite(contexts))[0])
        raise DataError(f"feature {feature} of decision {row} is {contexts[row, feature]}; leave such rows out")
    wrong = np.flatnonzero((chosen < 0) | (chosen >= count))
    if len(wrong):
        raise DataError(f"action {chosen[wrong[0]]} of decision {wrong[0]}: there are {count} actions, from 0")
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if len(wrong):
        raise DataError(f"reward {rewards[wrong[0]]} of decision {wrong[0]} is not finite; leave such rows out")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0)))
    if len(wrong):
        raise DataError(f"weight {weights[wrong[0]]} of decision {wrong[0]} is not a number of at least 0")


def require_action_count(actions: ActionSet, count: int) -> None:
    """Raise DataError for an action set of another size than the model's."""
    if len(actions) != count:
        raise DataError(
            f"{len(actions)} actions, and the model has learnt about {count}: a model with one table an action cannot "
            "tell what others are worth; use action features (joint_linear) where the actions change"
        )


def reward_model(contents: PolicyContents) -> RewardModel:
    """The part `model` of a policy's contents. Raises DataError where it is absent or something else."""
    part = contents.parts.get("model")
    if not isinstance(part, RewardModel):
        raise DataError(f"part 'model' is {'absent' if part is None else part.kind}, not a model of rewards")
    return part
