"""Expected SARSA (van Seijen et al., 2009): SARSA, with the expectation over the next action in place of one draw.

The same fixed point with less variance, so that larger steps are sound; under a greedy policy it is Q-learning.
"""

from hone.credit.returns import one_step_target
from hone.tabular.batch import expected_sarsa_weights
from hone.tabular.kernels import expected_sarsa
from hone.tabular.learn import ExpectedSarsa
from hone.tabular.tables import ActionTable
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.tabular.job import TabularMethod, TabularRunConfig, check_tabular, derive_tabular, table_job


class ExpectedSarsaConfig(TabularRunConfig):
    """Expected SARSA on a table."""


def build(config: ExpectedSarsaConfig) -> TrainingJob[ActionTable]:
    """Training job of the recipe: environments, table, update rule and exploration."""

    def rule(_: ActionTable) -> ExpectedSarsa:
        return ExpectedSarsa(next_weights=expected_sarsa_weights)

    return table_job(config, TabularMethod(make_rule=rule, discount=config.algorithm.discount))


ENTRY = RecipeSpec(
    summary="tables: SARSA with the expectation over the next action",
    paper="van Seijen, van Hasselt, Whiteson & Wiering, A Theoretical and Empirical Analysis of Expected Sarsa, 2009",
    config=ExpectedSarsaConfig,
    open=checked_run(check_tabular, build),
    derive=derive_tabular,
    parts=RecipeParts(source="Live(numbered states)", credit=(one_step_target,), loss=(expected_sarsa,)),
    limitation="an update costs a pass over the actions; with very many of them a draw is cheaper.",
)
