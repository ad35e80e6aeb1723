"""Soft actor-critic (Haarnoja et al., 2018): off-policy control that keeps its entropy at a target.

Twin critics with target networks, a squashed Gaussian policy, and a learned temperature. The defaults are those that
solve Pendulum-v1 within 20,000 steps.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from hone.control.critic_backward import sac_actor_with_backward, twin_critics_with_backward
from hone.control.environments.world import GymWorld
from hone.control.experts import DemonstrationsConfig, with_demonstrations
from hone.control.networks.actor_critic import SoftActorCritic
from hone.control.networks.encoders import encoded_spaces
from hone.control.networks.mlp import EncodedMlpConfig, PolicySpaces
from hone.control.networks.q_networks import DiscreteSacPolicy
from hone.control.off_policy import MethodWrapper, OffPolicyMethod, ReplayRunConfig, rows_with_noise
from hone.control.phases import TdAlgorithm, optimizer_phase, target_update
from hone.control.replay.ring import RingBuffer
from hone.control.rows import TransitionRows
from hone.control.spaces import world_spaces
from hone.credit.returns import one_step_target
from hone.learner.config import OptimizerConfig
from hone.learner.gradient import OptimizerPhase
from hone.objectives.td import sac_actor_loss, soft_target, temperature_loss, twin_critic_loss
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec

S = TypeVar("S", SoftActorCritic, DiscreteSacPolicy)


class SacAlgorithm(TdAlgorithm):
    """The numbers of the paper."""

    entropy_per_action: float = -1.0
    """Target entropy of the policy, in nats per dimension of an action scaled to [-1, 1]."""


class SacConfig(ReplayRunConfig):
    """A squashed Gaussian policy on Gymnasium environments with a box of actions."""

    network: EncodedMlpConfig = EncodedMlpConfig(hidden=[256, 256], activation="relu")
    """Encoder of observations, and hidden layers of the policy and of each critic."""
    demonstrations: DemonstrationsConfig | None = None
    """Log of demonstrations, mixed into the replay buffer's batches."""
    algorithm: SacAlgorithm = SacAlgorithm()
    """Targets and temperature."""

    def policy_spaces(self, spaces: PolicySpaces) -> PolicySpaces:
        return encoded_spaces(spaces, self.network)

    def open_replay(self, world: GymWorld) -> MethodWrapper:
        return with_demonstrations(self.demonstrations, world_spaces(world))

    def method(self, spaces: PolicySpaces) -> OffPolicyMethod[SoftActorCritic]:
        """SAC with the policy of the config."""
        policy = SoftActorCritic(spaces, self.network, seed=self.seed).to(self.run.device)
        return soft_actor_critic(self, policy, self.algorithm)


@torch.no_grad()
def _soft_value_target(policy: SoftActorCritic, rows: TransitionRows) -> Tensor:
    """`[n]` the soft target."""
    action, logp = policy.sample_actions(rows.next_seen, rows.noise[:, 0])
    worth = policy.min_target_q_values(rows.next_seen, action)
    return soft_target(rows.reward, rows.discount, worth, logp, policy.log_temperature.exp())


def _critic_objective(policy: SoftActorCritic, rows: TransitionRows) -> LossTerms:
    """Squared error of both critics against the soft target."""
    return twin_critic_loss(
        *policy.q_values(rows.seen, policy.to_unit_box(rows.chosen)), _soft_value_target(policy, rows)
    )


def _actor_objective(policy: SoftActorCritic, rows: TransitionRows, *, target_entropy: float) -> LossTerms:
    """The policy's loss and the temperature's: they share the draw, and no parameter."""
    action, logp = policy.sample_actions(rows.seen, rows.noise[:, 1])
    first, second = policy.q_values(rows.seen, action, frozen=True)
    actor = sac_actor_loss(logp, first, second, policy.log_temperature.exp())
    heat = temperature_loss(policy.log_temperature, logp, target_entropy=target_entropy)
    return LossTerms(loss=actor.loss + heat.loss, compute_metrics=lambda: {**actor.metrics, **heat.metrics})


def soft_phases(
    config: OptimizerConfig,
    policy: S,
    critic: Callable[[S, TransitionRows], LossTerms],
    actor: Callable[[S, TransitionRows], LossTerms],
    *,
    tau: float,
) -> list[OptimizerPhase[S, TransitionRows]]:
    """Critics, then actor and temperature, then the target networks of the critics."""
    acting = [*policy.actor.parameters(), policy.log_temperature]
    encoders = policy.target_encoders()
    follow = target_update([(policy.targets, policy.critics), *encoders], tau=tau)
    judging = [*(part for _, encoder in encoders for part in encoder.parameters()), *policy.critics.parameters()]
    return [
        optimizer_phase("critic", critic, judging, config),
        optimizer_phase("actor", actor, acting, config, after_step=follow),
    ]


def soft_actor_critic(
    config: ReplayRunConfig, policy: SoftActorCritic, algorithm: SacAlgorithm
) -> OffPolicyMethod[SoftActorCritic]:
    """SAC on uniform samples of transitions."""
    entropy = algorithm.entropy_per_action * policy.action_size
    actor = partial(_actor_objective, target_entropy=entropy)
    phases = soft_phases(config.learner, policy, _critic_objective, actor, tau=algorithm.tau)
    if policy.encoder is None:
        written = (
            partial(twin_critics_with_backward, value_target=_soft_value_target),
            partial(sac_actor_with_backward, target_entropy=entropy),
        )
        phases = [replace(one, objective_with_backward=loss) for one, loss in zip(phases, written, strict=True)]
    return OffPolicyMethod(
        policy=policy,
        phases=phases,
        layout=rows_with_noise(config, "sac", 2, policy.action_size),
        credit=partial(one_step_target, discount=algorithm.discount),
        buffer=RingBuffer(config.replay.capacity),
    )


ENTRY = RecipeSpec(
    summary="off-policy control of continuous actions: maximum entropy, twin critics, replay",
    paper="Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2018",
    config=SacConfig,
    limitation="boxes of actions only; the values of actions that were never tried are guesses.",
)
