"""PPO with a novelty bonus from random network distillation (Burda et al., 2018, 1810.12894).

Observations are novel where a predictor errs about the output of a fixed random network. Rewards and bonuses have a
critic and a discount each. The defaults are those that solve `hone/Maze-v0`, where PPO without the bonus
(`algorithm.novelty_weight = 0`) stays at 0.
"""

from hone.models.control.intrinsic_reward import CuriousActorCritic, RandomNetworkDistillation, RndConfig
from hone.train.control.intrinsic_reward import (
    IntrinsicRewardRunConfig,
    check_intrinsic_reward,
    derive_intrinsic_reward,
    intrinsic_reward_job,
    intrinsic_reward_parts,
)
from hone.train.job import RecipeSpec, TrainingJob, checked_run


class PpoRndConfig(IntrinsicRewardRunConfig):
    """PPO with two critics; random network distillation."""

    novelty: RndConfig = RndConfig()
    """Measure of novelty."""


def build(config: PpoRndConfig) -> TrainingJob[CuriousActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    return intrinsic_reward_job(config, config.novelty)


ENTRY = RecipeSpec(
    summary="on-policy control where reward is rare: random network distillation",
    paper="Burda et al., Exploration by Random Network Distillation, 2018",
    config=PpoRndConfig,
    open=checked_run(check_intrinsic_reward, build),
    derive=derive_intrinsic_reward,
    parts=intrinsic_reward_parts(RandomNetworkDistillation),
    limitation="noise that never repeats stays novel for ever.",
)
