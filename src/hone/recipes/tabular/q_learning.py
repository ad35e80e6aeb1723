"""Q-learning (Watkins, 1989): each step moves a value towards the reward plus the best of what is seen next.

It learns of the greedy policy whatever is done, and with step sizes that fall it converges to the best values (Watkins
& Dayan, 1992). The defaults solve FrozenLake, CliffWalking and Taxi as finite worlds of 64 copies.
"""

from pydantic import Field

from hone.core.config import Config
from hone.credit.returns import one_step
from hone.tabular.kernels import greedy
from hone.tabular.learn import Greedy
from hone.tabular.tables import ActionTable
from hone.train.job import Entry, Job, Parts
from hone.train.tabular.job import Method, TabularRun, check_tabular, derive_tabular, table_job


class QLearningAlgorithm(Config):
    """The method's numbers."""

    discount: float = Field(default=0.99, gt=0, le=1)
    """Of a reward one step later."""


class QLearningConfig(TabularRun):
    """Q-learning on a table."""

    algorithm: QLearningAlgorithm = QLearningAlgorithm()
    """What is aimed at."""


def build(config: QLearningConfig) -> Job[ActionTable]:
    def rule(table: ActionTable) -> Greedy:
        return Greedy(actions=table.features.actions)

    return table_job(config, Method(rule=rule, discount=config.algorithm.discount))


def check(config: QLearningConfig) -> list[str]:
    return check_tabular(config, discount=config.algorithm.discount)


ENTRY = Entry(
    summary="tables: towards the best of what is seen next, whatever is done",
    source="Watkins, Learning from Delayed Rewards, 1989",
    config=QLearningConfig,
    build=build,
    check=check,
    derive=derive_tabular,
    parts=Parts(source="Live(numbered states)", credit=(one_step,), loss=(greedy,)),
    limitation="the greatest of noisy values is too great: early on it believes in luck (see double_q_learning).",
)
