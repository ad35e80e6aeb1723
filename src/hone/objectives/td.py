"""Temporal-difference targets and what goes with them: Q-learning, double, twin, dueling, TD3.

Targets are data: what a decision is now thought to be worth, for the losses of `value.py`, `soft.py` and
`distributional.py`. `discount` is 0 where the world ended, and carries the power of n-step returns; a truncated episode
is not ended. `[n]` against `[n, 1]` would spread to `[n, n]` without a word: the shapes are exact.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hone.objectives.shapes import Actions, PerDecision, Table
from hone.objectives.terms import LossTerms


@torch.no_grad()
def td_target(reward: PerDecision, discount: PerDecision, worth: Float[Tensor, " n *k"]) -> Float[Tensor, " n *k"]:
    """r + discount * worth of what follows: one number, or k quantiles, which all move alike."""
    if worth.dim() == 2:
        reward, discount = reward[:, None], discount[:, None]
    return reward + discount * worth


@torch.no_grad()
def greedy_target(reward: PerDecision, discount: PerDecision, table_slow: Table) -> PerDecision:
    """r + discount * max over a of Q_slow(s', a) (Q-learning, Watkins, 1989; DQN, Mnih et al., 2015).

    The maximum of noisy values is too high on average; `double_target` is not.
    """
    return reward + discount * table_slow.amax(dim=1)


@torch.no_grad()
def double_target(reward: PerDecision, discount: PerDecision, table_now: Table, table_slow: Table) -> PerDecision:
    """r + discount * Q_slow(s', argmax Q_now(s', .)) (double Q-learning, van Hasselt et al., 2016).

    `table_now`, `table_slow` are values of what was seen next. Actions are ruled out by -inf in `table_now` alone
    (`offline.admissible`): what is never chosen is never looked up.
    """
    best = table_now.argmax(dim=1, keepdim=True)
    return reward + discount * table_slow.gather(1, best).squeeze(1)


@torch.no_grad()
def twin_target(reward: PerDecision, discount: PerDecision, first: PerDecision, second: PerDecision) -> PerDecision:
    """r + discount * min(Q1', Q2') of slow critics at `smoothed_action` (clipped double Q-learning of TD3, Fujimoto et
    al., 2018). The critics' loss is `soft.soft_values`.
    """
    return reward + discount * torch.minimum(first, second)


@torch.no_grad()
def smoothed_action(
    action: Actions, noise: Actions, *, scale: float = 0.2, limit: float = 0.5, low: float = -1.0, high: float = 1.0
) -> Actions:
    """clip(pi'(s') + clip(scale * noise, ±limit), low, high): target policy smoothing (TD3).

    `noise` is standard normal, which travels with the rows. The paper's widths are for actions in [-1, 1].
    """
    return (action + (scale * noise).clamp(-limit, limit)).clamp(low, high)


def ddpg_actor_loss(worth: PerDecision) -> LossTerms:
    """-Q1(s, pi(s)): the deterministic policy gradient (Silver et al., 2014), TD3's and DDPG's actor.

    `worth` carries the gradient to the actions only. TD3 steps it on every second update of the critics.
    """
    return LossTerms(loss=-worth, compute_metrics=lambda: {"policy/worth": worth.detach()})


def dueling(value: PerDecision, advantage: Table) -> Table:
    """Q(s, a) = V(s) + A(s, a) - mean over a of A(s, .) (dueling networks, Wang et al., 2016).

    Without the mean, V and A could trade any constant.
    """
    return value[:, None] + advantage - advantage.mean(dim=1, keepdim=True)
