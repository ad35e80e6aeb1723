"""Prioritised DQN: transitions are sampled in proportion to their TD errors (Schaul et al., 2016).

P(i) is proportional to (|error| + floor)^exponent; importance weights (N P(i))^-correction multiply the loss, and the
correction grows to 1, where they remove the bias wholly. Each update writes its errors back to the replay buffer. The
target is that of double DQN, as in the paper.
"""

from pydantic import Field

from hone.control.off_policy import off_policy_parts
from hone.control.value_based import ScheduledValueRunConfig, ValueAlgorithm, ValueMethod
from hone.control.value_rows import priority_schedule
from hone.recipes.off_policy.double_dqn import objective
from hone.run.job import RecipeSpec


class PrioritizedAlgorithm(ValueAlgorithm):
    """DQN's numbers and those of the priorities."""

    exponent: float = Field(default=0.6, ge=0, le=1)
    """Exponent of the priorities: 0 samples uniformly, 1 in proportion to the error."""
    correction: float = Field(default=0.4, ge=0, le=1)
    """Exponent of the importance weights at the first iteration; at the last it is 1."""


class PrioritizedDqnConfig(ScheduledValueRunConfig):
    """Deep Q-learning on what surprises most."""

    algorithm: PrioritizedAlgorithm = PrioritizedAlgorithm()
    """Discount, target network and priorities."""

    def value_method(self) -> ValueMethod:
        """Objective, replay and network options of the recipe, as the value-based family takes them."""
        chosen = self.algorithm
        priorities = priority_schedule(chosen.exponent, chosen.correction, iterations=self.steps)
        return ValueMethod(algorithm=chosen, objective=objective, priorities=priorities)


ENTRY = RecipeSpec(
    summary="double DQN with prioritized experience replay",
    paper="Schaul et al., Prioritized Experience Replay, 2016",
    config=PrioritizedDqnConfig,
    limitation="noisy rewards attract samples; a priority is as old as the last update on its transition.",
    parts=off_policy_parts(PrioritizedDqnConfig.value_method, source="Replay(Live(Gymnasium)), by priority"),
)
