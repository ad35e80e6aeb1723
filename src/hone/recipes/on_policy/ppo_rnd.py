"""PPO paid for novelty by random network distillation (Burda et al., 2018, 1810.12894).

New is where a network does not yet foresee what a random one says. Two critics, two discounts. The
defaults are those that solve `hone/Maze-v0`, where PPO without it (`algorithm.novelty_weight = 0`)
stays at 0.
"""

from hone.models.control.intrinsic_reward import CuriousActorCritic, RandomNetworkDistillation, RndConfig
from hone.train.control.intrinsic_reward import (
    IntrinsicRewardRunConfig,
    check_intrinsic_reward,
    derive_intrinsic_reward,
    intrinsic_reward_job,
    intrinsic_reward_parts,
)
from hone.train.job import RecipeSpec, TrainingJob


class PpoRndConfig(IntrinsicRewardRunConfig):
    """PPO with two critics; random network distillation."""

    novelty: RndConfig = RndConfig()
    """What novelty is measured by."""


def build(config: PpoRndConfig) -> TrainingJob[CuriousActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    return intrinsic_reward_job(config, config.novelty)


ENTRY = RecipeSpec(
    summary="on-policy control where reward is rare: random network distillation",
    paper="Burda et al., Exploration by Random Network Distillation, 2018",
    config=PpoRndConfig,
    build=build,
    check=check_intrinsic_reward,
    derive=derive_intrinsic_reward,
    parts=intrinsic_reward_parts(RandomNetworkDistillation),
    limitation="noise that never repeats stays new for ever.",
)
