"""DQN: action values by temporal difference from replay, against a target network (Mnih et al., 2015).

loss = huber(Q(s, a) - [r + discount * max over a' of Q_target(s', a')]); the discount is 0 where the episode
terminated, and not where a time limit truncated it. The policy that is evaluated is an exponential moving average of
the weights: on CartPole-v1 the last weights of a run are often bad, with good ones just before and after. The learning
rate stays constant, so that the average has something to smooth. The defaults are for 50,000 steps of CartPole-v1.
"""

from hone.control.environments.world import GymWorld
from hone.control.experts import DemonstrationsConfig, with_demonstrations
from hone.control.networks.q_networks import DqnPolicy
from hone.control.off_policy import MethodWrapper
from hone.control.spaces import world_spaces
from hone.control.value_based import ScheduledValueRunConfig, ValueAlgorithm, ValueMethod
from hone.control.value_rows import ValueRows, legal_values, weight_noise
from hone.objectives.td import greedy_target
from hone.objectives.terms import LossTerms
from hone.objectives.value import huber
from hone.run.job import RecipeSpec


class DqnAlgorithm(ValueAlgorithm):
    """Discount and target network."""

    demonstrations: DemonstrationsConfig | None = None
    """Log of demonstrations, mixed into the replay buffer's batches."""


class DqnConfig(ScheduledValueRunConfig):
    """Deep Q-learning."""

    algorithm: DqnAlgorithm = DqnAlgorithm()
    """Discount, target network and demonstrations."""

    def open_replay(self, world: GymWorld) -> MethodWrapper:
        return with_demonstrations(self.algorithm.demonstrations, world_spaces(world))

    def value_method(self) -> ValueMethod:
        """Objective, replay and network options of the recipe, as the value-based family takes them."""
        return ValueMethod(algorithm=self.algorithm, objective=objective)


def objective(policy: DqnPolicy, rows: ValueRows) -> LossTerms:
    """Huber's loss of the chosen action's value against the greedy target."""
    table = policy.q_values(policy.return_outputs(rows.seen, weight_noise(rows, 0), rows.mask))
    ahead = legal_values(policy.q_values(rows.target_outcomes), rows.next_mask)
    target = greedy_target(rows.reward, rows.discount, ahead)
    return huber(table.gather(1, rows.chosen[:, None]).squeeze(1), target)


ENTRY = RecipeSpec(
    summary="deep Q-learning: action values from replay, against a target network",
    paper="Mnih et al., Human-level control through deep reinforcement learning, 2015",
    config=DqnConfig,
    limitation="finite actions only; overestimation bias, which double_dqn reduces.",
)
