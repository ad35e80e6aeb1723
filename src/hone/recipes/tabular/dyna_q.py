"""Dyna-Q (Sutton, 1990): Q-learning on each step, and on steps imagined with a model that is learnt beside it.

The model counts outcomes, so that a world of chance is imagined with its chances; in a deterministic one it is the
table of the paper. Imagined steps are drawn uniformly from the pairs that were taken.
"""

from pydantic import Field

from hone.core.config import Config
from hone.credit.returns import one_step_target
from hone.tabular.kernels import dyna_planning, q_learning
from hone.tabular.learn import DynaQ
from hone.tabular.models import TabularModel
from hone.tabular.tables import ActionTable
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob
from hone.train.tabular.job import TabularMethod, TabularRunConfig, check_tabular, derive_tabular, table_job


class DynaQAlgorithm(Config):
    """The method's numbers."""

    discount: float = Field(default=0.95, gt=0, le=1)
    """Discount factor (gamma)."""
    planning: int = Field(default=50, ge=0)
    """Imagined steps for each real one."""
    planning_rate: float = Field(default=0.1, gt=0, le=1)
    """Step size of imagined steps."""


class DynaQConfig(TabularRunConfig):
    """Dyna-Q on a table."""

    rollout_steps: int = Field(default=1, ge=1)
    """Steps of each environment per iteration; imagined steps follow each turn."""
    algorithm: DynaQAlgorithm = DynaQAlgorithm()
    """What is aimed at."""


def build(config: DynaQConfig) -> TrainingJob[ActionTable]:
    algorithm = config.algorithm

    def rule(table: ActionTable) -> DynaQ:
        return DynaQ(
            actions=table.features.actions, seed=config.seed, planning=algorithm.planning,
            rate=algorithm.planning_rate, model=TabularModel(table.features.cells, table.features.actions),
        )  # fmt: skip

    return table_job(config, TabularMethod(make_rule=rule, discount=algorithm.discount))


def check(config: DynaQConfig) -> list[str]:
    return check_tabular(config, discount=config.algorithm.discount)


def derive(config: DynaQConfig) -> dict[str, str]:
    return {**derive_tabular(config), "imagined steps": f"{config.algorithm.planning} for each step of the world"}


ENTRY = RecipeSpec(
    summary="tables: learning, and imagining more of the same with a learnt model",
    paper="Sutton, Integrated Architectures for Learning, Planning, and Reacting, 1990",
    config=DynaQConfig,
    build=build,
    check=check,
    derive=derive,
    parts=RecipeParts(source="Live(numbered states)", credit=(one_step_target,), loss=(q_learning, dyna_planning)),
    limitation="a model of a world that changes is believed until its pairs are met again; most imagined steps change "
    "nothing (see prioritized_sweeping).",
)
