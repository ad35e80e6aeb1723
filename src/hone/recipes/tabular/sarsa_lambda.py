"""SARSA(lambda): eligibility traces spread each TD error over earlier pairs (Rummery & Niranjan, 1994).

Accumulating traces count every visit, replacing traces only the latest (Singh & Sutton, 1996), and dutch traces make
each online step equal to the truncated forward view (true online TD, van Seijen et al., 2016). The traces of an episode
continue from one iteration to the next.
"""

from typing import Literal

from pydantic import Field

from hone.control.tables.kernels import eligibility_traces
from hone.control.tables.learn import EligibilityTraces, sarsa_weights
from hone.control.tables.tables import ActionTable
from hone.control.tabular import (
    TRACE_KINDS,
    TabularAlgorithm,
    TabularMethod,
    TabularRunConfig,
    tabular_parts,
)
from hone.core.errors import ConfigError
from hone.run.job import RecipeSpec


class SarsaLambdaAlgorithm(TabularAlgorithm):
    """The method's numbers."""

    trace_lambda: float = Field(default=0.9, ge=0, le=1)
    """lambda: 0 is SARSA, 1 learns from returns."""
    trace: Literal["accumulating", "replacing", "dutch"] = "dutch"
    """Update of the eligibility trace of the visited pair."""


class SarsaLambdaConfig(TabularRunConfig):
    """SARSA(lambda) on a table."""

    algorithm: SarsaLambdaAlgorithm = SarsaLambdaAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Discount factor and other numbers of the algorithm."""

    def method(self) -> TabularMethod[ActionTable]:
        """Update rule of the recipe. Raises ConfigError for dutch traces with a step size that falls."""
        algorithm = self.algorithm
        if algorithm.trace == "dutch" and self.table.rate.power:
            raise ConfigError('algorithm.trace = "dutch" needs one step size for all: set table.rate.power = 0')

        def rule(_: ActionTable) -> EligibilityTraces:
            decay = algorithm.discount * algorithm.trace_lambda
            return EligibilityTraces(decay=decay, trace=TRACE_KINDS[algorithm.trace], next_weights=sarsa_weights)

        return TabularMethod(make_rule=rule, discount=algorithm.discount)


ENTRY = RecipeSpec(
    summary="tables: SARSA with eligibility traces",
    paper="van Seijen, Mahmood, Pilarski, Machado & Sutton, True Online Temporal-Difference Learning, 2016",
    config=SarsaLambdaConfig,
    parts=tabular_parts(eligibility_traces),
    limitation="accumulating traces and a step size that suits one visit can blow up where a pair is met again and "
    "again.",
)
