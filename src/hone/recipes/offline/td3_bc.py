"""TD3 + BC (Fujimoto and Gu, 2021): TD3 on a log, with a behaviour cloning term in the policy's loss.

Twin critics, whose target is the lesser of two target networks at a smoothed action; the policy is updated on every
second update, with the critic's term scaled by its own mean. States are standardised by the log, as in every offline
recipe here.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.reduction import Reduction, whole_batch
from hone.credit.returns import one_step_target
from hone.models.control.deterministic import DeterministicActorCritic
from hone.models.control.offline import first_q_value, twin_q_values
from hone.objectives.batchwide import q_value_scale
from hone.objectives.offline import td3_bc_actor_loss
from hone.objectives.soft import twin_critic_loss
from hone.objectives.td import smoothed_action, twin_target
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.train.control.offline import (
    LoggedRows,
    OfflineMethod,
    OfflineRunConfig,
    check_offline,
    derive_offline,
    offline_job,
    offline_phase,
    open_log,
    rows_in_dtype,
)
from hone.train.control.phases import target_update
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run


class Td3BcAlgorithm(Config):
    """The numbers of the paper."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    alpha: float = Field(default=2.5, ge=0)
    """Weight of the critic's value, divided by its mean absolute value, against the behaviour-cloning term; 0 is
    behaviour cloning."""
    policy_every: int = Field(default=2, ge=1)
    """Updates of the critics per update of the policy and of the target networks."""
    smoothing: float = Field(default=0.2, ge=0)
    """Standard deviation of the noise on a target's action, where the box is [-1, 1]."""
    smoothing_limit: float = Field(default=0.5, ge=0)
    """Bound at which that noise is clipped."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Polyak coefficient of the target networks per update: target += tau * (weights - target)."""


class Td3BcConfig(OfflineRunConfig):
    """TD3 + BC from a log, over a box of actions."""

    algorithm: Td3BcAlgorithm = Td3BcAlgorithm()
    """Targets and regularisation."""


@dataclass(frozen=True, kw_only=True)
class ScaledRows(LoggedRows):
    """Rows that know how large values are in their whole batch."""

    scale: Tensor
    """`[n]` weight of the critic's word."""


@torch.no_grad()
def value_target(policy: DeterministicActorCritic, rows: LoggedRows, *, algorithm: Td3BcAlgorithm) -> Tensor:
    """`[n]` by the lesser slow value of a smoothed action."""
    action = torch.tanh(policy.slow_actor(rows.next_seen))
    action = smoothed_action(action, rows.noise, scale=algorithm.smoothing, limit=algorithm.smoothing_limit)
    return twin_target(rows.reward, rows.discount, *twin_q_values(policy.slow_critics, rows.next_seen, action))


def critic_objective(policy: DeterministicActorCritic, rows: LoggedRows, *, algorithm: Td3BcAlgorithm) -> LossTerms:
    """Squared errors of both critics against the lesser slow one at a smoothed action."""
    target = value_target(policy, rows, algorithm=algorithm)
    return twin_critic_loss(*twin_q_values(policy.critics, rows.seen, rows.chosen), target)


def actor_objective(policy: DeterministicActorCritic, rows: ScaledRows) -> LossTerms:
    """The first critic's word, scaled, against the distance to the logged action."""
    action = torch.tanh(policy.actor(rows.seen))
    return td3_bc_actor_loss(first_q_value(policy.critics, rows.seen, action), action, rows.chosen, rows.scale)


@torch.no_grad()
def scaled(
    policy: DeterministicActorCritic, rows: LoggedRows, update: int, reduction: Reduction, *, alpha: float
) -> ScaledRows:
    """`rows` with alpha / mean |Q(s, pi(s))| over all of them, before they are cut into micro-batches."""
    del update
    alike = rows_in_dtype(rows, policy.actor.layer_parameters[0][0].dtype)
    value = first_q_value(policy.critics, alike.seen, torch.tanh(policy.actor(alike.seen)))
    scale = whole_batch(partial(q_value_scale, alpha=alpha), reduction)(value.cpu().numpy())
    scale = torch.from_numpy(scale).to(alike.reward)
    return ScaledRows(**vars(alike), scale=scale)


def build(config: Td3BcConfig) -> TrainingJob[DeterministicActorCritic]:
    """Build the training job. Raises DataError for an invalid log, ConfigError for actions other than a bounded box."""
    log, spaces = open_log(config)
    algorithm = config.algorithm
    policy = DeterministicActorCritic(spaces, config.network, seed=config.seed).to(config.run.device)
    critic = partial(critic_objective, algorithm=algorithm)
    actor = offline_phase("actor", actor_objective, [*policy.actor.parameters()], config.learner)
    wiring = OfflineMethod(
        phases=[
            offline_phase("critic", critic, [*policy.critics.parameters()], config.learner),
            replace(actor, prepare=partial(scaled, alpha=algorithm.alpha), update_every=algorithm.policy_every),
        ],
        noise_size=policy.action_size,
        discount=algorithm.discount,
        after_step=target_update(
            [(policy.slow_critics, policy.critics), (policy.slow_actor, policy.actor)], tau=algorithm.tau
        ),
        after_step_every=algorithm.policy_every,
    )
    return offline_job(config, log, policy, wiring)


ENTRY = RecipeSpec(
    summary="offline control of continuous actions: TD3 with behaviour cloning",
    paper="Fujimoto and Gu, A Minimalist Approach to Offline Reinforcement Learning, 2021",
    config=Td3BcConfig,
    open=checked_run(check_offline, build),
    derive=derive_offline,
    parts=RecipeParts(
        source="Logged(log)",
        credit=(one_step_target,),
        loss=(twin_critic_loss, twin_target, smoothed_action, td3_bc_actor_loss),
        weights=(token_mean,),
    ),
    limitation="boxes of actions only; one weight decides between the critic and the log, wherever it stands.",
)
