"""QR-DQN: quantiles of the return instead of fixed atoms (Dabney et al., 2018).

k numbers per action, the quantiles at (i - 1/2) / k, by quantile regression against r + discount * each quantile of the
best next action; actions are chosen by their mean. No range of returns has to be known.
"""

from functools import partial

from pydantic import Field

from hone.control.networks.q_networks import DqnPolicy, QArchitecture, QuantileReturn
from hone.control.value_based import ScheduledValueRunConfig, ValueAlgorithm, ValueMethod
from hone.control.value_rows import ValueRows, argmax_target, outcomes_of_action, weight_noise
from hone.objectives.distributional import quantile_huber_loss
from hone.objectives.td import td_target
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec


class QuantileAlgorithm(ValueAlgorithm):
    """DQN's numbers and those of the quantiles."""

    quantiles: int = Field(default=10, ge=1)
    """Numbers an action."""
    kappa: float = Field(default=1.0, ge=0)
    """Width within which the loss is smooth; 0: the bare quantile loss."""


class QrDqnConfig(ScheduledValueRunConfig):
    """Deep Q-learning of quantiles."""

    algorithm: QuantileAlgorithm = QuantileAlgorithm()
    """Discount, target network and quantiles."""

    def value_method(self) -> ValueMethod:
        """Objective, replay and network options of the recipe, as the value-based family takes them."""
        chosen = self.algorithm
        return ValueMethod(
            algorithm=chosen,
            objective=partial(_objective, kappa=chosen.kappa),
            network_shape=QArchitecture(outcome=QuantileReturn(size=chosen.quantiles)),
        )


def _objective(policy: DqnPolicy, rows: ValueRows, *, kappa: float) -> LossTerms:
    """Quantile regression of the chosen action's quantiles on the moved ones of the best action that follows."""
    quantiles = outcomes_of_action(policy.return_outputs(rows.seen, weight_noise(rows, 0), rows.mask), rows.chosen)
    ahead = outcomes_of_action(rows.target_outcomes, argmax_target(policy, rows))
    return quantile_huber_loss(quantiles, td_target(rows.reward, rows.discount, ahead), kappa=kappa)


ENTRY = RecipeSpec(
    summary="deep Q-learning of the quantiles of the return",
    paper="Dabney et al., Distributional Reinforcement Learning with Quantile Regression, 2018",
    config=QrDqnConfig,
    limitation="work grows with the square of the quantiles; quantiles may cross.",
)
