"""C51: the distribution of the return on fixed atoms (Bellemare et al., 2017).

The distribution of r + discount * Z is projected on the atoms, and the cross-entropy to it is lowered; choices are made
by the mean. The defaults are for CartPole-v1, whose discounted return lies between 0 and 100.
"""

from functools import partial

import torch
from pydantic import Field, model_validator

from hone.models.control.q_networks import Atoms, DeepValues, Shape
from hone.objectives.distributional import Support, categorical_target, categorical_values
from hone.objectives.terms import Terms
from hone.train.control.value_based import Exploring, Method, ValueAlgorithm, value_entry
from hone.train.control.value_rows import Choice, ValueRows, best_by_slow, drawn, of_choice


class CategoricalAlgorithm(ValueAlgorithm):
    """DQN's numbers and the support."""

    low: float = 0.0
    """The least return; what is less is counted there."""
    high: float = 100.0
    """The greatest return; what is more is counted there."""
    atoms: int = Field(default=51, ge=2)
    """Returns at equal distances between them."""

    @model_validator(mode="after")
    def _support(self) -> "CategoricalAlgorithm":
        if self.low >= self.high:
            raise ValueError(f"algorithm.low = {self.low} must be below algorithm.high = {self.high}")
        return self

    def support(self) -> Support:
        return Support(low=self.low, high=self.high, size=self.atoms)

    def outcome(self) -> Atoms:
        return Atoms(low=self.low, high=self.high, size=self.atoms)


class C51(Exploring):
    """Deep Q-learning of whole distributions."""

    algorithm: CategoricalAlgorithm = CategoricalAlgorithm()
    """Discount, slow copy and support."""


def objective(policy: DeepValues, rows: ValueRows, *, support: Support, choose: Choice = best_by_slow) -> Terms:
    """Cross-entropy of the chosen action's distribution to the projected one of the best action that follows."""
    logits = of_choice(policy.outcomes(rows.seen, drawn(rows, 0)), rows.chosen)
    ahead = torch.softmax(of_choice(rows.slow, choose(policy, rows)), dim=1)
    target = categorical_target(rows.reward, rows.discount, ahead, support=support)
    return categorical_values(logits, target, support=support)


def method(config: C51) -> Method:
    chosen = config.algorithm
    return Method(
        algorithm=chosen, objective=partial(objective, support=chosen.support()), shape=Shape(outcome=chosen.outcome())
    )


ENTRY = value_entry(
    summary="deep Q-learning of the distribution of the return, on fixed atoms",
    source="Bellemare et al., A Distributional Perspective on Reinforcement Learning, 2017",
    config=C51,
    method=method,
    loss=(categorical_values, categorical_target),
    limitation="the range of returns must be known beforehand; what lies outside is counted at its ends.",
)
