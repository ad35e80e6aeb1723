"""Epsilon-greedy on a linear model of rewards (Sutton & Barto, 2018, chapter 2): mostly the best arm, at times any."""

from pydantic import Field

from hone.core.config import Config
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BanditModel
from hone.decide.training.job import LinearBanditConfig
from hone.run.job import RecipeSpec


class EpsilonGreedyAlgorithm(Config):
    """The share of exploration."""

    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Probability of a uniform arm."""


class EpsilonGreedyConfig(LinearBanditConfig):
    """Epsilon-greedy."""

    algorithm: EpsilonGreedyAlgorithm = EpsilonGreedyAlgorithm()
    """The share of exploration."""

    def rule(self, model: BanditModel) -> EpsilonGreedyPolicy:
        """Policy over a model of rewards."""
        return EpsilonGreedyPolicy(model, self.algorithm.epsilon)


ENTRY = RecipeSpec(
    summary="bandits: the arm believed best, or with a small probability any",
    paper="Sutton & Barto, Reinforcement Learning: An Introduction, 2nd edition, 2018, chapter 2",
    config=EpsilonGreedyConfig,
    limitation="it explores bad arms as often as good ones, and for ever.",
)
