"""DQN: action values by temporal difference from replay, against a slow copy (Mnih et al., 2015).

loss = huber(Q(s, a) - [r + discount * max over a' of Q_slow(s', a')]); the discount is 0 where the world ended, and not
where a time limit cut an episode. The policy is the running average of the weights: on CartPole-v1 the last weights of
a run are often bad ones, with good ones just before and after. The learning rate does not fall, so that there is
something to average. The defaults are for 50,000 steps of that world.
"""

from hone.models.control.q_networks import DqnPolicy
from hone.objectives.td import greedy_target
from hone.objectives.terms import LossTerms
from hone.objectives.value import huber
from hone.train.control.experts import DemonstrationsConfig
from hone.train.control.value_based import ScheduledValueRunConfig, ValueAlgorithm, ValueMethod, value_recipe_spec
from hone.train.control.value_rows import ValueRows, weight_noise


class DqnAlgorithm(ValueAlgorithm):
    """Discount and slow copy."""

    demonstrations: DemonstrationsConfig | None = None
    """A log that is replayed beside what is lived through."""


class DqnConfig(ScheduledValueRunConfig):
    """Deep Q-learning."""

    algorithm: DqnAlgorithm = DqnAlgorithm()
    """Discount, slow copy and demonstrations."""


def objective(policy: DqnPolicy, rows: ValueRows) -> LossTerms:
    """Huber's loss of the chosen action's value against the greedy target."""
    table = policy.q_values(policy.return_outputs(rows.seen, weight_noise(rows, 0)))
    target = greedy_target(rows.reward, rows.discount, policy.q_values(rows.target_outcomes))
    return huber(table.gather(1, rows.chosen[:, None]).squeeze(1), target)


def method(config: DqnConfig) -> ValueMethod:
    return ValueMethod(algorithm=config.algorithm, objective=objective, demonstrations=config.algorithm.demonstrations)


ENTRY = value_recipe_spec(
    summary="deep Q-learning: action values from replay, against a slow copy of themselves",
    paper="Mnih et al., Human-level control through deep reinforcement learning, 2015",
    config=DqnConfig,
    method=method,
    loss=(huber, greedy_target),
    limitation="finite actions only; overestimation bias, which double_dqn reduces.",
)
