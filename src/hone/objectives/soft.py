"""Losses of maximum-entropy control: soft action values, the policy, the temperature (SAC, Haarnoja et al., 2018).

All per decision. alpha is the temperature, the price of one nat of entropy.
"""

import torch
from torch import Tensor

from hone.objectives.terms import Terms


@torch.no_grad()
def soft_target(reward: Tensor, discount: Tensor, worth: Tensor, logp: Tensor, alpha: Tensor) -> Tensor:
    """r + discount * (Q'(s', a') - alpha * log pi(a' | s')) `[n]`; `discount` is 0 where the world ended.

    `worth` is the lesser of two slow critics at an action drawn from the policy now, `logp` that action's density.
    """
    return reward + discount * (worth - alpha * logp)


@torch.no_grad()
def soft_greedy_target(reward: Tensor, discount: Tensor, table_slow: Tensor, *, alpha: float) -> Tensor:
    """r + discount * alpha * log sum over a of exp(Q'(s', a) / alpha) `[n]` (soft Q-learning, Haarnoja et al., 2017).

    `table_slow` `[n, k]`; alpha > 0, and towards 0 this is the greedy target. It exceeds the maximum by at most
    alpha * log k: entropy is worth something.
    """
    return reward + discount * alpha * torch.logsumexp(table_slow / alpha, dim=1)


def soft_values(first: Tensor, second: Tensor, target: Tensor) -> Terms:
    """Half the squared errors of both critics, added: ((Q1 - y)^2 + (Q2 - y)^2) / 2. All `[n]`."""
    loss = 0.5 * ((first - target).square() + (second - target).square())
    return Terms(loss=loss, told=lambda: {"value/mean": first.detach()})


def soft_policy(logp: Tensor, first: Tensor, second: Tensor, alpha: Tensor) -> Terms:
    """alpha * log pi(a | s) - min(Q1, Q2)(s, a), reparametrised action. `[n]`; `alpha` `[1]` is data."""
    loss = alpha.detach() * logp - torch.minimum(first, second)
    return Terms(loss=loss, told=lambda: {"policy/entropy_nats": -logp.detach()})


def temperature(log_alpha: Tensor, logp: Tensor, *, target_entropy: float) -> Terms:
    """-log alpha * (log pi + target entropy): alpha rises while the entropy is below its target, in nats.

    `log_alpha` `[1]` carries the gradient, `logp` `[n]` is data.
    """
    loss = -log_alpha * (logp.detach() + target_entropy)
    return Terms(loss=loss, told=lambda: {"policy/temperature": log_alpha.detach().exp().expand(len(logp))})
