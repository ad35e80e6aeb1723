"""Double DQN: the values of now choose, the slow copy says what the choice is worth (van Hasselt et al., 2016).

loss = huber(Q(s, a) - [r + discount * Q_slow(s', argmax Q(s', .))]). The largest of noisy numbers is too high on
average; a choice by other numbers than those that value it is not.
"""

import torch

from hone.models.control.q_networks import DeepValues
from hone.objectives.td import double_target
from hone.objectives.terms import Terms
from hone.objectives.value import huber
from hone.train.control.value_based import Exploring, Method, ValueAlgorithm, value_entry
from hone.train.control.value_rows import ValueRows, drawn


class DoubleDqn(Exploring):
    """Deep Q-learning that does not overrate."""

    algorithm: ValueAlgorithm = ValueAlgorithm()
    """Discount and slow copy."""


def objective(policy: DeepValues, rows: ValueRows) -> Terms:
    """Huber's loss of the chosen action's value against the double target."""
    table = policy.table(policy.outcomes(rows.seen, drawn(rows, 0)))
    with torch.no_grad():
        ahead = policy.table(policy.outcomes(rows.after, drawn(rows, 1)))
    target = double_target(rows.reward, rows.discount, ahead, policy.table(rows.slow))
    return huber(table.gather(1, rows.chosen[:, None]).squeeze(1), target)


def method(config: DoubleDqn) -> Method:
    return Method(algorithm=config.algorithm, objective=objective)


ENTRY = value_entry(
    summary="deep Q-learning whose target is chosen by other values than those that judge it",
    source="van Hasselt et al., Deep Reinforcement Learning with Double Q-learning, 2016",
    config=DoubleDqn,
    method=method,
    loss=(huber, double_target),
    limitation="finite actions only; a third pass through the network per update, and values may now be too low.",
)
