"""PPO with a novelty bonus from hash counts (Tang et al., 2017, 1611.04717).

Observations are novel where the count of their hash code is low. Rewards and bonuses have a critic and a discount each.
The defaults are those that solve `hone/Maze-v0`, where PPO without the bonus (`algorithm.novelty_weight = 0`)
stays at 0.
"""

from hone.models.control.intrinsic_reward import CuriousActorCritic, HashCountConfig, HashCounts
from hone.train.control.intrinsic_reward import (
    IntrinsicRewardRunConfig,
    check_intrinsic_reward,
    derive_intrinsic_reward,
    intrinsic_reward_job,
    intrinsic_reward_parts,
)
from hone.train.job import RecipeSpec, TrainingJob, checked_run


class PpoCountsConfig(IntrinsicRewardRunConfig):
    """PPO with two critics; hash counts."""

    novelty: HashCountConfig = HashCountConfig()
    """Measure of novelty."""


def build(config: PpoCountsConfig) -> TrainingJob[CuriousActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    return intrinsic_reward_job(config, config.novelty)


ENTRY = RecipeSpec(
    summary="on-policy control where reward is rare: hash counts",
    paper="Tang et al., #Exploration",
    config=PpoCountsConfig,
    open=checked_run(check_intrinsic_reward, build),
    derive=derive_intrinsic_reward,
    parts=intrinsic_reward_parts(HashCounts),
    limitation="hash codes must separate relevant states: images need an encoder before the hash.",
)
