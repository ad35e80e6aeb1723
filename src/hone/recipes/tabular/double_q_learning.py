"""Double Q-learning (van Hasselt, 2010): two tables, of which one selects the action and the other evaluates it.

The maximum of noisy estimates is biased upwards (maximisation bias); an estimate that took no part in the selection is
not. Actions are chosen by the mean of both tables.
"""

from hone.credit.returns import one_step_target
from hone.tabular.kernels import double_q_learning
from hone.tabular.learn import DoubleQLearning
from hone.tabular.tables import ActionTable
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.tabular.job import TabularMethod, TabularRunConfig, check_tabular, derive_tabular, table_job


class DoubleQLearningConfig(TabularRunConfig):
    """Double Q-learning on two tables."""


def build(config: DoubleQLearningConfig) -> TrainingJob[ActionTable]:
    """Training job of the recipe: environments, table, update rule and exploration."""

    def rule(table: ActionTable) -> DoubleQLearning:
        return DoubleQLearning(actions=table.features.actions, seed=config.seed)

    return table_job(config, TabularMethod(make_rule=rule, discount=config.algorithm.discount, table_count=2))


ENTRY = RecipeSpec(
    summary="tables: two estimates, which removes maximisation bias",
    paper="van Hasselt, Double Q-learning, 2010",
    config=DoubleQLearningConfig,
    open=checked_run(check_tabular, build),
    derive=derive_tabular,
    parts=RecipeParts(source="Live(numbered states)", credit=(one_step_target,), loss=(double_q_learning,)),
    limitation="each table learns from half of the steps; values are underestimated where Q-learning overestimates.",
)
