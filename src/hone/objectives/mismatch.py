"""Corrections for an engine and a trainer that disagree about one and the same policy.

Belongs here: factors made of proximal - then (the trainer's log-probabilities at the start of the update, minus those
that the engine recorded) that multiply a loss. Everything is data, nothing has a gradient. A statistic of the log-ratio
(a token's own, the sum over its sequence, the mean over its sequence) is turned into a factor: truncated, masked, or
0 / 1. "Sequence-level importance sampling" is the product in some libraries and the geometric mean in others; the two
have different names here. What a factor drops stays in the denominator of the loss (`terms.scaled`): with a denominator
that shrinks, dropping decisions would make the others count for more.

Not together with a ratio that is already taken against whoever acted (`clipped_surrogate(now, acted, ...)`): that would
correct twice. `proximal`, `then` in nats.
"""

import torch

from hone.objectives.ratios import (
    LOG_RATIO_LIMIT,
    at_least_float32,
    logp_difference,
    sequence_max,
    sequence_mean,
    sequence_sum,
)
from hone.objectives.shapes import Indices, Multiplier, PerDecision
from hone.objectives.terms import LossTerms, scale_terms
from hone.objectives.trust import binary_kl


@torch.no_grad()
def token_log_ratio(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """A decision's own log-ratio, within 20 nats."""
    return logp_difference(proximal, then).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@torch.no_grad()
def sequence_log_ratio(proximal: PerDecision, then: PerDecision, sequence: Indices) -> PerDecision:
    """Log of the product of the sequence's ratios, within 20 nats; unbiased, and explosive with length."""
    return sequence_sum(logp_difference(proximal, then), sequence).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@torch.no_grad()
def geometric_log_ratio(proximal: PerDecision, then: PerDecision, sequence: Indices) -> PerDecision:
    """Log of the geometric mean of the sequence's ratios, within 20 nats; the same scale at any length."""
    return sequence_mean(logp_difference(proximal, then), sequence).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@torch.no_grad()
def max_abs_log_ratio(proximal: PerDecision, then: PerDecision, sequence: Indices) -> PerDecision:
    """The largest |log-ratio| in the sequence, at most 20 nats, for rejecting answers that hold one absurd token."""
    return sequence_max(logp_difference(proximal, then).abs(), sequence).clamp(max=LOG_RATIO_LIMIT)


def truncated_weight(log_ratio: PerDecision, *, weight_cap: float) -> PerDecision:
    """min(exp(reference_log_ratio), weight_cap): biased where it is capped, bounded in variance."""
    return log_ratio.exp().clamp(max=weight_cap)


def masked_weight(log_ratio: PerDecision, *, weight_floor: float, weight_cap: float) -> PerDecision:
    """exp(reference_log_ratio) where it lies in [weight_floor, weight_cap], else 0."""
    weight = log_ratio.exp()
    return torch.where((weight >= weight_floor) & (weight <= weight_cap), weight, 0.0)


def ratio_in_range(log_ratio: PerDecision, *, ratio_floor: float, ratio_cap: float) -> PerDecision:
    """1 where exp(reference_log_ratio) lies in [ratio_floor, ratio_cap], else 0: rejection, no weight.

    The ratio is trainer / engine. verl bounds its inverse: asymmetric bounds have to be turned over (`presets.py`).
    """
    weight = log_ratio.exp()
    return ((weight >= ratio_floor) & (weight <= ratio_cap)).to(log_ratio.dtype)


def truncated_is(proximal: PerDecision, then: PerDecision, *, weight_cap: float = 2.0) -> PerDecision:
    """min(rho, 2), rho = exp(proximal - then): truncated importance sampling (Yao et al., 2025)."""
    return truncated_weight(token_log_ratio(proximal, then), weight_cap=weight_cap)


def masked_is(
    proximal: PerDecision, then: PerDecision, *, weight_floor: float = 0.0, weight_cap: float = 2.0
) -> PerDecision:
    """rho where it is at most 2, else 0: masked importance sampling by token (2025); dropped, not capped."""
    return masked_weight(token_log_ratio(proximal, then), weight_floor=weight_floor, weight_cap=weight_cap)


def icepop(
    proximal: PerDecision, then: PerDecision, *, weight_floor: float = 0.5, weight_cap: float = 5.0
) -> PerDecision:
    """rho where it lies in [0.5, 5], else 0 (IcePop, Ant Group, 2025; bounds as AReaL, NeMo-RL, verl)."""
    return masked_weight(token_log_ratio(proximal, then), weight_floor=weight_floor, weight_cap=weight_cap)


@torch.no_grad()
def kpop(proximal: PerDecision, then: PerDecision, *, max_divergence_nats: float = 2.0) -> PerDecision:
    """rho where KL(p || q) + KL(q || p) of "this token or another" is at most `most_nats`, else 0 (KPop, 2026).

    A fixed region of ratios masks less and less as the engine drifts on rare tokens; a divergence does not. The bound
    is AReaL's documented one (binary_kl, 2.0); the original's could not be read.
    """
    divergence = binary_kl(proximal, then) + binary_kl(then, proximal)
    return torch.where(divergence <= max_divergence_nats, token_log_ratio(proximal, then).exp(), 0.0)


def sequence_truncated_is(
    proximal: PerDecision, then: PerDecision, sequence: Indices, *, weight_cap: float = 2.0
) -> PerDecision:
    """min(product of the sequence's rho, 2) (verl's sequence level)."""
    return truncated_weight(sequence_log_ratio(proximal, then, sequence), weight_cap=weight_cap)


def sequence_masked_is(
    proximal: PerDecision, then: PerDecision, sequence: Indices, *, weight_floor: float = 0.0, weight_cap: float = 3.0
) -> PerDecision:
    """Product of the sequence's rho where it is at most 3, else 0 (TRL's default, sequence_mask)."""
    return masked_weight(sequence_log_ratio(proximal, then, sequence), weight_floor=weight_floor, weight_cap=weight_cap)


def geometric_truncated_is(
    proximal: PerDecision, then: PerDecision, sequence: Indices, *, weight_cap: float = 2.0
) -> PerDecision:
    """min(geometric mean of the sequence's rho, 2) (what AReaL and ms-swift call sequence level)."""
    return truncated_weight(geometric_log_ratio(proximal, then, sequence), weight_cap=weight_cap)


def geometric_rejection(
    proximal: PerDecision, then: PerDecision, sequence: Indices, *, ratio_floor: float = 0.999, ratio_cap: float = 1.001
) -> PerDecision:
    """1 where the geometric mean of the sequence's rho lies in [0.999, 1.001], else 0 (geometric rejection)."""
    return ratio_in_range(geometric_log_ratio(proximal, then, sequence), ratio_floor=ratio_floor, ratio_cap=ratio_cap)


@torch.no_grad()
def off_policy_sequence_mask(
    now: PerDecision, acted: PerDecision, advantage: PerDecision, sequence: Indices, *, max_kl_nats: float = 0.5
) -> PerDecision:
    """0 where A < 0 and the sequence's mean of acted - now exceeds `most_nats`, else 1 (DeepSeek-V3.2, 2025).

    Off-policy sequence masking: failures that the policy would hardly write any more teach it nothing. Praised answers
    are kept however old. The paper gives no bound; 0.5 is what TRL's documentation suggests (slime runs 1e-4). It looks
    at the policy as it is now, so it is computed with the loss, and only within a sequence.
    """
    far = sequence_mean(logp_difference(acted, now), sequence) > max_kl_nats
    return (~(far & (advantage < 0))).to(at_least_float32(now).dtype)


def with_mismatch_correction(terms: LossTerms, factor: Multiplier) -> LossTerms:
    """factor * loss, and what the factor did: its effective sample size, its largest value, the share of zeros."""
    data = at_least_float32(factor).detach()
    together = scale_terms(terms, data)
    return LossTerms(
        loss=together.loss,
        compute_metrics=lambda: {
            **together.metrics,
            "mismatch/weight_ess": data,
            "mismatch/weight_max": data,
            "mismatch/dropped_fraction": (data == 0).to(data.dtype),
        },
    )
