"""PPO with a novelty bonus from hash counts (Tang et al., 2017, 1611.04717).

Observations are novel where the count of their hash code is low. Rewards and bonuses have a critic and a discount each.
The defaults are those that solve `hone/Maze-v0`, where PPO without the bonus (`algorithm.novelty_weight = 0`)
stays at 0.
"""

from hone.control.intrinsic_reward import IntrinsicRewardRunConfig
from hone.control.networks.intrinsic_reward import HashCountConfig, HashCounts
from hone.run.job import RecipeSpec


class PpoCountsConfig(IntrinsicRewardRunConfig):
    """PPO with two critics; hash counts."""

    novelty_model = HashCounts

    novelty: HashCountConfig = HashCountConfig()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Measure of novelty."""


ENTRY = RecipeSpec(
    summary="on-policy control where reward is rare: hash counts",
    paper="Tang et al., #Exploration",
    config=PpoCountsConfig,
    limitation="hash codes must separate relevant states: images need an encoder before the hash.",
)
