"""Trust regions by divergence: decisions whose probability has changed too far get no gradient.

Divergences of one decision's distribution and the masks made from them (DPPO), and the loss under a bound on the second
moment of a batch's log-ratios (M2PO). A ratio is a poor measure of distance: from 1e-5 to 3e-5 it is 3 and harmless,
from 0.5 to 0.99 it is 2 and moves half of the probability mass.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hone.objectives.ratios import at_least_float32, logp_difference, ratio, ratio_metrics
from hone.objectives.terms import Flags, LossTerms, Multiplier, PerDecision, TopKLogps

LEAST_PROBABILITY = 1e-8
"""Floor of the probability of all unlisted tokens together, before its logarithm is taken."""


def _rest(listed: PerDecision) -> PerDecision:
    """Probability of everything but the listed tokens; never below LEAST_PROBABILITY."""
    return (1.0 - listed).clamp(min=LEAST_PROBABILITY)


def _beside(logp: PerDecision) -> PerDecision:
    """1 - exp(logp), without cancellation where logp is near 0."""
    return (-torch.expm1(logp)).clamp(min=LEAST_PROBABILITY)


@torch.no_grad()
def binary_tv(now: PerDecision, then: PerDecision) -> PerDecision:
    """|p - q|: total variation between "this token" and "any other", p = exp(now), q = exp(then)."""
    return (at_least_float32(now).exp() - at_least_float32(then).exp()).abs()


@torch.no_grad()
def binary_kl(now: PerDecision, then: PerDecision) -> PerDecision:
    """q log(q / p) + (1 - q) log((1 - q) / (1 - p)) nats: KL(then || now) of the same two outcomes."""
    p, q = at_least_float32(now), at_least_float32(then)
    other = _beside(q)
    return q.exp() * (q - p) + other * (other.log() - _beside(p).log())


@torch.no_grad()
def top_k_tv(
    now: PerDecision, then: PerDecision, top_now: TopKLogps, top_then: TopKLogps, listed: Flags
) -> PerDecision:
    """Total variation between distributions over the K listed tokens, the chosen one, and all others as one.

    `top_now`, `top_then` nats of the same K tokens (the most likely under the behaviour policy); `listed`: the chosen
    token is one of them. At most the full distributions' distance, at least `binary_tv`.
    """
    p, q = _buckets(now, top_now, listed).exp(), _buckets(then, top_then, listed).exp()
    rest = (p.sum(dim=1) - q.sum(dim=1)).abs()
    return 0.5 * ((p - q).abs().sum(dim=1) + rest)


@torch.no_grad()
def top_k_kl(
    now: PerDecision, then: PerDecision, top_now: TopKLogps, top_then: TopKLogps, listed: Flags
) -> PerDecision:
    """KL(then || now) in nats over the same outcomes as `top_k_tv`; at most the full distributions' KL."""
    p, q = _buckets(now, top_now, listed), _buckets(then, top_then, listed)
    inside = torch.where(q == -torch.inf, 0.0, q.exp() * (q - p)).sum(dim=1)
    left = _rest(q.exp().sum(dim=1))
    return inside + left * (left.log() - _rest(p.exp().sum(dim=1)).log())


def _buckets(chosen: PerDecision, top: TopKLogps, listed: Flags) -> Float[Tensor, "n K+1"]:
    """Nats: the listed tokens, and the chosen one where it is none of them (else probability 0)."""
    own = at_least_float32(chosen).masked_fill(listed, -torch.inf)
    return torch.cat([at_least_float32(top), own[:, None]], dim=1)


@torch.no_grad()
def trust_region_mask(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    divergence: PerDecision,
    *,
    max_increase: float,
    max_decrease: float,
) -> Flags:
    """False where the advantage pushes a decision further that has already moved too far.

    That is: A > 0, now > then and divergence > `max_increase`; or A < 0, now < then and divergence > `max_decrease`.
    Gradients back towards `then` are always kept.
    """
    rising = (advantage > 0) & (now > then) & (divergence > max_increase)
    falling = (advantage < 0) & (now < then) & (divergence > max_decrease)
    return ~(rising | falling)


def dppo(
    now: PerDecision, then: PerDecision, advantage: PerDecision, keep: Flags, *, ratio_cap: float | None = None
) -> LossTerms:
    """-keep * sg[min(r, ratio_cap)] * A * log p: divergence proximal policy optimisation (2026, 2602.04879).

    `keep` from `trust_region_mask`, with any divergence; `then` is the behaviour policy's log-probability, for mask and
    ratio both. `ratio_cap` is off: the paper warns of the bias of truncation (verl's example: 10,000). Metrics: share
    of decisions whose gradient is masked, share of ratios capped, KL, largest ratio.
    """
    r = ratio(now, then).detach()
    bounded = r if ratio_cap is None else r.clamp(max=ratio_cap)

    def compute_metrics() -> dict[str, PerDecision]:
        return {
            "policy/clip_fraction": (~keep & (advantage != 0)).to(r.dtype),
            "policy/capped_fraction": (bounded < r).to(r.dtype),
            **ratio_metrics(r, logp_difference(now, then)),
        }

    return LossTerms(
        loss=-torch.where(keep, bounded, 0.0) * advantage * at_least_float32(now), compute_metrics=compute_metrics
    )


def dppo_tv(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    *,
    max_increase: float = 0.15,
    max_decrease: float = 0.15,
    ratio_cap: float | None = None,
) -> LossTerms:
    """`dppo`, masked where the chosen token's probability has changed by more than 0.15 (Binary-TV).

    0.15 is verl's example; the paper's own threshold could not be read (prime-rl and SkyRL run 0.2).
    """
    keep = trust_region_mask(
        now, then, advantage, binary_tv(now, then), max_increase=max_increase, max_decrease=max_decrease
    )
    return dppo(now, then, advantage, keep, ratio_cap=ratio_cap)


def dppo_kl(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    *,
    max_increase_nats: float = 0.05,
    max_decrease_nats: float = 0.05,
    ratio_cap: float | None = None,
) -> LossTerms:
    """`dppo`, masked where KL(then || now) of the chosen token against all others exceeds 0.05 nats (Binary-KL).

    0.05 is verl's example; the paper's own threshold could not be read.
    """
    keep = trust_region_mask(
        now, then, advantage, binary_kl(now, then), max_increase=max_increase_nats, max_decrease=max_decrease_nats
    )
    return dppo(now, then, advantage, keep, ratio_cap=ratio_cap)


def m2po(now: PerDecision, then: PerDecision, advantage: PerDecision, keep: Multiplier) -> LossTerms:
    """-keep * r * A: second-moment trust policy optimisation (M2PO, Zheng et al., 2025, 2510.01161).

    `keep` (0 or 1) from `selection.second_moment_mask`, chosen over the whole batch of the optimizer step; no ratio is
    clipped, and dropped decisions stay in the denominator. Made for stale data: a few outliers are left out instead of
    every token past a clip.
    """
    r = ratio(now, then)
    kept = keep != 0

    def compute_metrics() -> dict[str, PerDecision]:
        stopped = (~kept & (advantage != 0)).to(r.dtype)
        return {"policy/clip_fraction": stopped, **ratio_metrics(r, logp_difference(now, then))}

    return LossTerms(loss=torch.where(kept, -advantage * r, 0.0), compute_metrics=compute_metrics)
