"""BEAR (bootstrapping error accumulation reduction, Kumar et al., 2019): the policy stays in the support of the log.

The maximum mean discrepancy between the policy's actions and those of a generative model of the log is held below a
threshold; a Lagrange multiplier rises while it is exceeded, and falls again. The constraint is on support, not density:
an action that was rare in the log costs no more than a common one.
"""

from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hone.control.networks.mlp import PolicySpaces
from hone.control.networks.offline import BearPolicy, twin_q_values
from hone.control.offline import OfflineRunConfig, logged_method
from hone.control.phases import LearningMethod, optimizer_phase, target_update
from hone.control.rows import TransitionRows
from hone.objectives.constraint import bcq_target, bear_actor_loss, bear_multiplier_loss, gaussian, laplacian, mmd
from hone.objectives.td import twin_critic_loss
from hone.objectives.terms import LossTerms, add_terms
from hone.recipes.decision_logs import read_decisions
from hone.recipes.offline.bcq import GeneratedActionsAlgorithm, generator_objective
from hone.run.job import RecipeSpec

KERNELS = {"laplacian": laplacian, "gaussian": gaussian}


class BearAlgorithm(GeneratedActionsAlgorithm):
    """The numbers of the paper."""

    threshold: float = Field(default=0.05, gt=0)
    """Maximum mean discrepancy to the log at which the multiplier stays constant."""
    kernel: Literal["laplacian", "gaussian"] = "laplacian"
    """Kernel of the maximum mean discrepancy: `laplacian` or `gaussian`."""
    width: float = Field(default=20.0, gt=0)
    """Bandwidth of the kernel."""
    matched: int = Field(default=4, ge=2)
    """Samples of the policy and of the generator that are compared."""


class BearConfig(OfflineRunConfig):
    """BEAR from a log, over a box of actions."""

    read_log = staticmethod(read_decisions)

    algorithm: BearAlgorithm = BearAlgorithm()
    """Constraint and targets."""

    def method(self, spaces: PolicySpaces) -> LearningMethod[BearPolicy]:
        """Generator, twin critics, and the policy with its multiplier. Raises ConfigError for actions without a box."""
        algorithm, learning = self.algorithm, self.learner
        policy = BearPolicy(spaces, self.network, seed=self.seed, samples=algorithm.samples)
        policy = policy.to(self.run.device)
        actor, critic = (partial(one, algorithm=algorithm) for one in (_actor_objective, _critic_objective))
        latent, actions = policy.latent_size, policy.action_size
        priced = [*policy.actor.parameters(), policy.log_multiplier]
        follow = target_update([(policy.targets, policy.critics)], tau=algorithm.tau)
        phases = [
            optimizer_phase("generator", generator_objective, policy.generator.parameters(), learning),
            optimizer_phase("critic", critic, policy.critics.parameters(), learning),
            optimizer_phase("actor", actor, priced, learning, after_step=follow),
        ]
        noise_size = latent + (algorithm.proposals + algorithm.matched) * actions + algorithm.matched * latent
        return logged_method(self, policy, phases, discount=algorithm.discount, noise_size=noise_size)


@torch.no_grad()
def _value_target(policy: BearPolicy, rows: TransitionRows, *, algorithm: BearAlgorithm) -> Tensor:
    """`[n]` by the best of several draws of the policy."""
    count, many = len(rows), algorithm.proposals
    noise = rows.noise[:, policy.latent_size : policy.latent_size + many * policy.action_size].reshape(count, many, -1)
    action = torch.tanh(policy.sample_pre_tanh(rows.next_seen, noise)).flatten(0, 1)
    after = rows.next_seen.repeat_interleave(many, dim=0)
    first, second = (worth.view(count, many) for worth in twin_q_values(policy.targets, after, action))
    return bcq_target(rows.reward, rows.discount, first, second, pessimism=algorithm.pessimism)


def _critic_objective(policy: BearPolicy, rows: TransitionRows, *, algorithm: BearAlgorithm) -> LossTerms:
    """Squared errors of both critics against the best of several draws of the policy."""
    target = _value_target(policy, rows, algorithm=algorithm)
    return twin_critic_loss(*twin_q_values(policy.critics, rows.seen, rows.chosen), target)


def _actor_objective(policy: BearPolicy, rows: TransitionRows, *, algorithm: BearAlgorithm) -> LossTerms:
    """Worth of a draw, the distance of several from the generator's at its price, and the price.

    Distances are taken before tanh, as in the authors' code, for which the threshold was found.
    """
    count, many = len(rows), algorithm.matched
    ours, theirs = rows.noise.split(
        [rows.noise.shape[1] - many * policy.latent_size, many * policy.latent_size], dim=1
    )  # fmt: skip
    raw = policy.sample_pre_tanh(rows.seen, ours[:, -many * policy.action_size :].reshape(count, many, -1))
    imitated = policy.sample_behaviour_pre_tanh(rows.seen, theirs.reshape(count, many, -1))
    distance = mmd(imitated, raw, width=algorithm.width, kernel=KERNELS[algorithm.kernel])
    worth = torch.minimum(*twin_q_values(policy.critics, rows.seen, torch.tanh(raw[:, 0]), frozen=True))
    price = bear_multiplier_loss(policy.log_multiplier, distance, threshold=algorithm.threshold)
    return add_terms(bear_actor_loss(worth, distance, policy.log_multiplier), price)


ENTRY = RecipeSpec(
    summary="offline control of continuous actions: within the support of the log, by a distance with a price",
    paper="Kumar et al., Stabilizing Off-Policy Q-Learning via Bootstrapping Error Reduction, 2019",
    config=BearConfig,
    limitation="boxes of actions only; its threshold must be found per log, and a generator is trained besides.",
)
