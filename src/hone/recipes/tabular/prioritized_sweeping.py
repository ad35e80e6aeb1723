"""Prioritised sweeping (Moore & Atkeson, 1993): a learnt model, and the backups that would change most, first.

What changes a value makes the pairs before it urgent, so that news travels backwards. A backup is the expectation over
the outcomes that were counted, so there is no step size.
"""

from pydantic import Field

from hone.core.config import Config
from hone.credit.returns import one_step_target
from hone.tabular.kernels import prioritised_sweeping
from hone.tabular.learn import PrioritisedSweeping
from hone.tabular.models import TabularModel
from hone.tabular.tables import ActionTable
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob
from hone.train.tabular.job import TabularMethod, TabularRunConfig, check_tabular, derive_tabular, table_job


class PrioritizedSweepingAlgorithm(Config):
    """The method's numbers."""

    discount: float = Field(default=0.95, gt=0, le=1)
    """Discount factor (gamma)."""
    planning: int = Field(default=50, ge=1)
    """Backups for each real step, at most."""
    least: float = Field(default=1e-4, gt=0)
    """A change smaller than this is not followed up."""


class PrioritizedSweepingConfig(TabularRunConfig):
    """Prioritised sweeping on a table."""

    rollout_steps: int = Field(default=1, ge=1)
    """Steps of each environment per iteration; backups follow each turn."""
    algorithm: PrioritizedSweepingAlgorithm = PrioritizedSweepingAlgorithm()
    """What is aimed at."""


def build(config: PrioritizedSweepingConfig) -> TrainingJob[ActionTable]:
    algorithm = config.algorithm

    def rule(table: ActionTable) -> PrioritisedSweeping:
        model = TabularModel(table.features.cells, table.features.actions)
        return PrioritisedSweeping(
            actions=table.features.actions, planning=algorithm.planning, min_priority=algorithm.least, model=model
        )

    return table_job(config, TabularMethod(make_rule=rule, discount=algorithm.discount))


def check(config: PrioritizedSweepingConfig) -> list[str]:
    return check_tabular(config, discount=config.algorithm.discount)


def derive(config: PrioritizedSweepingConfig) -> dict[str, str]:
    return {**derive_tabular(config), "backups": f"at most {config.algorithm.planning} for each step of the world"}


ENTRY = RecipeSpec(
    summary="tables: a learnt model, swept where values would change most",
    paper="Moore & Atkeson, Prioritized Sweeping: Reinforcement Learning With Less Data and Less Time, 1993",
    config=PrioritizedSweepingConfig,
    build=build,
    check=check,
    derive=derive,
    parts=RecipeParts(source="Live(numbered states)", credit=(one_step_target,), loss=(prioritised_sweeping,)),
    limitation="it needs every outcome of a pair in memory, and early counts are taken for the truth: explore.",
)
