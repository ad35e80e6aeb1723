"""PPO paid for novelty by hash counts (Tang et al., 2017, 1611.04717).

New is what was seen rarely, by the count of its hash code. Two critics, two discounts. The
defaults are those that solve `hone/Maze-v0`, where PPO without it (`algorithm.novelty_weight = 0`)
stays at 0.
"""

from hone.models.control.intrinsic_reward import Counted, CountedConfig, CuriousActorCritic
from hone.train.control.intrinsic_reward import (
    CuriousConfig,
    curious_check,
    curious_job,
    curious_parts,
    curious_table,
)
from hone.train.job import Entry, Job


class PpoCountsConfig(CuriousConfig):
    """PPO with two critics; hash counts."""

    novelty: CountedConfig = CountedConfig()
    """What novelty is measured by."""


def build(config: PpoCountsConfig) -> Job[CuriousActorCritic]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    return curious_job(config, config.novelty)


ENTRY = Entry(
    summary="on-policy control where reward is rare: hash counts",
    source="Tang et al., #Exploration",
    config=PpoCountsConfig,
    build=build,
    check=curious_check,
    derive=curious_table,
    parts=curious_parts(Counted),
    limitation="codes must tell apart what matters: pictures need an encoder before the hash.",
)
