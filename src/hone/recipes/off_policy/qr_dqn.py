"""QR-DQN: quantiles of the return, at no fixed place (Dabney et al., 2018).

k numbers an action, the quantiles at (i - 1/2) / k, by quantile regression against r + discount * each quantile of the
best action that follows; choices are made by their mean. No range of returns has to be known.
"""

from functools import partial

from pydantic import Field

from hone.models.control.q_networks import DeepValues, Quantiles, Shape
from hone.objectives.distributional import quantile_values
from hone.objectives.td import td_target
from hone.objectives.terms import Terms
from hone.train.control.value_based import Exploring, Method, ValueAlgorithm, value_entry
from hone.train.control.value_rows import ValueRows, best_by_slow, drawn, of_choice


class QuantileAlgorithm(ValueAlgorithm):
    """DQN's numbers and those of the quantiles."""

    quantiles: int = Field(default=10, ge=1)
    """Numbers an action."""
    kappa: float = Field(default=1.0, ge=0)
    """Width within which the loss is smooth; 0: the bare quantile loss."""


class QrDqn(Exploring):
    """Deep Q-learning of quantiles."""

    algorithm: QuantileAlgorithm = QuantileAlgorithm()
    """Discount, slow copy and quantiles."""


def objective(policy: DeepValues, rows: ValueRows, *, kappa: float) -> Terms:
    """Quantile regression of the chosen action's quantiles on the moved ones of the best action that follows."""
    quantiles = of_choice(policy.outcomes(rows.seen, drawn(rows, 0)), rows.chosen)
    ahead = of_choice(rows.slow, best_by_slow(policy, rows))
    return quantile_values(quantiles, td_target(rows.reward, rows.discount, ahead), kappa=kappa)


def method(config: QrDqn) -> Method:
    chosen = config.algorithm
    return Method(
        algorithm=chosen,
        objective=partial(objective, kappa=chosen.kappa),
        shape=Shape(outcome=Quantiles(size=chosen.quantiles)),
    )


ENTRY = value_entry(
    summary="deep Q-learning of the quantiles of the return",
    source="Dabney et al., Distributional Reinforcement Learning with Quantile Regression, 2018",
    config=QrDqn,
    method=method,
    loss=(quantile_values, td_target),
    limitation="work grows with the square of the quantiles; quantiles may cross.",
)
