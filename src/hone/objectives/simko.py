"""SimKO: probability is spread over the top candidates of right answers, and the top of wrong ones is held back.

Belongs here: the loss of "Simple Pass@K Policy Optimization" (Peng et al., 2025, 2510.14807), which needs the
log-probabilities of the K likeliest tokens beside the chosen one.
"""

from dataclasses import dataclass

import torch

from hone.objectives.policy import surrogate
from hone.objectives.ratios import drift, gap, ratio, sequence_quantile, widened
from hone.objectives.shapes import Flags, Indices, PerDecision, Top
from hone.objectives.terms import Terms

TINY = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The K tokens likeliest under the policy at the start of the update, at each decision."""

    now: Top
    """Nats, with gradient."""
    then: Top
    """Nats of the same tokens: they are matched by id, never by rank."""
    first: Flags
    """The chosen token is the likeliest of them."""


def forking(entropy: PerDecision, sequence: Indices, *, share: float = 0.8) -> Flags:
    """Decisions whose entropy is above that quantile of their own answer."""
    return widened(entropy).detach() > sequence_quantile(widened(entropy), sequence, share)


def simko(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    candidates: Candidates,
    forks: Flags,
    *,
    mix: float = 0.01,
    boost: float = 1.1,
) -> Terms:
    """PPO's clip (0.2) of r' and A', at `forks` only; elsewhere of r and A.

    Right answers (A > 0): r' = (1 - mix) r + mix / K * sum over k of sg[r / r_k] r_k. Its value is r; of the gradient,
    a part `mix` is spread evenly over the K candidates. Wrong answers (A < 0): A' = boost * A where the chosen token is
    the likeliest, which keeps the policy from falling from one sure answer into another. The sign of the advantage
    stands for right and wrong: in a group with both, it is. Weights: `token_mean`. Metrics as PPO's.
    """
    r = ratio(now, then)
    others = ratio(candidates.now, candidates.then)
    share = r.detach()[:, None] / (others.detach() + TINY)
    spread = (1.0 - mix) * r + mix * (share * others).mean(dim=1)
    mixed = torch.where(forks & (advantage > 0), spread, r)
    pressed = torch.where(forks & (advantage < 0) & candidates.first, boost * advantage, advantage)
    loss, stopped = surrogate(mixed, pressed, low=0.2, high=0.2)
    return Terms(
        loss=loss,
        told=lambda: {
            "policy/clip_fraction": stopped.to(r.dtype),
            "policy/fork_fraction": forks.to(r.dtype),
            **drift(r, gap(now, then)),
        },
    )
