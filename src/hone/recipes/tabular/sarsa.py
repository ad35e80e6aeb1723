"""SARSA (Rummery & Niranjan, 1994): on-policy action values, exploration included.

`steps` n sums n rewards before the target bootstraps (Sutton & Barto, 2018, section 7.2). Where a rollout stops inside
an episode, the next action is not known yet: the target takes the expectation over it instead.
"""

from functools import partial

from pydantic import Field

from hone.credit.returns import n_step, one_step_target
from hone.tabular.batch import sarsa_weights
from hone.tabular.kernels import expected_sarsa, target_update
from hone.tabular.learn import ExpectedSarsa, TargetRule, UpdateRule
from hone.tabular.tables import ActionTable
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.tabular.job import (
    TabularAlgorithm,
    TabularMethod,
    TabularRunConfig,
    check_tabular,
    derive_tabular,
    table_job,
)


class SarsaAlgorithm(TabularAlgorithm):
    """The method's numbers."""

    steps: int = Field(default=1, ge=1)
    """Rewards before the bootstrapped value (n); `rollout_steps` should be larger."""


class SarsaConfig(TabularRunConfig):
    """SARSA on a table."""

    algorithm: SarsaAlgorithm = SarsaAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Discount factor and other numbers of the algorithm."""


def build(config: SarsaConfig) -> TrainingJob[ActionTable]:
    """Training job of the recipe: environments, table, update rule and exploration."""
    algorithm = config.algorithm

    def rule(_: ActionTable) -> UpdateRule:
        return ExpectedSarsa(next_weights=sarsa_weights) if algorithm.steps == 1 else TargetRule()

    method = TabularMethod(make_rule=rule, discount=algorithm.discount)
    if algorithm.steps > 1:
        credit = partial(n_step, discount=algorithm.discount, steps=algorithm.steps)
        method = TabularMethod(make_rule=rule, discount=algorithm.discount, credit=credit, needs_values=True)
    return table_job(config, method)


def check(config: SarsaConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    algorithm = config.algorithm
    warnings = check_tabular(config)
    if algorithm.steps > config.rollout_steps:
        warnings.append(
            f"algorithm.steps = {algorithm.steps} looks further than a turn's rollout_steps = {config.rollout_steps}: "
            "most targets will be shorter"
        )
    return warnings


ENTRY = RecipeSpec(
    summary="tables: on-policy action values, exploration included",
    paper="Rummery & Niranjan, On-line Q-Learning Using Connectionist Systems, 1994",
    config=SarsaConfig,
    open=checked_run(check, build),
    derive=derive_tabular,
    parts=RecipeParts(
        source="Live(numbered states)", credit=(one_step_target, n_step), loss=(expected_sarsa, target_update)
    ),
    limitation="with a constant epsilon it learns the best epsilon-greedy policy: the safe path along the cliff.",
)
