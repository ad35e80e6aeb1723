"""Thompson sampling as a distribution: the probability that each arm is the best under the posterior.

An arm is pulled as often as it is believed to be the best (Thompson, 1933). The probabilities come from quadrature
(`quadrature.py`), and the policy draws from them, so that its log-probabilities are those that it decided by.
"""

from hone.core.decisions import ActionSet, Floats
from hone.core.errors import DataError
from hone.decide.bandits.models import RewardModel, reward_model
from hone.decide.bandits.policy import BanditPolicy, PolicyContents, PolicyDistribution, log_mass, repeated_distribution
from hone.decide.bandits.posteriors import BetaBernoulliPosterior
from hone.decide.bandits.quadrature import beta_best, normal_best, normal_best_rows


class GaussianThompsonPolicy(BanditPolicy):
    """Thompson sampling where each arm's expected reward has a normal posterior, as in linear and Gaussian models.

    The arms' posteriors are taken as independent. They are in models with a table for each arm; with a
    `JointLinearPosterior` the policy draws each arm's reward on its own.
    """

    kind = "thompson_gaussian"

    def __init__(self, model: RewardModel) -> None:
        self.model = model

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, variance = self.model.estimate(context, actions)
        return PolicyDistribution(log_mass(normal_best(mean, variance)), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, variance = self.model.estimate_rows(contexts, actions)
        return PolicyDistribution(log_mass(normal_best_rows(mean, variance)), mean)

    def contents(self) -> PolicyContents:
        return PolicyContents(parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "GaussianThompsonPolicy":
        return cls(reward_model(contents))


class BetaThompsonPolicy(BanditPolicy):
    """Thompson sampling where each arm's rate has a Beta posterior; contexts are ignored."""

    kind = "thompson_beta"

    def __init__(self, model: BetaBernoulliPosterior) -> None:
        self.model = model

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean = self.model.mean(context, actions)
        return PolicyDistribution(log_mass(beta_best(self.model.alpha, self.model.beta)), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return repeated_distribution(self.distribution(contexts, actions), len(contexts))

    def contents(self) -> PolicyContents:
        return PolicyContents(parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "BetaThompsonPolicy":
        model = reward_model(contents)
        if not isinstance(model, BetaBernoulliPosterior):
            raise DataError(f"it needs a model of the kind {BetaBernoulliPosterior.kind}, not {model.kind}")
        return cls(model)


def thompson_policy(model: RewardModel) -> BanditPolicy:
    """Thompson sampling over a posterior, Beta or normal."""
    return BetaThompsonPolicy(model) if isinstance(model, BetaBernoulliPosterior) else GaussianThompsonPolicy(model)
