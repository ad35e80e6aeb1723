"""Monte Carlo control: values are means of returns of whole episodes, without bootstrapping.

On policy, the values are those of the policy that acts (first-visit or every-visit; Singh & Sutton, 1996, compare
them). Off policy, returns are weighted by the ratio of the greedy policy to the behaviour policy (weighted importance
sampling, Sutton & Barto, 2018, sections 5.5 to 5.7). The return of an episode that a time limit cut continues with the
table's value of the last state.
"""

from functools import partial
from typing import Literal

from hone.control.tables.kernels import target_update, weighted_importance_update
from hone.control.tables.learn import TargetRule, UpdateRule, WeightedImportanceSampling
from hone.control.tables.tables import ActionTable
from hone.control.tabular import TabularAlgorithm, TabularMethod, TabularRunConfig, tabular_parts
from hone.credit.returns import discounted_returns
from hone.run.job import RecipeSpec


class MonteCarloAlgorithm(TabularAlgorithm):
    """The method's numbers."""

    visits: Literal["first", "every"] = "every"
    """Visits of a pair that count in an episode: the first or all; on policy only."""
    off_policy: bool = False
    """Learn the values of the greedy policy by weighted importance sampling; the weights then set the step sizes."""


class MonteCarloConfig(TabularRunConfig):
    """Monte Carlo control on a table."""

    algorithm: MonteCarloAlgorithm = MonteCarloAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Discount factor and other numbers of the algorithm."""

    def method(self) -> TabularMethod[ActionTable]:
        """Update rule and credit of the recipe."""
        algorithm = self.algorithm

        def rule(_: ActionTable) -> UpdateRule:
            return WeightedImportanceSampling() if algorithm.off_policy else TargetRule()

        credit = partial(discounted_returns, discount=algorithm.discount)
        return TabularMethod(
            make_rule=rule, discount=algorithm.discount, credit=credit, needs_values=True, whole_episodes=True,
            first_visits=algorithm.visits == "first" and not algorithm.off_policy,
        )  # fmt: skip


ENTRY = RecipeSpec(
    summary="tables: means of the returns of whole episodes",
    paper="Sutton & Barto, Reinforcement Learning: An Introduction, 2nd edition, 2018, chapter 5",
    config=MonteCarloConfig,
    parts=tabular_parts(
        target_update, weighted_importance_update, source="Whole(Live(numbered states))", credit=(discounted_returns,)
    ),
    limitation="nothing is learned before an episode ends, and returns of long episodes are noisy; off policy, weights "
    "vanish with every step that the greedy policy would not take.",
)
