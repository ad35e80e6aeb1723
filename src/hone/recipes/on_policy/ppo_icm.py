"""PPO paid for novelty by intrinsic curiosity (Pathak et al., 2017, 1705.05363).

New is what a model of the consequences of actions does not foresee. Two critics, two discounts. The
defaults are those that solve `hone/Maze-v0`, where PPO without it (`algorithm.novelty_weight = 0`)
stays at 0.
"""

from hone.models.control.intrinsic_reward import CuriousActorCritic, Foreseen, ForeseenConfig
from hone.train.control.intrinsic_reward import (
    CuriousConfig,
    curious_check,
    curious_job,
    curious_parts,
    curious_table,
)
from hone.train.job import Entry, Job


class PpoIcmConfig(CuriousConfig):
    """PPO with two critics; intrinsic curiosity."""

    novelty: ForeseenConfig = ForeseenConfig()
    """What novelty is measured by."""


def build(config: PpoIcmConfig) -> Job[CuriousActorCritic]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    return curious_job(config, config.novelty)


ENTRY = Entry(
    summary="on-policy control where reward is rare: intrinsic curiosity",
    source="Pathak et al., Curiosity-driven Exploration by Self-supervised Prediction, 2017",
    config=PpoIcmConfig,
    build=build,
    check=curious_check,
    derive=curious_table,
    parts=curious_parts(Foreseen),
    limitation="chance that actions do influence stays new for ever.",
)
