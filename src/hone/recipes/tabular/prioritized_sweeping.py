"""Prioritised sweeping (Moore & Atkeson, 1993): a learned model, and first the backups that would change values most.

A changed value raises the priority of the pairs that lead to it, so changes spread backwards. A backup is the
expectation over the counted outcomes, so there is no step size.
"""

from pydantic import Field

from hone.control.tables.kernels import prioritised_sweeping
from hone.control.tables.learn import PrioritisedSweeping
from hone.control.tables.models import TabularModel
from hone.control.tables.tables import ActionTable
from hone.control.tabular import (
    TabularAlgorithm,
    TabularMethod,
    TabularRunConfig,
    tabular_parts,
)
from hone.core.config import new_default
from hone.run.job import RecipeSpec


class PrioritizedSweepingAlgorithm(TabularAlgorithm):
    """The method's numbers."""

    discount = new_default(0.95)
    planning: int = Field(default=50, ge=1)
    """Largest number of backups per environment step."""
    least: float = Field(default=1e-4, gt=0)
    """Priority below which a change is not propagated."""


class PrioritizedSweepingConfig(TabularRunConfig):
    """Prioritised sweeping on a table."""

    rollout_steps = new_default(1, "Steps of each environment per iteration; backups follow each iteration.")
    algorithm: PrioritizedSweepingAlgorithm = PrioritizedSweepingAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Discount factor and other numbers of the algorithm."""

    def method(self) -> TabularMethod[ActionTable]:
        """Update rule and credit of the recipe."""
        algorithm = self.algorithm

        def rule(table: ActionTable) -> PrioritisedSweeping:
            model = TabularModel(table.features.cells, table.features.actions)
            return PrioritisedSweeping(
                actions=table.features.actions, planning=algorithm.planning, min_priority=algorithm.least, model=model
            )

        return TabularMethod(make_rule=rule, discount=algorithm.discount)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        return {**super().derive(), "backups": f"at most {self.algorithm.planning} for each environment step"}


ENTRY = RecipeSpec(
    summary="tables: a learned model, backed up first where values would change most",
    paper="Moore & Atkeson, Prioritized Sweeping: Reinforcement Learning With Less Data and Less Time, 1993",
    config=PrioritizedSweepingConfig,
    parts=tabular_parts(prioritised_sweeping),
    limitation="keeps every outcome of a pair in memory, and trusts early counts: explore.",
)
