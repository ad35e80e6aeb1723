"""PPO with a novelty bonus from intrinsic curiosity (Pathak et al., 2017, 1705.05363).

Steps are novel where a forward model mispredicts the next features. Rewards and bonuses have a critic and a discount
each. The defaults are those that solve `hone/Maze-v0`, where PPO without the bonus (`algorithm.novelty_weight = 0`)
stays at 0.
"""

from hone.models.control.intrinsic_reward import CuriousActorCritic, IcmConfig, IntrinsicCuriosity
from hone.train.control.intrinsic_reward import (
    IntrinsicRewardRunConfig,
    check_intrinsic_reward,
    derive_intrinsic_reward,
    intrinsic_reward_job,
    intrinsic_reward_parts,
)
from hone.train.job import RecipeSpec, TrainingJob, checked_run


class PpoIcmConfig(IntrinsicRewardRunConfig):
    """PPO with two critics; intrinsic curiosity."""

    novelty: IcmConfig = IcmConfig()
    """Measure of novelty."""


def build(config: PpoIcmConfig) -> TrainingJob[CuriousActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    return intrinsic_reward_job(config, config.novelty)


ENTRY = RecipeSpec(
    summary="on-policy control where reward is rare: intrinsic curiosity",
    paper="Pathak et al., Curiosity-driven Exploration by Self-supervised Prediction, 2017",
    config=PpoIcmConfig,
    open=checked_run(check_intrinsic_reward, build),
    derive=derive_intrinsic_reward,
    parts=intrinsic_reward_parts(IntrinsicCuriosity),
    limitation="randomness that actions influence stays novel for ever.",
)
