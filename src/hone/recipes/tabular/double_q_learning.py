"""Double Q-learning (van Hasselt, 2010): two tables, of which one chooses and the other says what the choice is worth.

The greatest of noisy estimates is too great; an estimate that did not take part in choosing is not. The mean of both
tables is acted on.
"""

from pydantic import Field

from hone.core.config import Config
from hone.credit.returns import one_step
from hone.tabular.kernels import double
from hone.tabular.learn import Double
from hone.tabular.tables import ActionTable
from hone.train.job import Entry, Job, Parts
from hone.train.tabular.job import Method, TabularRun, check_tabular, derive_tabular, table_job


class DoubleQLearningAlgorithm(Config):
    """The method's numbers."""

    discount: float = Field(default=0.99, gt=0, le=1)
    """Of a reward one step later."""


class DoubleQLearningConfig(TabularRun):
    """Double Q-learning on two tables."""

    algorithm: DoubleQLearningAlgorithm = DoubleQLearningAlgorithm()
    """What is aimed at."""


def build(config: DoubleQLearningConfig) -> Job[ActionTable]:
    def rule(table: ActionTable) -> Double:
        return Double(actions=table.features.actions, seed=config.seed)

    return table_job(config, Method(rule=rule, discount=config.algorithm.discount, tables=2))


def check(config: DoubleQLearningConfig) -> list[str]:
    return check_tabular(config, discount=config.algorithm.discount)


ENTRY = Entry(
    summary="tables: two of them, so that luck is not believed",
    source="van Hasselt, Double Q-learning, 2010",
    config=DoubleQLearningConfig,
    build=build,
    check=check,
    derive=derive_tabular,
    parts=Parts(source="Live(numbered states)", credit=(one_step,), loss=(double,)),
    limitation="each table learns from half of the steps, and errs to the low side where Q-learning errs to the high.",
)
