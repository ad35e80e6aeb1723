"""Temporal-difference targets (Q-learning, double, clipped double) and parts of dueling networks, DDPG and TD3.

Targets are data: value estimates for the losses of `value.py` and `distributional.py`, and of SAC below. `discount` is
0 at terminal states, and is a power of gamma for n-step returns; a truncated episode bootstraps. `[n]` against `[n, 1]`
would broadcast to `[n, n]`: the shapes are exact.

Maximum-entropy control (SAC, Haarnoja et al., 2018): alpha is the temperature, the coefficient of the entropy in nats.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hone.objectives.terms import Actions, LossTerms, One, PerDecision, Shared, Table


@torch.no_grad()
def td_target(reward: PerDecision, discount: PerDecision, worth: Float[Tensor, " n *k"]) -> Float[Tensor, " n *k"]:
    """r + discount * value of the next state: one number, or k quantiles, which all shift alike."""
    if worth.dim() == 2:
        reward, discount = reward[:, None], discount[:, None]
    return reward + discount * worth


@torch.no_grad()
def greedy_target(reward: PerDecision, discount: PerDecision, table_slow: Table) -> PerDecision:
    """r + discount * max over a of Q_target(s', a) (Q-learning, Watkins, 1989; DQN, Mnih et al., 2015).

    The maximum of noisy values is biased upwards; `double_target` avoids that.
    """
    return reward + discount * table_slow.amax(dim=1)


@torch.no_grad()
def double_target(reward: PerDecision, discount: PerDecision, table_now: Table, table_slow: Table) -> PerDecision:
    """r + discount * Q_target(s', argmax Q(s', .)) (double Q-learning, van Hasselt et al., 2016).

    Both tables are values of the next observation, of the learning and of the target network. Actions are excluded by
    -inf in `table_now` alone (`constraint.bcq_admissible_actions`), since only its argmax is looked up.
    """
    best = table_now.argmax(dim=1, keepdim=True)
    return reward + discount * table_slow.gather(1, best).squeeze(1)


@torch.no_grad()
def rescaled_target(
    reward: PerDecision, discount: PerDecision, worth: PerDecision, *, epsilon: float = 1e-3
) -> PerDecision:
    """h(r + discount * h^-1(value of the next state)): returns of any size are learned on one scale (Pohlen et al.,
    2018; R2D2). h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, and
    h^-1(y) = sign(y) (((sqrt(1 + 4 epsilon (|y| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1).
    """
    root = (1.0 + 4.0 * epsilon * (worth.abs() + 1.0 + epsilon)).sqrt()
    unscaled = worth.sign() * (((root - 1.0) / (2.0 * epsilon)).square() - 1.0)
    x = reward + discount * unscaled
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + epsilon * x


@torch.no_grad()
def twin_target(reward: PerDecision, discount: PerDecision, first: PerDecision, second: PerDecision) -> PerDecision:
    """r + discount * min(Q1', Q2') of target critics at `smoothed_action` (clipped double Q-learning of TD3, Fujimoto
    et al., 2018). The critics' loss is `soft.twin_critic_loss`.
    """
    return reward + discount * torch.minimum(first, second)


@torch.no_grad()
def smoothed_action(
    action: Actions, noise: Actions, *, scale: float = 0.2, limit: float = 0.5, low: float = -1.0, high: float = 1.0
) -> Actions:
    """clip(pi'(s') + clip(scale * noise, ±limit), low, high): target policy smoothing (TD3).

    `noise` is standard normal, stored with the rows. The paper's widths are for actions in [-1, 1].
    """
    return (action + (scale * noise).clamp(-limit, limit)).clamp(low, high)


def ddpg_actor_loss(worth: PerDecision) -> LossTerms:
    """-Q1(s, pi(s)): the deterministic policy gradient (Silver et al., 2014), TD3's and DDPG's actor loss.

    `worth` carries the gradient to the actions only. TD3 applies it on every second update of the critics.
    """
    return LossTerms(loss=-worth, compute_metrics=lambda: {"policy/q_value": worth.detach()})


def dueling(value: PerDecision, advantage: Table) -> Table:
    """Q(s, a) = V(s) + A(s, a) - mean over a of A(s, .) (dueling networks, Wang et al., 2016).

    Without the mean, V and A would be determined only up to a constant.
    """
    return value[:, None] + advantage - advantage.mean(dim=1, keepdim=True)


# ----------------------------------------------------------------------------------------------------------------- soft


@torch.no_grad()
def soft_target(
    reward: PerDecision, discount: PerDecision, worth: PerDecision, logp: PerDecision, alpha: Shared
) -> PerDecision:
    """r + discount * (Q'(s', a') - alpha * log pi(a' | s')); `discount` is 0 at terminal states.

    `worth` is the minimum of two target critics at an action sampled from the current policy, `logp` that action's
    log-density.
    """
    return reward + discount * (worth - alpha * logp)


def twin_critic_loss(first: PerDecision, second: PerDecision, target: PerDecision) -> LossTerms:
    """Half the squared errors of both critics, added: ((Q1 - y)^2 + (Q2 - y)^2) / 2."""
    loss = 0.5 * ((first - target).square() + (second - target).square())
    return LossTerms(loss=loss, compute_metrics=lambda: {"value/mean": first.detach()})


def sac_actor_loss(logp: PerDecision, first: PerDecision, second: PerDecision, alpha: Shared) -> LossTerms:
    """alpha * log pi(a | s) - min(Q1, Q2)(s, a), reparametrised action; `alpha` is data."""
    loss = alpha.detach() * logp - torch.minimum(first, second)
    return LossTerms(loss=loss, compute_metrics=lambda: {"policy/entropy_nats": -logp.detach()})


def temperature_loss(log_alpha: One, logp: PerDecision, *, target_entropy: float | PerDecision) -> LossTerms:
    """-log alpha * (log pi + target entropy): alpha rises while the entropy is below its target, in nats: one
    number for all decisions, or one for each.

    `log_alpha` carries the gradient, `logp` is data.
    """
    loss = -log_alpha * (logp.detach() + target_entropy)
    return LossTerms(
        loss=loss, compute_metrics=lambda: {"policy/temperature": log_alpha.detach().exp().expand(len(logp))}
    )
