"""Prioritised DQN: transitions are looked at again by how wrong the values were on them (Schaul et al., 2016).

P(i) in proportion to (|error| + floor)^exponent; each is weighed by (N P(i))^-correction in the loss, which
grows to 1, where the weights undo the bias wholly. Errors come back to the memory from the update that made them. The
target is the double one, as in the paper.
"""

from pydantic import Field

from hone.objectives.td import double_target
from hone.objectives.value import huber
from hone.recipes.off_policy.double_dqn import objective
from hone.train.control.value_based import ScheduledValueRunConfig, ValueAlgorithm, ValueMethod, value_recipe_spec
from hone.train.control.value_rows import priority_schedule


class PrioritizedAlgorithm(ValueAlgorithm):
    """DQN's numbers and those of the priorities."""

    exponent: float = Field(default=0.6, ge=0, le=1)
    """0: all alike; 1: in proportion to the error."""
    correction: float = Field(default=0.4, ge=0, le=1)
    """Exponent of the importance weights at the first turn; at the last it is 1."""


class PrioritizedDqnConfig(ScheduledValueRunConfig):
    """Deep Q-learning on what surprises most."""

    algorithm: PrioritizedAlgorithm = PrioritizedAlgorithm()
    """Discount, slow copy and priorities."""


def method(config: PrioritizedDqnConfig) -> ValueMethod:
    chosen = config.algorithm
    priorities = priority_schedule(chosen.exponent, chosen.correction, iterations=config.steps)
    return ValueMethod(algorithm=chosen, objective=objective, priorities=priorities)


ENTRY = value_recipe_spec(
    summary="double DQN with prioritized experience replay",
    paper="Schaul et al., Prioritized Experience Replay, 2016",
    config=PrioritizedDqnConfig,
    method=method,
    loss=(huber, double_target),
    limitation="where rewards are noise, it looks at noise; a priority is as old as the last look at its transition.",
    episode_source="Replay(Live(Gymnasium)), by priority",
)
