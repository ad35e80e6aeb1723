"""SARSA (Rummery & Niranjan, 1994): on-policy action values, exploration included.

`steps` n sums n rewards before the target bootstraps (Sutton & Barto, 2018, section 7.2). Where a rollout stops inside
an episode, the next action is not known yet: the target takes the expectation over it instead.
"""

from functools import partial

from pydantic import Field

from hone.control.tables.kernels import expected_sarsa, target_update
from hone.control.tables.learn import ExpectedSarsa, TargetRule, UpdateRule, sarsa_weights
from hone.control.tables.tables import ActionTable
from hone.control.tabular import TabularAlgorithm, TabularMethod, TabularRunConfig, tabular_parts
from hone.credit.returns import n_step, one_step_target
from hone.run.job import RecipeSpec


class SarsaAlgorithm(TabularAlgorithm):
    """The method's numbers."""

    steps: int = Field(default=1, ge=1)
    """Rewards before the bootstrapped value (n); `rollout_steps` should be larger."""


class SarsaConfig(TabularRunConfig):
    """SARSA on a table."""

    algorithm: SarsaAlgorithm = SarsaAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Discount factor and other numbers of the algorithm."""

    def method(self) -> TabularMethod[ActionTable]:
        """Update rule and credit of the recipe."""
        algorithm = self.algorithm

        def rule(_: ActionTable) -> UpdateRule:
            return ExpectedSarsa(next_weights=sarsa_weights) if algorithm.steps == 1 else TargetRule()

        if algorithm.steps == 1:
            return TabularMethod(make_rule=rule, discount=algorithm.discount)
        credit = partial(n_step, discount=algorithm.discount, steps=algorithm.steps)
        short = (
            f"algorithm.steps = {algorithm.steps} looks further than a turn's rollout_steps = {self.rollout_steps}: "
            "most targets will be shorter"
        )
        return TabularMethod(
            make_rule=rule, discount=algorithm.discount, credit=credit, needs_values=True,
            warnings=[short] if algorithm.steps > self.rollout_steps else (),
        )  # fmt: skip


ENTRY = RecipeSpec(
    summary="tables: on-policy action values, exploration included",
    paper="Rummery & Niranjan, On-line Q-Learning Using Connectionist Systems, 1994",
    config=SarsaConfig,
    parts=tabular_parts(expected_sarsa, target_update, credit=(one_step_target, n_step)),
    limitation="with a constant epsilon it learns the best epsilon-greedy policy: the safe path along the cliff.",
)
