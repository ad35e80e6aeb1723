"""Losses of maximum-entropy control: soft action values, the policy, the temperature (SAC, Haarnoja et al., 2018).

One term per decision. alpha is the temperature, the coefficient of the entropy in nats.
"""

import torch

from hone.objectives.shapes import One, PerDecision, Shared
from hone.objectives.terms import LossTerms


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


def temperature_loss(log_alpha: One, logp: PerDecision, *, target_entropy: float) -> LossTerms:
    """-log alpha * (log pi + target entropy): alpha rises while the entropy is below its target, in nats.

    `log_alpha` carries the gradient, `logp` is data.
    """
    loss = -log_alpha * (logp.detach() + target_entropy)
    return LossTerms(
        loss=loss, compute_metrics=lambda: {"policy/temperature": log_alpha.detach().exp().expand(len(logp))}
    )
