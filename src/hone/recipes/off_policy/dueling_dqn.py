"""Dueling DQN: the worth of a situation and the advantages of choices are learned apart (Wang et al., 2016).

Q(s, a) = V(s) + A(s, a) - mean over a of A(s, .), two streams of one last layer over shared hidden layers; the paper
gives each stream a hidden layer of its own. The target is the double one, as in the paper.
"""

from hone.models.control.q_networks import Shape
from hone.objectives.td import double_target, dueling
from hone.objectives.value import huber
from hone.recipes.off_policy.double_dqn import objective
from hone.train.control.value_based import Exploring, Method, ValueAlgorithm, value_entry


class DuelingDqn(Exploring):
    """Deep Q-learning with two streams."""

    algorithm: ValueAlgorithm = ValueAlgorithm()
    """Discount and slow copy."""


def method(config: DuelingDqn) -> Method:
    return Method(algorithm=config.algorithm, objective=objective, shape=Shape(dueling=True))


ENTRY = value_entry(
    summary="double DQN whose network tells the worth of a situation from the advantages of choices",
    source="Wang et al., Dueling Network Architectures for Deep Reinforcement Learning, 2016",
    config=DuelingDqn,
    method=method,
    loss=(huber, double_target, dueling),
    limitation="helps where many choices are much alike; with two actions there is little to gain.",
)
