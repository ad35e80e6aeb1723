"""PPO with a novelty bonus from intrinsic curiosity (Pathak et al., 2017, 1705.05363).

Steps are novel where a forward model mispredicts the next features. Rewards and bonuses have a critic and a discount
each. The defaults are those that solve `hone/Maze-v0`, where PPO without the bonus (`algorithm.novelty_weight = 0`)
stays at 0.
"""

from hone.control.intrinsic_reward import IntrinsicRewardRunConfig
from hone.control.networks.intrinsic_reward import IcmConfig, IntrinsicCuriosity
from hone.run.job import RecipeSpec


class PpoIcmConfig(IntrinsicRewardRunConfig):
    """PPO with two critics; intrinsic curiosity."""

    novelty_model = IntrinsicCuriosity

    novelty: IcmConfig = IcmConfig()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Measure of novelty."""


ENTRY = RecipeSpec(
    summary="on-policy control where reward is rare: intrinsic curiosity",
    paper="Pathak et al., Curiosity-driven Exploration by Self-supervised Prediction, 2017",
    config=PpoIcmConfig,
    limitation="randomness that actions influence stays novel for ever.",
)
