"""Conjugate posteriors of arms without contexts, and plain means of their rewards.

Thompson sampling acts on a draw from a posterior (Thompson, 1933); UCB1 on counts and means (Auer et al., 2002).
Posteriors of arms with contexts are in `linear.py`.
"""

import numpy as np

from hone.core.decisions import ActionSet, Floats, Ints
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.linear import RidgeTables
from hone.decide.bandits.models import RewardEstimate, RewardModel, check_observations, require_action_count
from hone.decide.bandits.policy import PolicyContents


class BetaBernoulliPosterior(RewardModel):
    """Arms with rewards 0 or 1, each with a Beta(`alpha`, `beta`) posterior of its rate; contexts are ignored.

    `discount` below 1 forgets: the counts beyond the prior fall by this factor with each row.
    """

    kind = "beta_bernoulli"

    def __init__(self, arms: int, *, alpha: float = 1.0, beta: float = 1.0, discount: float = 1.0) -> None:
        if alpha <= 0 or beta <= 0 or not 0 < discount <= 1:
            raise ConfigError(
                f"alpha and beta must be above 0 and discount above 0 and at most 1, got {alpha}, {beta} and {discount}"
            )
        self.prior_alpha, self.prior_beta, self.discount = float(alpha), float(beta), float(discount)
        self.alpha = np.full(arms, self.prior_alpha)
        self.beta = np.full(arms, self.prior_beta)

    @property
    def observed(self) -> float:
        return float(self.alpha.sum() + self.beta.sum()) - len(self.alpha) * (self.prior_alpha + self.prior_beta)

    def estimate(self, context: Floats, actions: ActionSet) -> RewardEstimate:
        del context
        require_action_count(actions, len(self.alpha))
        total = self.alpha + self.beta
        rate = self.alpha / total
        return RewardEstimate(rate, rate * (1.0 - rate) / (total + 1.0))

    def estimate_rows(self, contexts: Floats, actions: ActionSet) -> RewardEstimate:
        return _same_rows(self.estimate(contexts, actions), len(contexts))

    def mean(self, context: Floats, actions: ActionSet) -> Floats:
        return self.estimate(context, actions).mean

    def mean_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        return self.estimate_rows(contexts, actions).mean

    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        del contexts
        require_action_count(actions, len(self.alpha))
        check_observations(np.zeros((0, 0)), chosen, rewards, weights, len(actions))
        wrong = np.flatnonzero((rewards != 0.0) & (rewards != 1.0))
        if len(wrong):
            raise DataError(
                f"reward {rewards[wrong[0]]} of decision {wrong[0]}: a Beta-Bernoulli bandit learns from 0 and 1 only; "
                'use model.kind = "linear" for other rewards'
            )
        if self.discount < 1.0:
            kept = self.discount ** len(chosen)
            self.alpha = self.prior_alpha + kept * (self.alpha - self.prior_alpha)
            self.beta = self.prior_beta + kept * (self.beta - self.prior_beta)
        self.alpha += np.bincount(chosen, weights=weights * rewards, minlength=len(self.alpha))
        self.beta += np.bincount(chosen, weights=weights * (1.0 - rewards), minlength=len(self.beta))

    def draw(self, context: Floats, draws: np.random.Generator) -> Floats:
        """Plausible rates `[n, K]` for contexts `[n, d]`, an independent draw for each."""
        return draws.beta(self.alpha, self.beta, size=(len(context), len(self.alpha)))

    def contents(self) -> PolicyContents:
        settings = {"alpha": self.prior_alpha, "beta": self.prior_beta, "discount": self.discount}
        return PolicyContents(settings=settings, arrays={"alpha": self.alpha, "beta": self.beta})

    def load_contents(self, contents: PolicyContents) -> None:
        alpha = contents.array("alpha", len(self.alpha))
        self.alpha, self.beta = alpha, contents.array("beta", len(self.beta))

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "BetaBernoulliPosterior":
        model = cls(
            len(contents.array("alpha", None)), alpha=contents.number("alpha"), beta=contents.number("beta"),
            discount=contents.number("discount"),
        )  # fmt: skip
        model.load_contents(contents)
        return model


class GaussianPosterior(RewardModel):
    """Arms with normal rewards of known `noise`, each with a normal posterior of its mean; contexts are ignored."""

    kind = "gaussian"

    def __init__(self, arms: int, *, noise: float = 1.0, prior_precision: float = 1.0, discount: float = 1.0) -> None:
        self.tables = RidgeTables(arms, 1, noise=noise, prior_precision=prior_precision, discount=discount)

    @property
    def observed(self) -> float:
        return float(self.tables.counts.sum())

    def estimate(self, context: Floats, actions: ActionSet) -> RewardEstimate:
        del context
        require_action_count(actions, len(self.tables.counts))
        return RewardEstimate(self.tables.coefficients[:, 0], self.tables.inverse[:, 0, 0])

    def estimate_rows(self, contexts: Floats, actions: ActionSet) -> RewardEstimate:
        return _same_rows(self.estimate(contexts, actions), len(contexts))

    def mean(self, context: Floats, actions: ActionSet) -> Floats:
        return self.estimate(context, actions).mean

    def mean_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        return self.estimate_rows(contexts, actions).mean

    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        del contexts
        require_action_count(actions, len(self.tables.counts))
        check_observations(np.zeros((0, 0)), chosen, rewards, weights, len(actions))
        self.tables.observe(np.ones((len(chosen), 1)), chosen, rewards, weights)

    def contents(self) -> PolicyContents:
        return self.tables.contents()

    def load_contents(self, contents: PolicyContents) -> None:
        self.tables.load_contents(contents)

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "GaussianPosterior":
        tables = RidgeTables.from_contents(contents)
        if tables.information.shape[1] != 1:
            raise DataError(f"tables of {tables.information.shape[1]} features, and arms without contexts have 1")
        model = cls(len(tables.counts))
        model.tables = tables
        return model


class ArmMeans(RewardModel):
    """Weighted count and mean of each arm's rewards; contexts are ignored. The variance is 1 / count.

    An arm without rewards has mean 0 and an infinite variance, so that UCB1 tries it first.
    """

    kind = "arm_means"

    def __init__(self, arms: int, *, discount: float = 1.0) -> None:
        if not 0 < discount <= 1:
            raise ConfigError(f"discount must be above 0 and at most 1, got {discount}")
        self.discount = float(discount)
        self.count, self.total = np.zeros(arms), np.zeros(arms)

    @property
    def observed(self) -> float:
        return float(self.count.sum())

    def estimate(self, context: Floats, actions: ActionSet) -> RewardEstimate:
        del context
        require_action_count(actions, len(self.count))
        tried = self.count > 0
        mean = np.divide(self.total, self.count, out=np.zeros(len(tried)), where=tried)
        return RewardEstimate(mean, np.divide(1.0, self.count, out=np.full(len(tried), np.inf), where=tried))

    def estimate_rows(self, contexts: Floats, actions: ActionSet) -> RewardEstimate:
        return _same_rows(self.estimate(contexts, actions), len(contexts))

    def mean(self, context: Floats, actions: ActionSet) -> Floats:
        return self.estimate(context, actions).mean

    def mean_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        return self.estimate_rows(contexts, actions).mean

    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        del contexts
        require_action_count(actions, len(self.count))
        check_observations(np.zeros((0, 0)), chosen, rewards, weights, len(actions))
        kept = self.discount ** len(chosen)
        self.count = kept * self.count + np.bincount(chosen, weights=weights, minlength=len(self.count))
        self.total = kept * self.total + np.bincount(chosen, weights=weights * rewards, minlength=len(self.total))

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"discount": self.discount}, arrays={"count": self.count, "total": self.total})

    def load_contents(self, contents: PolicyContents) -> None:
        count = contents.array("count", len(self.count))
        self.count, self.total = count, contents.array("total", len(self.total))

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "ArmMeans":
        model = cls(len(contents.array("count", None)), discount=contents.number("discount"))
        model.load_contents(contents)
        return model


def _same_rows(estimate: RewardEstimate, rows: int) -> RewardEstimate:
    """The estimate of a model without contexts, for each of `rows` contexts."""
    return RewardEstimate(*(np.broadcast_to(part, (rows, len(part))) for part in estimate))
