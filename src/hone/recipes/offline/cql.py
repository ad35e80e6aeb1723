"""Conservative Q-learning (Kumar et al., 2020): low values for actions outside the log.

Finite actions: double Q-learning plus the conservative gap, both over the legal actions where the log has masks. A box
of actions: SAC's losses plus the gap estimated on sampled actions, CQL(H).
"""

import math
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from hone.control.networks.actor_critic import QNetworkPolicy, SoftActorCritic, as_mlps, squashed_gaussian
from hone.control.networks.mlp import DiscreteActions, MlpConfig, PolicySpaces
from hone.control.networks.numpy_policies import LOG_STD_RANGE
from hone.control.networks.offline import twin_q_values
from hone.control.offline import OfflineRunConfig, logged_method
from hone.control.phases import LearningMethod, TdAlgorithm, optimizer_phase, target_update
from hone.control.rows import TransitionRows
from hone.control.value_rows import legal_values
from hone.core.config import new_default
from hone.learner.config import ReplayLearnerConfig
from hone.objectives.offline import cql_penalty, cql_penalty_sampled
from hone.objectives.td import double_target, sac_actor_loss, soft_target, temperature_loss, twin_critic_loss
from hone.objectives.terms import LossTerms, add_terms
from hone.objectives.value import squared_error
from hone.recipes.decision_logs import read_decisions
from hone.recipes.off_policy.sac import soft_phases
from hone.run.job import RecipeSpec


class CqlAlgorithm(TdAlgorithm):
    """The numbers of the paper."""

    conservatism: float = Field(default=5.0, ge=0)
    """Weight of the gap between all actions and the logged one."""
    tau = new_default(0.02)
    samples: int = Field(default=10, ge=1)
    """Actions sampled from each of three proposals, for boxes of actions."""


class CqlConfig(OfflineRunConfig):
    """Conservative Q-learning from a log, over finite actions or a box."""

    read_log = staticmethod(read_decisions)

    network = new_default(
        MlpConfig(hidden=[128, 128], activation="relu"), "The values, and the policy if there is one, have one each."
    )
    learner = new_default(ReplayLearnerConfig(lr=1e-3, lr_decay="linear", max_grad_norm=None))
    algorithm: CqlAlgorithm = CqlAlgorithm()
    """Targets and conservatism."""

    def method(self, spaces: PolicySpaces) -> LearningMethod[QNetworkPolicy] | LearningMethod[SoftActorCritic]:
        """Networks and losses of the recipe for the actions of the log."""
        discrete = isinstance(spaces.actions, DiscreteActions)
        return discrete_method(self, spaces) if discrete else _continuous_method(self, spaces)


# ---------------------------------------------------------------------------------------------- finite actions


def _discrete_objective(policy: QNetworkPolicy, rows: TransitionRows, *, conservatism: float) -> LossTerms:
    """Temporal difference + conservatism * gap, over finite actions."""
    table = policy.values(rows.seen)
    value = table.gather(1, rows.chosen[:, None]).squeeze(1)
    error = squared_error(value, _discrete_target(policy, rows))
    return add_terms(error, cql_penalty(legal_values(table, rows.mask), rows.chosen), weight=conservatism)


@torch.no_grad()
def _discrete_target(policy: QNetworkPolicy, rows: TransitionRows) -> Tensor:
    """`[n]` of double Q-learning, over the legal actions."""
    ahead = legal_values(policy.values(rows.next_seen), rows.next_mask)
    return double_target(rows.reward, rows.discount, ahead, policy.target(rows.next_seen))


def discrete_method(config: CqlConfig, spaces: PolicySpaces) -> LearningMethod[QNetworkPolicy]:
    """Double Q-learning plus the conservative gap, over finite actions."""
    algorithm = config.algorithm
    policy = QNetworkPolicy(spaces, config.network, seed=config.seed).to(config.run.device)
    values = partial(_discrete_objective, conservatism=algorithm.conservatism)
    follow = target_update([(policy.target, policy.values)], tau=algorithm.tau)
    phases = [optimizer_phase("values", values, policy.values.parameters(), config.learner, after_step=follow)]
    return logged_method(config, policy, phases, discount=algorithm.discount)


# ---------------------------------------------------------------------------------------------- boxes


def _continuous_objective(policy: SoftActorCritic, rows: TransitionRows, *, conservatism: float) -> LossTerms:
    """SAC's squared errors + conservatism * the gap of each critic, over a box of actions.

    The critics see the logged action and the proposals of a state in one pass.
    """
    target, actions, density = _proposed_actions(policy, rows)
    every = torch.cat((rows.chosen[:, None], actions), dim=1)
    seen = rows.seen[:, None].expand(-1, every.shape[1], -1)
    x = torch.cat((seen, every), dim=2).flatten(0, 1)  # `[n * (1 + m), size + a]`, state by state
    first, second = (critic(x).view(len(rows), -1) for critic in as_mlps(policy.critics))
    error = twin_critic_loss(first[:, 0], second[:, 0], target)
    gaps = [cql_penalty_sampled(worth[:, 1:], density, worth[:, 0]) for worth in (first, second)]
    loss = error.loss + conservatism * (gaps[0].loss + gaps[1].loss)
    return LossTerms(loss=loss, compute_metrics=lambda: {**error.metrics, **gaps[0].metrics})


@torch.no_grad()
def _proposed_actions(policy: SoftActorCritic, rows: TransitionRows) -> tuple[Tensor, Tensor, Tensor]:
    """The soft target `[n]`, and actions `[n, 3 * samples, a]`: uniform, of the policy here, and of the policy one step
    on, with the logarithms of their densities.

    The policy is asked once per observation, however many actions are drawn.
    """
    count, size = len(rows), policy.action_size
    noise = rows.noise.view(count, -1, size)
    samples = (noise.shape[1] - 2) // 3
    mean, log_std = _gaussian_parameters(policy, torch.cat((rows.seen, rows.next_seen)))
    # The normal distribution function turns a third of the noise into uniform numbers.
    uniform = 2.0 * torch.special.ndtr(noise[:, 2 : 2 + samples]) - 1.0
    # [2, n, 1 + samples, a]: of the policy here and one step on; the first one step on is the target's.
    draws = torch.cat((noise[:, :2].transpose(0, 1)[:, :, None], noise[:, 2 + samples :].view(count, 2, samples, size)
                       .transpose(0, 1)), dim=2)  # fmt: skip
    spread = (one.view(2, count, 1, size).expand(-1, -1, 1 + samples, -1).reshape(-1, size) for one in (mean, log_std))
    centre, log_spread = spread
    drawn, logp = squashed_gaussian(centre, log_spread, centre + log_spread.exp() * draws.reshape(-1, size))
    drawn, logp = drawn.view(2, count, 1 + samples, size), logp.view(2, count, 1 + samples)
    flat = torch.full_like(logp[0, :, 1:], -math.log(2.0) * size)
    first, second = twin_q_values(policy.targets, rows.next_seen, drawn[1, :, 0])
    alpha = policy.log_temperature.exp()
    target = soft_target(rows.reward, rows.discount, torch.minimum(first, second), logp[1, :, 0], alpha)
    actions = torch.cat((uniform, drawn[0, :, 1:], drawn[1, :, 1:]), dim=1)
    return target, actions, torch.cat((flat, logp[0, :, 1:], logp[1, :, 1:]), dim=1)


def _actor_objective(policy: SoftActorCritic, rows: TransitionRows) -> LossTerms:
    """SAC's policy and temperature."""
    mean, log_std = _gaussian_parameters(policy, rows.seen)
    noise = rows.noise[:, : policy.action_size]
    action, logp = squashed_gaussian(mean, log_std, mean + log_std.exp() * noise)
    actor = sac_actor_loss(
        logp, *twin_q_values(policy.critics, rows.seen, action, frozen=True), policy.log_temperature.exp()
    )
    return add_terms(actor, temperature_loss(policy.log_temperature, logp, target_entropy=-float(policy.action_size)))


def _gaussian_parameters(policy: SoftActorCritic, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log standard deviation `[n, a]` of encoded observations."""
    mean, log_std = policy.actor(seen).chunk(2, dim=1)
    return mean, log_std.clamp(*LOG_STD_RANGE)


def _continuous_method(config: CqlConfig, spaces: PolicySpaces) -> LearningMethod[SoftActorCritic]:
    """SAC plus the conservative gap, CQL(H), over a box of actions."""
    algorithm = config.algorithm
    policy = SoftActorCritic(spaces, config.network, seed=config.seed).to(config.run.device)
    critic = partial(_continuous_objective, conservatism=algorithm.conservatism)
    phases = soft_phases(config.learner, policy, critic, _actor_objective, tau=algorithm.tau)
    noise_size = (2 + 3 * algorithm.samples) * policy.action_size
    return logged_method(config, policy, phases, discount=algorithm.discount, noise_size=noise_size)


ENTRY = RecipeSpec(
    summary="offline control: a policy from a log, wary of untried actions",
    paper="Kumar et al., Conservative Q-Learning for Offline Reinforcement Learning, 2020",
    config=CqlConfig,
    limitation="never much better than the best of the log; the weight of its caution must be found per log.",
)
