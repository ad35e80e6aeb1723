"""Q-learning (Watkins, 1989): each step moves a value towards the reward plus the greatest value of the next state.

The values are those of the greedy policy, whatever the behaviour policy, and converge to the optimal ones with step
sizes that fall (Watkins & Dayan, 1992). The defaults solve FrozenLake, CliffWalking and Taxi as finite MDPs of 64
copies.
"""

from hone.control.tables.kernels import q_learning
from hone.control.tables.learn import QLearningRule
from hone.control.tables.tables import ActionTable
from hone.control.tabular import TabularMethod, TabularRunConfig, tabular_parts
from hone.run.job import RecipeSpec


class QLearningConfig(TabularRunConfig):
    """Q-learning on a table."""

    def method(self) -> TabularMethod[ActionTable]:
        """Update rule and credit of the recipe."""

        def rule(table: ActionTable) -> QLearningRule:
            return QLearningRule(actions=table.features.actions)

        return TabularMethod(make_rule=rule, discount=self.algorithm.discount)


ENTRY = RecipeSpec(
    summary="tables: off-policy learning towards the best next action",
    paper="Watkins, Learning from Delayed Rewards, 1989",
    config=QLearningConfig,
    parts=tabular_parts(q_learning),
    limitation="maximisation bias: the maximum of noisy values is too large (see double_q_learning).",
)
