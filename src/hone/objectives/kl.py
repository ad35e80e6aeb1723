"""Distance to a reference policy, estimated on the tokens that were sampled.

With d = logp - logp_ref on samples of the policy, the estimators of KL(policy || reference) per decision are (Schulman,
"Approximating KL divergence", 2020): k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1. Their *values* all estimate the KL;
their *gradients*, when differentiated as a loss on policy, do not: k1's is 0 in expectation (refused here), k2's is the
gradient of KL(policy || reference), k3's that of KL(reference || policy), and ratio-weighted k3's that of
KL(policy || reference) again, also off policy (DeepSeek-V3.2, 2025).
"""

import torch
from torch import Tensor

LIMIT = 20.0
"""Log-ratios above this are clamped before exp: far beyond it float32 overflows and the backward pass is NaN."""


def k1(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """d, for reporting and for rewards; `[n]` nats, detached: as a loss it would only add noise."""
    return (logp - logp_ref).detach()


def k2(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """d^2 / 2 `[n]` nats."""
    return 0.5 * (logp - logp_ref) ** 2


def k3(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """exp(-d) + d - 1 `[n]` nats; never negative. Differentiated, it lowers KL(reference || policy)."""
    # Clamped from above only: below, exp goes to 0 by itself, and there the policy has drifted and must be pulled back.
    difference = (logp_ref - logp).clamp(max=LIMIT)
    return difference.exp() - difference - 1


def weighted_k3(logp: Tensor, logp_ref: Tensor, *, logp_old: Tensor) -> Tensor:
    """exp(logp - logp_old) * k3 `[n]` nats, the ratio differentiated: unbiased for KL(policy || reference)."""
    return torch.exp((logp - logp_old).clamp(-LIMIT, LIMIT)) * k3(logp, logp_ref)
