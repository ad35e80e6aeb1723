"""Q-learning (Watkins, 1989): each step moves a value towards the reward plus the greatest value of the next state.

The values are those of the greedy policy, whatever the behaviour policy, and converge to the optimal ones with step
sizes that fall (Watkins & Dayan, 1992). The defaults solve FrozenLake, CliffWalking and Taxi as finite MDPs of 64
copies.
"""

from hone.credit.returns import one_step_target
from hone.tabular.kernels import q_learning
from hone.tabular.learn import QLearningRule
from hone.tabular.tables import ActionTable
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.tabular.job import TabularMethod, TabularRunConfig, check_tabular, derive_tabular, table_job


class QLearningConfig(TabularRunConfig):
    """Q-learning on a table."""


def build(config: QLearningConfig) -> TrainingJob[ActionTable]:
    """Training job of the recipe: environments, table, update rule and exploration."""

    def rule(table: ActionTable) -> QLearningRule:
        return QLearningRule(actions=table.features.actions)

    return table_job(config, TabularMethod(make_rule=rule, discount=config.algorithm.discount))


ENTRY = RecipeSpec(
    summary="tables: off-policy learning towards the best next action",
    paper="Watkins, Learning from Delayed Rewards, 1989",
    config=QLearningConfig,
    open=checked_run(check_tabular, build),
    derive=derive_tabular,
    parts=RecipeParts(source="Live(numbered states)", credit=(one_step_target,), loss=(q_learning,)),
    limitation="maximisation bias: the maximum of noisy values is too large (see double_q_learning).",
)
