"""Monte Carlo control: values are means of returns of whole episodes, and nothing is bootstrapped.

On policy, the policy that acts is the one that is valued (first or every visit; Singh & Sutton, 1996, compare them).
Off policy, returns are weighted by how much likelier the greedy policy is to act like that (weighted importance
sampling, Sutton & Barto, 2018, sections 5.5 to 5.7). An episode that a time limit cut goes on by what
the table says of its end.
"""

from functools import partial
from typing import Literal

from pydantic import Field

from hone.core.config import Config
from hone.credit.returns import returns
from hone.tabular.kernels import toward, weighed
from hone.tabular.learn import Rule, Toward, Weighted
from hone.tabular.tables import ActionTable
from hone.train.job import Entry, Job, Parts
from hone.train.tabular.job import Method, TabularRun, check_tabular, derive_tabular, table_job


class MonteCarloAlgorithm(Config):
    """The method's numbers."""

    discount: float = Field(default=0.99, gt=0, le=1)
    """Of a reward one step later."""
    visits: Literal["first", "every"] = "every"
    """Which visits of a pair in an episode count; on policy only."""
    off_policy: bool = False
    """Learn of the greedy policy, by weighted importance sampling; step sizes are then those of the weights."""


class MonteCarloConfig(TabularRun):
    """Monte Carlo control on a table."""

    algorithm: MonteCarloAlgorithm = MonteCarloAlgorithm()
    """What is aimed at."""


def build(config: MonteCarloConfig) -> Job[ActionTable]:
    algorithm = config.algorithm

    def rule(_: ActionTable) -> Rule:
        return Weighted() if algorithm.off_policy else Toward()

    credit = partial(returns, discount=algorithm.discount)
    method = Method(
        rule=rule, discount=algorithm.discount, credit=credit, foresees=True, whole=True,
        first_visits=algorithm.visits == "first" and not algorithm.off_policy,
    )  # fmt: skip
    return table_job(config, method)


def check(config: MonteCarloConfig) -> list[str]:
    return check_tabular(config, discount=config.algorithm.discount)


ENTRY = Entry(
    summary="tables: means of the returns of whole episodes",
    source="Sutton & Barto, Reinforcement Learning: An Introduction, 2nd edition, 2018, chapter 5",
    config=MonteCarloConfig,
    build=build,
    check=check,
    derive=derive_tabular,
    parts=Parts(source="Whole(Live(numbered states))", credit=(returns,), loss=(toward, weighed)),
    limitation="nothing is learned before an episode ends, and returns of long episodes are noisy; off policy, weights "
    "vanish with every step that the greedy policy would not take.",
)
