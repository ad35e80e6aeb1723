"""Losses on the log-probability of what was decided: the clipped surrogate and its neighbours, per decision.

Belongs here: terms that need only the log-probability now and then, and an advantage; they serve control and tokens
alike. `now` carries the gradient, everything else is data.
"""

import torch
from torch import Tensor

from hone.objectives.terms import Terms

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are capped here before `exp`, so that one absurd decision is a large number and not infinity."""


def ratio(now: Tensor, then: Tensor) -> Tensor:
    """`[n]` importance ratio exp(now - then), the log-ratio capped at 20 nats (no gradient beyond)."""
    return torch.exp((now - then).clamp(max=LOG_RATIO_LIMIT))


def clipped(now: Tensor, then: Tensor, advantage: Tensor, *, low: float, high: float) -> Terms:
    """Clipped surrogate: -min(r * A, clip(r, 1 - low, 1 + high) * A), r = exp(now - then).

    The gradient vanishes exactly where A > 0 and r > 1 + high, or A < 0 and r < 1 - low: there the policy has moved far
    enough. `low` and `high` apart is "clip higher" (DAPO, 2025). Source: PPO, Schulman et al., 2017.

    Args: `now`, `then` `[n]` nats; `advantage` `[n]`. Metrics: share of decisions without gradient, the estimate
    r - 1 - log r of KL(then || now) in nats, the largest ratio.
    """
    r = ratio(now, then)
    cost = -advantage
    free = cost * r
    with torch.no_grad():
        held = cost * r.clamp(1.0 - low, 1.0 + high)
        stopped = held > free  # the other branch is the larger: the gradient has stopped
    return Terms(
        loss=torch.where(stopped, held, free),
        told=lambda: {
            "policy/clip_fraction": stopped.to(r.dtype),
            "policy/kl_nats": (r - 1.0) - (now - then),
            "policy/ratio_max": r.detach(),
        },
    )


def reinforce(now: Tensor, advantage: Tensor) -> Terms:
    """-A * log p: the policy gradient itself (Williams, 1992). `now`, `advantage` `[n]`."""
    return Terms(loss=-advantage * now)
