"""Policies that explore around the greatest expected reward: epsilon-greedy, Boltzmann and SquareCB."""

import numpy as np

from hone.core.decisions import ActionSet, Floats
from hone.core.errors import ConfigError
from hone.decide.bandits.models import RewardModel, reward_model
from hone.decide.bandits.policy import BanditPolicy, PolicyContents, PolicyDistribution, best_action, log_mass


class EpsilonGreedyPolicy(BanditPolicy):
    """Epsilon-greedy: with probability `epsilon` a uniform action, else the one with the greatest expected reward."""

    kind = "epsilon_greedy"

    def __init__(self, model: RewardModel, epsilon: float) -> None:
        if not 0 <= epsilon <= 1:
            raise ConfigError(f"epsilon must be from 0 to 1, got {epsilon}")
        self.model, self.epsilon = model, float(epsilon)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean = self.model.mean(context, actions)
        mass = np.full(len(mean), self.epsilon / len(mean))
        mass[best_action(mean)] += 1.0 - self.epsilon
        return PolicyDistribution(log_mass(mass), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        mean = self.model.mean_rows(contexts, actions)
        mass = np.full(mean.shape, self.epsilon / mean.shape[1])
        mass[np.arange(len(mean)), mean.argmax(axis=1)] += 1.0 - self.epsilon
        return PolicyDistribution(log_mass(mass), mean)

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"epsilon": self.epsilon}, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "EpsilonGreedyPolicy":
        return cls(reward_model(contents), contents.number("epsilon"))


class BoltzmannPolicy(BanditPolicy):
    """Boltzmann exploration: probabilities proportional to exp(expected reward / `temperature`)."""

    kind = "boltzmann"

    def __init__(self, model: RewardModel, temperature: float) -> None:
        if temperature <= 0:
            raise ConfigError(f"temperature must be above 0, got {temperature}")
        self.model, self.temperature = model, float(temperature)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._softmax(self.model.mean(context, actions))

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._softmax(self.model.mean_rows(contexts, actions))

    def _softmax(self, mean: Floats) -> PolicyDistribution:
        logits = (mean - mean.max(axis=-1, keepdims=True)) / self.temperature
        return PolicyDistribution(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), mean)

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"temperature": self.temperature}, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "BoltzmannPolicy":
        return cls(reward_model(contents), contents.number("temperature"))


class SquareCbPolicy(BanditPolicy):
    """SquareCB, inverse gap weighting (Foster & Rakhlin, 2020).

    p_k = 1 / (K + gamma (best - mean_k)), and the best has the rest. gamma = gamma_scale t^gamma_exponent grows with
    the t rows that the model has learnt, so that exploration fades. No probability is ever 0, and actions that are
    nearly as good get most of the exploration.
    """

    kind = "squarecb"

    def __init__(self, model: RewardModel, gamma_scale: float = 10.0, gamma_exponent: float = 0.5) -> None:
        if gamma_scale <= 0 or gamma_exponent < 0:
            raise ConfigError(
                f"gamma_scale must be above 0 and gamma_exponent at least 0, got {gamma_scale} and {gamma_exponent}"
            )
        self.model, self.gamma_scale, self.gamma_exponent = model, float(gamma_scale), float(gamma_exponent)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._weighted(self.model.mean(context, actions)[None], rows=False)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._weighted(self.model.mean_rows(contexts, actions), rows=True)

    def _weighted(self, mean: Floats, *, rows: bool) -> PolicyDistribution:
        gamma = self.gamma_scale * max(self.model.observed, 1.0) ** self.gamma_exponent
        best = mean.argmax(axis=1)
        mass = 1.0 / (mean.shape[1] + gamma * (mean.max(axis=1, keepdims=True) - mean))
        places = np.arange(len(mean))
        mass[places, best] += 1.0 - mass.sum(axis=1)
        logp = np.log(mass)
        return PolicyDistribution(logp, mean) if rows else PolicyDistribution(logp[0], mean[0])

    def contents(self) -> PolicyContents:
        settings = {"gamma_scale": self.gamma_scale, "gamma_exponent": self.gamma_exponent}
        return PolicyContents(settings=settings, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "SquareCbPolicy":
        return cls(reward_model(contents), contents.number("gamma_scale"), contents.number("gamma_exponent"))
