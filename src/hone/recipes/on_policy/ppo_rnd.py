"""PPO paid for novelty by random network distillation (Burda et al., 2018, 1810.12894).

New is where a network does not yet foresee what a random one says. Two critics, two discounts. The
defaults are those that solve `hone/Maze-v0`, where PPO without it (`algorithm.novelty_weight = 0`)
stays at 0.
"""

from hone.models.control.intrinsic_reward import CuriousActorCritic, Distilled, DistilledConfig
from hone.train.control.intrinsic_reward import (
    CuriousConfig,
    curious_check,
    curious_job,
    curious_parts,
    curious_table,
)
from hone.train.job import Entry, Job


class PpoRndConfig(CuriousConfig):
    """PPO with two critics; random network distillation."""

    novelty: DistilledConfig = DistilledConfig()
    """What novelty is measured by."""


def build(config: PpoRndConfig) -> Job[CuriousActorCritic]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    return curious_job(config, config.novelty)


ENTRY = Entry(
    summary="on-policy control where reward is rare: random network distillation",
    source="Burda et al., Exploration by Random Network Distillation, 2018",
    config=PpoRndConfig,
    build=build,
    check=curious_check,
    derive=curious_table,
    parts=curious_parts(Distilled),
    limitation="noise that never repeats stays new for ever.",
)
