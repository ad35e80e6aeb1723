"""LinUCB (Li et al., 2010): the arm with the greatest upper confidence bound of a linear model of rewards.

Deterministic: the log of a served LinUCB supports estimates only with a floor of exploration around it.
"""

from pydantic import Field

from hone.core.config import Config
from hone.decide.bandits.greedy import LinUcbPolicy
from hone.decide.bandits.models import BanditModel
from hone.decide.training.job import LinearBanditConfig
from hone.run.job import RecipeSpec


class LinUcbAlgorithm(Config):
    """The width of the bound."""

    alpha: float = Field(default=1.0, ge=0)
    """Standard deviations of the expected reward that are added to its mean."""


class LinUcbConfig(LinearBanditConfig):
    """LinUCB."""

    algorithm: LinUcbAlgorithm = LinUcbAlgorithm()
    """The width of the bound."""

    def rule(self, model: BanditModel) -> LinUcbPolicy:
        """Policy over a model of rewards."""
        return LinUcbPolicy(model, self.algorithm.alpha)


ENTRY = RecipeSpec(
    summary="bandits: the arm with the greatest upper confidence bound",
    paper="Li et al., A Contextual-Bandit Approach to Personalized News Article Recommendation, 2010",
    config=LinUcbConfig,
    limitation="deterministic: without a floor its log says nothing about other actions.",
)
