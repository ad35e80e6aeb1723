"""Dyna-Q (Sutton, 1990): Q-learning on every environment step, and on steps simulated by a model learned beside it.

The model counts outcomes, so a stochastic environment is simulated with its probabilities; in a deterministic one it is
the table of the paper. Simulated steps are drawn uniformly from the pairs that were visited.
"""

from pydantic import Field

from hone.control.tables.kernels import dyna_planning, q_learning
from hone.control.tables.learn import DynaQ
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


class DynaQAlgorithm(TabularAlgorithm):
    """The method's numbers."""

    discount = new_default(0.95)
    planning: int = Field(default=50, ge=0)
    """Planning steps on the model per environment step."""
    planning_rate: float = Field(default=0.1, gt=0, le=1)
    """Step size of planning steps."""


class DynaQConfig(TabularRunConfig):
    """Dyna-Q on a table."""

    rollout_steps = new_default(1, "Steps of each environment per iteration; simulated steps follow each iteration.")
    algorithm: DynaQAlgorithm = DynaQAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Discount factor and other numbers of the algorithm."""

    def method(self) -> TabularMethod[ActionTable]:
        """Update rule and credit of the recipe."""
        algorithm = self.algorithm

        def rule(table: ActionTable) -> DynaQ:
            return DynaQ(
                actions=table.features.actions, seed=self.seed, planning=algorithm.planning,
                rate=algorithm.planning_rate, model=TabularModel(table.features.cells, table.features.actions),
            )  # fmt: skip

        return TabularMethod(make_rule=rule, discount=algorithm.discount)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        return {**super().derive(), "imagined steps": f"{self.algorithm.planning} for each environment step"}


ENTRY = RecipeSpec(
    summary="tables: Q-learning on real steps and on steps simulated by a learned model",
    paper="Sutton, Integrated Architectures for Learning, Planning, and Reacting, 1990",
    config=DynaQConfig,
    parts=tabular_parts(q_learning, dyna_planning),
    limitation="where the environment changes, the model is wrong until its pairs are visited again; most simulated "
    "steps change nothing (see prioritized_sweeping).",
)
