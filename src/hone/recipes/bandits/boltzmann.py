"""Boltzmann exploration on a linear model of rewards: arms by the exponential of their expected reward."""

from pydantic import Field

from hone.core.config import Config
from hone.decide.bandits.greedy import BoltzmannPolicy
from hone.decide.bandits.models import RewardModel
from hone.decide.training.config import LinearBanditConfig
from hone.decide.training.job import bandit_recipe


class BoltzmannAlgorithm(Config):
    """The temperature."""

    temperature: float = Field(default=0.1, gt=0)
    """Difference of expected rewards at which an arm is e times as likely."""


class BoltzmannConfig(LinearBanditConfig):
    """Boltzmann exploration."""

    algorithm: BoltzmannAlgorithm = BoltzmannAlgorithm()
    """The temperature."""


def rule(config: BoltzmannConfig, model: RewardModel) -> BoltzmannPolicy:
    """Policy over a model of rewards."""
    return BoltzmannPolicy(model, config.algorithm.temperature)


ENTRY = bandit_recipe(
    summary="bandits: arms by the exponential of their expected reward",
    paper="Cesa-Bianchi et al., Boltzmann Exploration Done Right, 2017",
    config=BoltzmannConfig,
    rule=rule,
    limitation="the temperature is on the rewards' scale, and an arm of bad luck is hardly tried again.",
)
