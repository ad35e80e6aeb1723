"""Optimism under uncertainty: policies that take the action with the greatest upper confidence bound.

They are deterministic: all mass is on one action, so that a log of theirs supports no estimate of another policy. A
served one is wrapped in an `EpsilonFloor`.
"""

import math

import numpy as np

from hone.core.decisions import ActionSet, Floats
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.models import RewardModel, reward_model
from hone.decide.bandits.policy import (
    BanditPolicy,
    PolicyContents,
    PolicyDistribution,
    best_action,
    point_mass,
    repeated_distribution,
)
from hone.decide.bandits.posteriors import ArmMeans


class LinUcbPolicy(BanditPolicy):
    """LinUCB: the action with the greatest x . theta_k + alpha sqrt(x' A_k^-1 x) (Li et al., 2010).

    The first of equals is taken. With a `LinearGaussianPosterior` of noise 1 it is the disjoint form, with a
    `JointLinearPosterior` the shared one.
    """

    kind = "linucb"

    def __init__(self, model: RewardModel, alpha: float) -> None:
        if alpha < 0:
            raise ConfigError(f"alpha must be at least 0, got {alpha}")
        self.model, self.alpha = model, float(alpha)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, variance = self.model.estimate(context, actions)
        bound = np.sqrt(variance)
        bound *= self.alpha
        bound += mean
        return PolicyDistribution(point_mass(best_action(bound), len(bound)), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, variance = self.model.estimate_rows(contexts, actions)
        bound = mean + self.alpha * np.sqrt(variance)
        logp = np.full(mean.shape, -np.inf)
        logp[np.arange(len(mean)), bound.argmax(axis=1)] = 0.0
        return PolicyDistribution(logp, mean)

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"alpha": self.alpha}, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "LinUcbPolicy":
        return cls(reward_model(contents), contents.number("alpha"))


class Ucb1Policy(BanditPolicy):
    """UCB1: the arm with the greatest mean + width sqrt(2 ln t / n_k) after t pulls, n_k of them of arm k.

    For rewards in [0, 1] `width` is 1 (Auer et al., 2002). Arms that were never pulled come first. It ignores contexts.
    """

    kind = "ucb1"

    def __init__(self, model: ArmMeans, width: float = 1.0) -> None:
        if width < 0:
            raise ConfigError(f"width must be at least 0, got {width}")
        self.model, self.width = model, float(width)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, inverse_count = self.model.estimate(context, actions)
        width = self.width * math.sqrt(2.0 * math.log(max(self.model.observed, math.e)))
        bound = mean + width * np.sqrt(inverse_count)
        bound[self.model.count == 0] = np.inf
        return PolicyDistribution(point_mass(best_action(bound), len(bound)), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return repeated_distribution(self.distribution(contexts, actions), len(contexts))

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"width": self.width}, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "Ucb1Policy":
        model = reward_model(contents)
        if not isinstance(model, ArmMeans):
            raise DataError(f"UCB1 needs a model of the kind {ArmMeans.kind}, not {model.kind}")
        return cls(model, contents.number("width"))
