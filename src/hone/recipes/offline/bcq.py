"""Batch-constrained Q-learning (Fujimoto et al., 2019): the best of the actions that are likely under the log.

Finite actions: double Q-learning over the actions that a behaviour model of the log finds likely enough (Fujimoto et
al., 2019b). A box: a generative model proposes logged actions, a perturbation network moves each a little towards
higher values, and the critics select the best of several.
"""

from functools import partial

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from hone.control.networks.mlp import DiscreteActions, PolicySpaces
from hone.control.networks.offline import BcqPolicy, BearPolicy, DiscreteBcqPolicy, first_q_value, twin_q_values
from hone.control.offline import OfflineRunConfig, logged_method
from hone.control.phases import LearningMethod, TdAlgorithm, optimizer_phase, target_update
from hone.control.rows import TransitionRows
from hone.control.value_rows import legal_values
from hone.objectives.constraint import bcq_admissible_actions, bcq_target, bcq_vae_loss
from hone.objectives.offline import behaviour_cloning
from hone.objectives.td import ddpg_actor_loss, double_target, twin_critic_loss
from hone.objectives.terms import LossTerms, add_terms
from hone.objectives.value import huber
from hone.recipes.decision_logs import read_decisions
from hone.run.job import RecipeSpec


class GeneratedActionsAlgorithm(TdAlgorithm):
    """Numbers of algorithms that choose among drawn actions."""

    pessimism: float = Field(default=0.75, ge=0, le=1)
    """Weight of the minimum of the two critics, in boxes of actions; the maximum has the rest."""
    proposals: int = Field(default=10, ge=1)
    """Actions drawn per target, in boxes; the best is taken."""
    samples: int = Field(default=100, ge=1)
    """Actions drawn per decision, in boxes; the best is taken."""


class BcqAlgorithm(GeneratedActionsAlgorithm):
    """The numbers of the papers."""

    threshold: float = Field(default=0.3, ge=0, le=1)
    """Finite actions: least probability of an action under the log, as a share of the most likely action's."""
    reach: float = Field(default=0.05, ge=0, le=2)
    """Boxes: largest perturbation of a generated action, for actions scaled to [-1, 1]."""


class BcqConfig(OfflineRunConfig):
    """Batch-constrained Q-learning from a log, over finite actions or a box."""

    read_log = staticmethod(read_decisions)

    algorithm: BcqAlgorithm = BcqAlgorithm()
    """Constraint and targets."""

    def method(self, spaces: PolicySpaces) -> LearningMethod[DiscreteBcqPolicy] | LearningMethod[BcqPolicy]:
        """Networks and losses of the recipe for the actions of the log."""
        discrete = isinstance(spaces.actions, DiscreteActions)
        return _discrete_method(self, spaces) if discrete else _continuous_method(self, spaces)


# ---------------------------------------------------------------------------------------------- finite actions


def _discrete_objective(policy: DiscreteBcqPolicy, rows: TransitionRows) -> LossTerms:
    """Huber's error of Q against the best admissible action + imitation by the model of the log."""
    with torch.no_grad():
        likely = F.log_softmax(legal_values(policy.behaviour(rows.next_seen), rows.next_mask), dim=1)
        allowed = bcq_admissible_actions(likely, threshold=policy.threshold)
        ahead = policy.values(rows.next_seen).masked_fill(~allowed, -torch.inf)
        target = double_target(rows.reward, rows.discount, ahead, policy.target(rows.next_seen))
    error = huber(_value_of_chosen(policy.values(rows.seen), rows.chosen), target)
    logp = F.log_softmax(legal_values(policy.behaviour(rows.seen), rows.mask), dim=1)
    return add_terms(error, behaviour_cloning(_value_of_chosen(logp, rows.chosen)))


def _value_of_chosen(table: Tensor, chosen: Tensor) -> Tensor:
    """`[n, k]` at `[n]`."""
    return table.gather(1, chosen[:, None]).squeeze(1)


def _discrete_method(config: BcqConfig, spaces: PolicySpaces) -> LearningMethod[DiscreteBcqPolicy]:
    """Double Q-learning over the actions that the behaviour model finds likely."""
    algorithm = config.algorithm
    policy = DiscreteBcqPolicy(spaces, config.network, seed=config.seed, threshold=algorithm.threshold)
    policy = policy.to(config.run.device)
    numbers = [*policy.values.parameters(), *policy.behaviour.parameters()]
    follow = target_update([(policy.target, policy.values)], tau=algorithm.tau)
    phases = [optimizer_phase("values", _discrete_objective, numbers, config.learner, after_step=follow)]
    return logged_method(config, policy, phases, discount=algorithm.discount)


# ---------------------------------------------------------------------------------------------- boxes


def generator_objective(policy: BcqPolicy | BearPolicy, rows: TransitionRows) -> LossTerms:
    """Loss of the generator: reconstruction error of logged actions, and KL of their codes from the standard normal."""
    rebuilt, mean, log_std = policy.generator.reconstruct(rows.seen, rows.chosen, rows.noise[:, : policy.latent_size])
    return bcq_vae_loss(rebuilt, rows.chosen, mean, log_std)


@torch.no_grad()
def _value_target(policy: BcqPolicy, rows: TransitionRows, *, pessimism: float) -> Tensor:
    """`[n]` by the best of several perturbed actions of the generator."""
    count = len(rows)
    codes = rows.noise[:, 2 * policy.latent_size :].reshape(-1, policy.latent_size)
    after = rows.next_seen.repeat_interleave(len(codes) // count, dim=0)
    action = policy.perturb_actions(after, policy.generate_actions(after, codes), use_target=True)
    first, second = (worth.view(count, -1) for worth in twin_q_values(policy.targets, after, action))
    return bcq_target(rows.reward, rows.discount, first, second, pessimism=pessimism)


def _critic_objective(policy: BcqPolicy, rows: TransitionRows, *, pessimism: float) -> LossTerms:
    """Squared errors of both critics against the best of several perturbed actions of the generator."""
    target = _value_target(policy, rows, pessimism=pessimism)
    return twin_critic_loss(*twin_q_values(policy.critics, rows.seen, rows.chosen), target)


def _perturbation_objective(policy: BcqPolicy, rows: TransitionRows) -> LossTerms:
    """Generated actions, moved to where the first critic finds them better."""
    code = rows.noise[:, policy.latent_size : 2 * policy.latent_size]
    action = policy.perturb_actions(rows.seen, policy.generate_actions(rows.seen, code))
    return ddpg_actor_loss(first_q_value(policy.critics, rows.seen, action))


def _continuous_method(config: BcqConfig, spaces: PolicySpaces) -> LearningMethod[BcqPolicy]:
    """Generator, twin critics and perturbation network, over a box of actions."""
    algorithm, learning = config.algorithm, config.learner
    policy = BcqPolicy(
        spaces, config.network, seed=config.seed, max_perturbation=algorithm.reach, samples=algorithm.samples
    ).to(config.run.device)
    critic = partial(_critic_objective, pessimism=algorithm.pessimism)
    moved = policy.perturbation.parameters()
    follow = target_update([(policy.targets, policy.critics), (policy.slow, policy.perturbation)], tau=algorithm.tau)
    phases = [
        optimizer_phase("generator", generator_objective, policy.generator.parameters(), learning),
        optimizer_phase("critic", critic, policy.critics.parameters(), learning),
        optimizer_phase("perturbation", _perturbation_objective, moved, learning, after_step=follow),
    ]
    noise_size = (2 + algorithm.proposals) * policy.latent_size
    return logged_method(config, policy, phases, discount=algorithm.discount, noise_size=noise_size)


ENTRY = RecipeSpec(
    summary="offline control: the best of the actions that the log would have taken",
    paper="Fujimoto et al., Off-Policy Deep Reinforcement Learning without Exploration, 2019",
    config=BcqConfig,
    limitation="no better than the behaviour model, which decides the actions that the constraint admits.",
)
