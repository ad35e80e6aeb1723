"""Temporal-difference targets (Q-learning, double, clipped double) and parts of dueling networks, DDPG and TD3.

Targets are data: value estimates for the losses of `value.py`, `soft.py` and `distributional.py`. `discount` is 0 at
terminal states, and is a power of gamma for n-step returns; a truncated episode bootstraps. `[n]` against `[n, 1]`
would broadcast to `[n, n]`: the shapes are exact.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hone.objectives.shapes import Actions, PerDecision, Table
from hone.objectives.terms import LossTerms


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
