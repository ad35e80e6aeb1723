"""SimKO: spreads probability over the top-K candidates of right answers, and penalises the top-1 of wrong ones more.

Loss of "Simple Pass@K Policy Optimization" (Peng et al., 2025, 2510.14807), which needs the log-probabilities of the K
most likely tokens besides the sampled one.
"""

from dataclasses import dataclass

import torch

from hone.objectives.policy import surrogate
from hone.objectives.ratios import at_least_float32, logp_difference, ratio, ratio_metrics, sequence_quantile
from hone.objectives.shapes import Flags, Indices, PerDecision, TopKLogps
from hone.objectives.terms import LossTerms

TINY = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKCandidates:
    """The K most likely tokens under the policy at the start of the update, at each decision."""

    logp: TopKLogps
    """Nats, with gradient."""
    old_logp: TopKLogps
    """Nats of the same tokens: they are matched by id, never by rank."""
    drawn_is_top: Flags
    """The sampled token is the most likely of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimkoStrength:
    """How far SimKO departs from PPO's loss, and the clip of both: the numbers of the authors' scripts."""

    smoothing: float = 0.01
    """`mix`: share of the gradient of right answers that is spread over the candidates."""
    penalty_scale: float = 1.1
    """`boost`: factor of the advantage of wrong answers whose likeliest token was chosen."""
    low: float = 0.2
    """Clip width below a ratio of 1."""
    high: float = 0.2
    """Clip width above a ratio of 1."""
    negative_cap: float | None = None
    """Dual clip: ratio beyond which a punished token is punished no more; None: none."""


FROM_THE_SCRIPTS = SimkoStrength()


def forking_tokens(entropy: PerDecision, sequence: Indices, *, quantile: float = 0.8) -> Flags:
    """Flags of decisions whose entropy is above that quantile of their own answer."""
    return at_least_float32(entropy) > sequence_quantile(at_least_float32(entropy), sequence, quantile)


def simko(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    candidates: TopKCandidates,
    forks: Flags,
    strength: SimkoStrength = FROM_THE_SCRIPTS,
) -> LossTerms:
    """PPO's clipped surrogate (0.2) of r' and A' at `forks`, and of r and A elsewhere.

    Right answers (A > 0): r' = (1 - mix) r + mix / K * sum over k of sg[r / r_k] r_k. Its value is r; a share `mix` of
    the gradient is spread evenly over the K candidates. Wrong answers (A < 0): A' = boost * A where the sampled token
    is the most likely, which keeps the policy from moving from one certain wrong answer to another. The sign of the
    advantage marks right and wrong, as it does in a group with both. Clip widths and dual clip are those of
    `clipped_surrogate`, of r' and A'. Weights: `token_mean`. Metrics as PPO's.
    """
    r, mix = ratio(now, then), strength.smoothing
    others = ratio(candidates.logp, candidates.old_logp)
    share = r.detach()[:, None] / (others.detach() + TINY)
    spread = (1.0 - mix) * r + mix * (share * others).mean(dim=1)
    mixed = torch.where(forks & (advantage > 0), spread, r)
    boosted = strength.penalty_scale * advantage
    pressed = torch.where(forks & (advantage < 0) & candidates.drawn_is_top, boosted, advantage)
    low, high, cap = strength.low, strength.high, strength.negative_cap
    loss, stopped = surrogate(mixed, pressed, low=low, high=high, negative_cap=cap)
    return LossTerms(
        loss=loss,
        compute_metrics=lambda: {
            "policy/clip_fraction": stopped.to(r.dtype),
            "policy/fork_fraction": forks.to(r.dtype),
            **ratio_metrics(r, logp_difference(now, then)),
        },
    )
