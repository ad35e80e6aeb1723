"""Double DQN: the online network selects the next action, the target network evaluates it (van Hasselt et al., 2016).

loss = huber(Q(s, a) - [r + discount * Q_target(s', argmax Q(s', .))]). The maximum of noisy values is biased upwards;
selecting and evaluating with different networks removes most of that bias.
"""

import torch

from hone.control.networks.q_networks import DqnPolicy
from hone.control.value_based import ScheduledValueRunConfig, ValueAlgorithm, ValueMethod
from hone.control.value_rows import ValueRows, legal_values, weight_noise
from hone.objectives.td import double_target
from hone.objectives.terms import LossTerms
from hone.objectives.value import huber
from hone.run.job import RecipeSpec


class DoubleDqnConfig(ScheduledValueRunConfig):
    """Deep Q-learning that does not overrate."""

    algorithm: ValueAlgorithm = ValueAlgorithm()
    """Discount and target network."""

    def value_method(self) -> ValueMethod:
        """Objective, replay and network options of the recipe, as the value-based family takes them."""
        return ValueMethod(algorithm=self.algorithm, objective=objective)


def objective(policy: DqnPolicy, rows: ValueRows) -> LossTerms:
    """Huber's loss of the chosen action's value against the double target."""
    table = policy.q_values(policy.return_outputs(rows.seen, weight_noise(rows, 0), rows.mask))
    with torch.no_grad():
        ahead = policy.q_values(policy.return_outputs(rows.next_seen, weight_noise(rows, 1), rows.next_mask))
        ahead = legal_values(ahead, rows.next_mask)
    target = double_target(rows.reward, rows.discount, ahead, policy.q_values(rows.target_outcomes))
    return huber(table.gather(1, rows.chosen[:, None]).squeeze(1), target)


ENTRY = RecipeSpec(
    summary="deep Q-learning that selects and evaluates the next action with different networks",
    paper="van Hasselt et al., Deep Reinforcement Learning with Double Q-learning, 2016",
    config=DoubleDqnConfig,
    limitation="finite actions only; a third pass through the network per update, and values may now be too low.",
)
