"""Double Q-learning (van Hasselt, 2010): two tables, of which one selects the action and the other evaluates it.

The maximum of noisy estimates is biased upwards (maximisation bias); an estimate that took no part in the selection is
not. Actions are chosen by the mean of both tables.
"""

from hone.control.tables.kernels import double_q_learning
from hone.control.tables.learn import DoubleQLearning
from hone.control.tables.tables import ActionTable
from hone.control.tabular import TabularMethod, TabularRunConfig, tabular_parts
from hone.run.job import RecipeSpec


class DoubleQLearningConfig(TabularRunConfig):
    """Double Q-learning on two tables."""

    def method(self) -> TabularMethod[ActionTable]:
        """Update rule and credit of the recipe."""

        def rule(table: ActionTable) -> DoubleQLearning:
            return DoubleQLearning(actions=table.features.actions, seed=self.seed)

        return TabularMethod(make_rule=rule, discount=self.algorithm.discount, table_count=2)


ENTRY = RecipeSpec(
    summary="tables: two estimates, which removes maximisation bias",
    paper="van Hasselt, Double Q-learning, 2010",
    config=DoubleQLearningConfig,
    parts=tabular_parts(double_q_learning),
    limitation="each table learns from half of the steps; values are underestimated where Q-learning overestimates.",
)
