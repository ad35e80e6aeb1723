"""Rainbow: double, dueling, prioritised, n-step, distributional and noisy at once (Hessel et al., 2018).

C51's loss on n-step transitions, the best action chosen by the values of now, a dueling network with noise in its
weights, and a memory that asks again by the KL divergence of what it handed out.
"""

from functools import partial

from pydantic import Field

from hone.models.control.q_networks import Shape
from hone.objectives.distributional import categorical_target, categorical_values
from hone.objectives.td import dueling
from hone.recipes.off_policy.c51 import CategoricalAlgorithm, objective
from hone.train.control.value_based import Method, ValueRun, value_entry
from hone.train.control.value_rows import best_by_now, priorities_of


class RainbowAlgorithm(CategoricalAlgorithm):
    """The numbers of its parts."""

    length: int = Field(default=3, ge=1)
    """Steps that a target looks ahead."""
    sigma: float = Field(default=0.5, gt=0)
    """Initial scale of the noise in the weights."""
    exponent: float = Field(default=0.5, ge=0, le=1)
    """Of priorities; 0: all alike."""
    correction: float = Field(default=0.4, ge=0, le=1)
    """Exponent of the importance weights at the first turn; at the last it is 1."""


class Rainbow(ValueRun):
    """The six extensions of deep Q-learning together."""

    algorithm: RainbowAlgorithm = RainbowAlgorithm()
    """Discount, slow copy, support, length, noise and priorities."""


def method(config: Rainbow) -> Method:
    chosen = config.algorithm
    return Method(
        algorithm=chosen,
        objective=partial(objective, support=chosen.support(), choose=best_by_now),
        shape=Shape(outcome=chosen.outcome(), dueling=True, sigma=chosen.sigma),
        steps=chosen.length,
        priorities=priorities_of(chosen.exponent, chosen.correction, turns=config.steps),
    )


ENTRY = value_entry(
    summary="six extensions of deep Q-learning together",
    source="Hessel et al., Rainbow: Combining Improvements in Deep Reinforcement Learning, 2018",
    config=Rainbow,
    method=method,
    loss=(categorical_values, categorical_target, dueling),
    limitation="an update costs several of DQN's; the range of returns must be known; its two streams share layers.",
    memory="Replay(Live(Gymnasium)), n steps, by priority",
)
