"""SquareCB (Foster & Rakhlin, 2020): exploration by inverse gap weighting of a linear model's expected rewards."""

from pydantic import Field

from hone.core.config import Config
from hone.decide.bandits.greedy import SquareCbPolicy
from hone.decide.bandits.models import BanditModel
from hone.decide.training.job import LinearBanditConfig
from hone.run.job import RecipeSpec


class SquareCbAlgorithm(Config):
    """The growth of gamma = gamma_scale t^gamma_exponent over t decisions."""

    gamma_scale: float = Field(default=10.0, gt=0)
    """Greater explores less."""
    gamma_exponent: float = Field(default=0.5, ge=0)
    """How fast exploration fades."""


class SquareCbConfig(LinearBanditConfig):
    """SquareCB."""

    algorithm: SquareCbAlgorithm = SquareCbAlgorithm()
    """The growth of gamma."""

    def rule(self, model: BanditModel) -> SquareCbPolicy:
        """Policy over a model of rewards."""
        return SquareCbPolicy(model, self.algorithm.gamma_scale, self.algorithm.gamma_exponent)


ENTRY = RecipeSpec(
    summary="bandits: exploration by the inverse gap to the best expected reward",
    paper="Foster & Rakhlin, Beyond UCB: Optimal and Efficient Contextual Bandits with Regression Oracles, 2020",
    config=SquareCbConfig,
    limitation="gamma_scale is on the rewards' scale.",
)
