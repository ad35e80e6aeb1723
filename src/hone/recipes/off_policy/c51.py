"""C51: the distribution of the return on fixed atoms (Bellemare et al., 2017).

The loss is the cross-entropy to the distribution of r + discount * Z, projected on the atoms; actions are chosen by the
mean. The defaults are for CartPole-v1, whose discounted return lies between 0 and 100.
"""

from functools import partial

import torch
from pydantic import Field, model_validator

from hone.control.networks.q_networks import CategoricalReturn, DqnPolicy, QArchitecture
from hone.control.value_based import ScheduledValueRunConfig, ValueAlgorithm, ValueMethod
from hone.control.value_rows import ActionSelector, ValueRows, argmax_target, outcomes_of_action, weight_noise
from hone.objectives.distributional import ValueSupport, c51_loss, categorical_target
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec


class CategoricalAlgorithm(ValueAlgorithm):
    """DQN's numbers and the support."""

    low: float = 0.0
    """Lowest atom; smaller returns are projected onto it."""
    high: float = 100.0
    """Highest atom; greater returns are projected onto it."""
    atoms: int = Field(default=51, ge=2)
    """Number of atoms, equally spaced from `low` to `high`."""

    @model_validator(mode="after")
    def _support(self) -> "CategoricalAlgorithm":
        if self.low >= self.high:
            raise ValueError(f"algorithm.low = {self.low} must be below algorithm.high = {self.high}")
        return self

    def support(self) -> ValueSupport:
        return ValueSupport(low=self.low, high=self.high, size=self.atoms)

    def outcome(self) -> CategoricalReturn:
        return CategoricalReturn(low=self.low, high=self.high, size=self.atoms)


class C51Config(ScheduledValueRunConfig):
    """Deep Q-learning of whole distributions."""

    algorithm: CategoricalAlgorithm = CategoricalAlgorithm()
    """Discount, target network and support."""

    def value_method(self) -> ValueMethod:
        """Objective, replay and network options of the recipe, as the value-based family takes them."""
        chosen = self.algorithm
        return ValueMethod(
            algorithm=chosen,
            objective=partial(objective, support=chosen.support()),
            network_shape=QArchitecture(outcome=chosen.outcome()),
        )


def objective(
    policy: DqnPolicy, rows: ValueRows, *, support: ValueSupport, choose: ActionSelector = argmax_target
) -> LossTerms:
    """Cross-entropy of the chosen action's distribution to the projected one of the best action that follows."""
    logits = outcomes_of_action(policy.return_outputs(rows.seen, weight_noise(rows, 0), rows.mask), rows.chosen)
    ahead = torch.softmax(outcomes_of_action(rows.target_outcomes, choose(policy, rows)), dim=1)
    target = categorical_target(rows.reward, rows.discount, ahead, support=support)
    return c51_loss(logits, target, support=support)


ENTRY = RecipeSpec(
    summary="deep Q-learning of the distribution of the return, on fixed atoms",
    paper="Bellemare et al., A Distributional Perspective on Reinforcement Learning, 2017",
    config=C51Config,
    limitation="the range of returns must be known beforehand; returns outside are clipped to it.",
)
