"""Rainbow: double, dueling, prioritised, n-step, distributional and noisy DQN combined (Hessel et al., 2018).

C51's loss on n-step transitions, the next action selected by the online network, a dueling network with noise in its
weights, and a replay buffer whose priorities are the KL divergences of the sampled transitions.
"""

from functools import partial

from pydantic import Field

from hone.control.networks.q_networks import QArchitecture
from hone.control.off_policy import off_policy_parts
from hone.control.value_based import ValueMethod, ValueRunConfig
from hone.control.value_rows import argmax_online, priority_schedule
from hone.objectives.td import dueling
from hone.recipes.off_policy.c51 import CategoricalAlgorithm, objective
from hone.run.job import RecipeSpec


class RainbowAlgorithm(CategoricalAlgorithm):
    """The numbers of its parts."""

    length: int = Field(default=3, ge=1)
    """Steps that a target looks ahead."""
    sigma: float = Field(default=0.5, gt=0)
    """Initial scale of the noise in the weights."""
    exponent: float = Field(default=0.5, ge=0, le=1)
    """Exponent of the priorities; 0 samples uniformly."""
    correction: float = Field(default=0.4, ge=0, le=1)
    """Exponent of the importance weights at the first iteration; at the last it is 1."""


class RainbowConfig(ValueRunConfig):
    """The six extensions of deep Q-learning together."""

    algorithm: RainbowAlgorithm = RainbowAlgorithm()
    """Discount, target network, support, length, noise and priorities."""

    def value_method(self) -> ValueMethod:
        """Objective, replay and network options of the recipe, as the value-based family takes them."""
        chosen = self.algorithm
        return ValueMethod(
            algorithm=chosen,
            objective=partial(objective, support=chosen.support(), choose=argmax_online),
            network_shape=QArchitecture(outcome=chosen.outcome(), dueling=True, sigma=chosen.sigma),
            n_steps=chosen.length,
            priorities=priority_schedule(chosen.exponent, chosen.correction, iterations=self.steps),
        )


ENTRY = RecipeSpec(
    summary="six extensions of deep Q-learning together",
    paper="Hessel et al., Rainbow: Combining Improvements in Deep Reinforcement Learning, 2018",
    config=RainbowConfig,
    limitation="an update costs several of DQN's; the range of returns must be known; its two streams share layers.",
    parts=off_policy_parts(RainbowConfig.value_method, dueling, source="Replay(Live(Gymnasium)), n steps, by priority"),
)
