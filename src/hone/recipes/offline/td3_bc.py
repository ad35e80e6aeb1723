"""TD3 + BC (Fujimoto and Gu, 2021): TD3 on a log, with a behaviour cloning term in the policy's loss.

Twin critics, whose target is the lesser of two target networks at a smoothed action; the policy is updated on every
second update, with the critic's term scaled by its own mean. States are standardised by the log, as in every offline
recipe here.
"""

from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from hone.control.networks.actor_critic import DeterministicActorCritic
from hone.control.networks.mlp import PolicySpaces
from hone.control.networks.offline import first_q_value, twin_q_values
from hone.control.offline import OfflineRunConfig, logged_method, rows_in_dtype
from hone.control.phases import LearningMethod, TdAlgorithm, optimizer_phase, target_update
from hone.control.rows import TransitionRows
from hone.core.reduction import Reduction, whole_batch
from hone.objectives.batchwide import q_value_scale
from hone.objectives.offline import td3_bc_actor_loss
from hone.objectives.td import smoothed_action, twin_critic_loss, twin_target
from hone.objectives.terms import LossTerms
from hone.recipes.decision_logs import read_decisions
from hone.run.job import RecipeSpec


class Td3BcAlgorithm(TdAlgorithm):
    """The numbers of the paper."""

    alpha: float = Field(default=2.5, ge=0)
    """Weight of the critic's value, divided by its mean absolute value, against the behaviour-cloning term; 0 is
    behaviour cloning."""
    policy_every: int = Field(default=2, ge=1)
    """Updates of the critics per update of the policy and of the target networks."""
    smoothing: float = Field(default=0.2, ge=0)
    """Standard deviation of the noise on a target's action, where the box is [-1, 1]."""
    smoothing_limit: float = Field(default=0.5, ge=0)
    """Bound at which that noise is clipped."""


class Td3BcConfig(OfflineRunConfig):
    """TD3 + BC from a log, over a box of actions."""

    read_log = staticmethod(read_decisions)

    algorithm: Td3BcAlgorithm = Td3BcAlgorithm()
    """Targets and regularisation."""

    def method(self, spaces: PolicySpaces) -> LearningMethod[DeterministicActorCritic]:
        """Twin critics, then the policy and the target networks less often. Raises ConfigError for actions without a
        box."""
        algorithm = self.algorithm
        policy = DeterministicActorCritic(spaces, self.network, seed=self.seed).to(self.run.device)
        critic = partial(_critic_objective, algorithm=algorithm)
        pairs = [(policy.slow_critics, policy.critics), (policy.slow_actor, policy.actor)]
        phases = [
            optimizer_phase("critic", critic, policy.critics.parameters(), self.learner),
            optimizer_phase(
                "actor",
                _actor_objective,
                policy.actor.parameters(),
                self.learner,
                prepare=partial(_scaled, alpha=algorithm.alpha),
                update_every=algorithm.policy_every,
                after_step=target_update(pairs, tau=algorithm.tau),
            ),
        ]
        return logged_method(self, policy, phases, discount=algorithm.discount, noise_size=policy.action_size)


@dataclass(frozen=True, kw_only=True)
class _ScaledRows(TransitionRows):
    """Rows that know how large values are in their whole batch."""

    scale: Tensor
    """`[n]` weight of the critic's word."""


@torch.no_grad()
def _value_target(policy: DeterministicActorCritic, rows: TransitionRows, *, algorithm: Td3BcAlgorithm) -> Tensor:
    """`[n]` by the lesser slow value of a smoothed action."""
    action = torch.tanh(policy.slow_actor(rows.next_seen))
    action = smoothed_action(action, rows.noise, scale=algorithm.smoothing, limit=algorithm.smoothing_limit)
    return twin_target(rows.reward, rows.discount, *twin_q_values(policy.slow_critics, rows.next_seen, action))


def _critic_objective(
    policy: DeterministicActorCritic, rows: TransitionRows, *, algorithm: Td3BcAlgorithm
) -> LossTerms:
    """Squared errors of both critics against the lesser slow one at a smoothed action."""
    target = _value_target(policy, rows, algorithm=algorithm)
    return twin_critic_loss(*twin_q_values(policy.critics, rows.seen, rows.chosen), target)


def _actor_objective(policy: DeterministicActorCritic, rows: _ScaledRows) -> LossTerms:
    """The first critic's word, scaled, against the distance to the logged action."""
    action = torch.tanh(policy.actor(rows.seen))
    return td3_bc_actor_loss(first_q_value(policy.critics, rows.seen, action), action, rows.chosen, rows.scale)


@torch.no_grad()
def _scaled(
    policy: DeterministicActorCritic, rows: TransitionRows, update: int, reduction: Reduction, *, alpha: float
) -> _ScaledRows:
    """`rows` with alpha / mean |Q(s, pi(s))| over all of them, before they are cut into micro-batches."""
    del update
    alike = rows_in_dtype(rows, policy.actor.layer_parameters[0][0].dtype)
    value = first_q_value(policy.critics, alike.seen, torch.tanh(policy.actor(alike.seen)))
    scale = whole_batch(partial(q_value_scale, alpha=alpha), reduction)(value.cpu().numpy())
    scale = torch.from_numpy(scale).to(alike.reward)
    return _ScaledRows(**vars(alike), scale=scale)


ENTRY = RecipeSpec(
    summary="offline control of continuous actions: TD3 with behaviour cloning",
    paper="Fujimoto and Gu, A Minimalist Approach to Offline Reinforcement Learning, 2021",
    config=Td3BcConfig,
    limitation="boxes of actions only; one weight decides between the critic and the log, wherever it stands.",
)
