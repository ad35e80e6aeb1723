"""Expected SARSA (van Seijen et al., 2009): SARSA, with the expectation over the next action in place of one draw.

The same fixed point with less variance, so that larger steps are sound; under a greedy policy it is Q-learning.
"""

from hone.control.tables.kernels import expected_sarsa
from hone.control.tables.learn import ExpectedSarsa, expected_sarsa_weights
from hone.control.tables.tables import ActionTable
from hone.control.tabular import TabularMethod, TabularRunConfig, tabular_parts
from hone.run.job import RecipeSpec


class ExpectedSarsaConfig(TabularRunConfig):
    """Expected SARSA on a table."""

    def method(self) -> TabularMethod[ActionTable]:
        """Update rule and credit of the recipe."""

        def rule(_: ActionTable) -> ExpectedSarsa:
            return ExpectedSarsa(next_weights=expected_sarsa_weights)

        return TabularMethod(make_rule=rule, discount=self.algorithm.discount)


ENTRY = RecipeSpec(
    summary="tables: SARSA with the expectation over the next action",
    paper="van Seijen, van Hasselt, Whiteson & Wiering, A Theoretical and Empirical Analysis of Expected Sarsa, 2009",
    config=ExpectedSarsaConfig,
    parts=tabular_parts(expected_sarsa),
    limitation="an update costs a pass over the actions; with very many of them a draw is cheaper.",
)
