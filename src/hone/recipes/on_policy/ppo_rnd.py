"""PPO with a novelty bonus from random network distillation (Burda et al., 2018, 1810.12894).

Observations are novel where a predictor errs about the output of a fixed random network. Rewards and bonuses have a
critic and a discount each. The defaults are those that solve `hone/Maze-v0`, where PPO without the bonus
(`algorithm.novelty_weight = 0`) stays at 0.
"""

from hone.control.intrinsic_reward import (
    IntrinsicRewardAlgorithm,
    IntrinsicRewardRunConfig,
)
from hone.control.networks.intrinsic_reward import RandomNetworkDistillation, RndConfig
from hone.core.config import new_default
from hone.learner.config import LearnerConfig
from hone.run.job import RecipeSpec


class PpoRndConfig(IntrinsicRewardRunConfig):
    """PPO with two critics; random network distillation."""

    novelty_model = RandomNetworkDistillation

    algorithm = new_default(
        IntrinsicRewardAlgorithm(entropy_weight=0.03),
        "Credit and loss. The entropy bonus keeps trying the actions that lead out of the known states once the "
        "novelty of these is gone: with 0.01 one run of the maze in ten never reaches its goal.",
    )
    learner = new_default(
        LearnerConfig(lr=1e-3, lr_decay="linear", epochs=4, minibatches=4, max_grad_norm=0.5),
        "AdamW, epochs and minibatches. Once every episode is paid, what is left of the advantages is noise of two "
        "critics in units of its own deviation: at a constant rate one run of the maze in ten loses its way again.",
    )
    novelty: RndConfig = RndConfig()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Measure of novelty."""


ENTRY = RecipeSpec(
    summary="on-policy control where reward is rare: random network distillation",
    paper="Burda et al., Exploration by Random Network Distillation, 2018",
    config=PpoRndConfig,
    limitation="noise that never repeats stays novel for ever.",
)
