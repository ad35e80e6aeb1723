"""Boltzmann exploration on a linear model of rewards: arms by the exponential of their expected reward."""

from pydantic import Field

from hone.core.config import Config
from hone.decide.bandits.greedy import BoltzmannPolicy
from hone.decide.bandits.models import BanditModel
from hone.decide.training.job import LinearBanditConfig
from hone.run.job import RecipeSpec


class BoltzmannAlgorithm(Config):
    """The temperature."""

    temperature: float = Field(default=0.1, gt=0)
    """Difference of expected rewards at which an arm is e times as likely."""


class BoltzmannConfig(LinearBanditConfig):
    """Boltzmann exploration."""

    algorithm: BoltzmannAlgorithm = BoltzmannAlgorithm()
    """The temperature."""

    def rule(self, model: BanditModel) -> BoltzmannPolicy:
        """Policy over a model of rewards."""
        return BoltzmannPolicy(model, self.algorithm.temperature)


ENTRY = RecipeSpec(
    summary="bandits: arms by the exponential of their expected reward",
    paper="Cesa-Bianchi et al., Boltzmann Exploration Done Right, 2017",
    config=BoltzmannConfig,
    limitation="the temperature is on the rewards' scale, and an arm of bad luck is hardly tried again.",
)
