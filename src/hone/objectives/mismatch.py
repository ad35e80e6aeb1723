"""Corrections for the mismatch between the log-probabilities of the inference engine and of the trainer.

Factors of proximal - then (the trainer's log-probabilities at the start of the update minus those that the engine
recorded, in nats) that multiply a loss. All are data, without gradient. A statistic of the log-ratio (of the token, its
sum or its mean over the sequence) becomes a factor: truncated, masked, or 0 / 1. "Sequence-level importance sampling"
is the product in some libraries and the geometric mean in others; the two have different names here. Dropped decisions
stay in the denominator of the loss (`terms.scale_terms`): with a denominator that shrinks, dropping decisions increases
the weight of the others (in recipes `learner.ratio.count_rejected = false`, for rejections).

Not together with a ratio that is already against the behaviour policy (`clipped_surrogate(now, then, ...)`): that would
correct twice.

Rejection by divergence: with d = proximal - then in nats (the trainer's log-probability at the start of the update
minus the recorded one), on tokens of the engine: k1 = -d and k3 = exp(d) - 1 - d estimate KL(engine || trainer) without
bias, k2 = d^2 / 2 with bias (Schulman, "Approximating KL divergence", 2020). The result is 1 where an answer or token
is kept and 0 where it is rejected: a mask without an importance weight. Rejected tokens stay in the denominator of the
loss, as in AReaL; verl takes them out of it, and so does `learner.ratio.count_rejected = false`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from hone.objectives.ratios import LOG_RATIO_LIMIT, at_least_float32, logp_difference, sequence_mean, sequence_sum
from hone.objectives.terms import Indices, LossTerms, Metrics, Multiplier, PerDecision, scale_terms
from hone.objectives.trust import binary_kl

SMALLEST_MEAN = 1e-8
"""Mean weight up to which weights are not normalised: nearly all of them are 0."""


@torch.no_grad()
def token_log_ratio(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """Log-ratio of each decision, within 20 nats."""
    return logp_difference(proximal, then).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@torch.no_grad()
def sequence_log_ratio(proximal: PerDecision, then: PerDecision, sequence: Indices) -> PerDecision:
    """Log of the product of the sequence's ratios, within 20 nats; unbiased; its variance explodes with length."""
    return sequence_sum(logp_difference(proximal, then), sequence).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@torch.no_grad()
def geometric_log_ratio(proximal: PerDecision, then: PerDecision, sequence: Indices) -> PerDecision:
    """Log of the geometric mean of the sequence's ratios, within 20 nats; the same scale at any length."""
    return sequence_mean(logp_difference(proximal, then), sequence).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def truncated_weight(log_ratio: PerDecision, *, weight_cap: float, weight_floor: float = 0.0) -> PerDecision:
    """exp(log_ratio), at most `weight_cap` and at least `weight_floor`: biased where it is bounded, of bounded
    variance.
    """
    return log_ratio.exp().clamp(min=weight_floor, max=weight_cap)


def masked_weight(log_ratio: PerDecision, *, weight_floor: float, weight_cap: float) -> PerDecision:
    """exp(log_ratio) where it is within [weight_floor, weight_cap], else 0."""
    weight = log_ratio.exp()
    return torch.where((weight >= weight_floor) & (weight <= weight_cap), weight, 0.0)


def ratio_in_range(log_ratio: PerDecision, *, ratio_floor: float, ratio_cap: float) -> PerDecision:
    """1 where exp(log_ratio) is within [ratio_floor, ratio_cap], else 0: rejection without a weight.

    The ratio is trainer / engine. verl bounds its inverse: asymmetric bounds have to be inverted.
    """
    weight = log_ratio.exp()
    return ((weight >= ratio_floor) & (weight <= ratio_cap)).to(log_ratio.dtype)


def truncated_is(
    proximal: PerDecision, then: PerDecision, *, weight_cap: float = 2.0, weight_floor: float = 0.0
) -> PerDecision:
    """min(rho, 2), rho = exp(proximal - then): truncated importance sampling (Yao et al., 2025).

    `weight_floor` raises smaller weights to it (TRL's 'token_truncate' with a 'clip_min', OpenRLHF's `tis`, AReaL's
    `clamp` with a `lower`); 0 is the published form.
    """
    return truncated_weight(token_log_ratio(proximal, then), weight_cap=weight_cap, weight_floor=weight_floor)


def masked_is(
    proximal: PerDecision, then: PerDecision, *, weight_floor: float = 0.0, weight_cap: float = 2.0
) -> PerDecision:
    """rho where it is at most 2, else 0: masked importance sampling by token (2025); dropped, not capped."""
    return masked_weight(token_log_ratio(proximal, then), weight_floor=weight_floor, weight_cap=weight_cap)


def icepop(
    proximal: PerDecision, then: PerDecision, *, weight_floor: float = 0.5, weight_cap: float = 5.0
) -> PerDecision:
    """rho where it is within [0.5, 5], else 0 (IcePop, Ant Group, 2025; bounds as AReaL, NeMo-RL, verl)."""
    return masked_weight(token_log_ratio(proximal, then), weight_floor=weight_floor, weight_cap=weight_cap)


@torch.no_grad()
def symmetric_binary_kl(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """max(KL(p || q), KL(q || p)) of "this token or another" in nats, p = exp(proximal), q = exp(then)."""
    return torch.maximum(binary_kl(proximal, then), binary_kl(then, proximal))


@torch.no_grad()
def kpop(proximal: PerDecision, then: PerDecision, *, max_divergence_nats: float = 2.0) -> PerDecision:
    """rho where KL(p || q) and KL(q || p) of "this token or another" are both at most `max_divergence_nats`, else 0
    (KPop, 2026).

    A fixed region of ratios masks less and less as the engine drifts on rare tokens; a divergence does not. The bound
    holds for each direction, that is for their maximum, as in AReaL (`binary_kl`, whose documented bound is 2.0); the
    original's could not be read. AReaL clamps probabilities to [1e-8, 1 - 1e-8]; here only the other outcome's is
    floored.
    """
    divergence = symmetric_binary_kl(proximal, then)
    return torch.where(divergence <= max_divergence_nats, token_log_ratio(proximal, then).exp(), 0.0)


def sequence_truncated_is(
    proximal: PerDecision, then: PerDecision, sequence: Indices, *, weight_cap: float = 2.0, weight_floor: float = 0.0
) -> PerDecision:
    """min(product of the sequence's rho, 2), at least `weight_floor` (verl's sequence level; TRL's
    'sequence_truncate').
    """
    log_ratio = sequence_log_ratio(proximal, then, sequence)
    return truncated_weight(log_ratio, weight_cap=weight_cap, weight_floor=weight_floor)


def sequence_masked_is(
    proximal: PerDecision, then: PerDecision, sequence: Indices, *, weight_floor: float = 0.0, weight_cap: float = 3.0
) -> PerDecision:
    """Product of the sequence's rho where it is at most 3, else 0 (TRL's default, sequence_mask)."""
    return masked_weight(sequence_log_ratio(proximal, then, sequence), weight_floor=weight_floor, weight_cap=weight_cap)


def geometric_truncated_is(
    proximal: PerDecision, then: PerDecision, sequence: Indices, *, weight_cap: float = 2.0, weight_floor: float = 0.0
) -> PerDecision:
    """min(geometric mean of the sequence's rho, 2), at least `weight_floor` ("sequence level" in AReaL and
    ms-swift).
    """
    log_ratio = geometric_log_ratio(proximal, then, sequence)
    return truncated_weight(log_ratio, weight_cap=weight_cap, weight_floor=weight_floor)


def geometric_rejection(
    proximal: PerDecision, then: PerDecision, sequence: Indices, *, ratio_floor: float = 0.999, ratio_cap: float = 1.001
) -> PerDecision:
    """1 where the geometric mean of the sequence's rho is within [0.999, 1.001], else 0 (geometric rejection)."""
    return ratio_in_range(geometric_log_ratio(proximal, then, sequence), ratio_floor=ratio_floor, ratio_cap=ratio_cap)


@torch.no_grad()
def normalised_weight(weight: PerDecision) -> PerDecision:
    """weight / its mean over all decisions of the step, so that the mean is 1: self-normalised importance sampling, of
    less variance and a bias of order 1 / n.

    verl's `rollout_is_batch_normalize` of token weights: after truncation, before any rejection. A mean of at most 1e-8
    divides nothing.
    """
    return _divided_by(float(weight.double().mean()), weight)


@torch.no_grad()
def sequence_normalised_weight(weight: PerDecision, sequence: Indices) -> PerDecision:
    """weight / its mean over the step's sequences, each of which counts once by the mean of its decisions: for weights
    that are one number per sequence (verl's `rollout_is_batch_normalize` at the sequence level). Otherwise as
    `normalised_weight`.
    """
    exact, count = weight.double(), torch.bincount(sequence)
    total = exact.new_zeros(len(count)).index_add(0, sequence, exact)
    present = count > 0
    return _divided_by(float((total[present] / count[present]).mean()), weight)


def _divided_by(mean: float, weight: PerDecision) -> PerDecision:
    """weight / mean; the weight itself where the mean is too small, or not a number for want of decisions."""
    return weight / mean if mean > SMALLEST_MEAN else weight


@torch.no_grad()
def off_policy_sequence_mask(
    now: PerDecision, acted: PerDecision, advantage: PerDecision, sequence: Indices, *, max_kl_nats: float = 0.5
) -> PerDecision:
    """0 where A < 0 and the sequence's mean of acted - now exceeds `max_kl_nats`, else 1 (DeepSeek-V3.2, 2025).

    Off-policy sequence masking: failed answers that have become unlikely under the current policy are left out; answers
    with A >= 0 are always kept. The paper gives no bound; 0.5 is from TRL's documentation (slime: 1e-4). It uses the
    current policy, so it is computed with the loss, and only within a sequence.
    """
    far = sequence_mean(logp_difference(acted, now), sequence) > max_kl_nats
    return (~(far & (advantage < 0))).to(at_least_float32(now).dtype)


def with_mismatch_correction(terms: LossTerms, factor: Multiplier) -> LossTerms:
    """factor * loss, with metrics of the factor: its effective sample size, its maximum, the share of zeros."""
    data = at_least_float32(factor).detach()
    return replace(
        scale_terms(terms, data),
        compute_metrics=lambda: {
            **terms.metrics,
            "mismatch/weight_ess": data,
            "mismatch/weight_max": data,
            "mismatch/dropped_fraction": (data == 0).to(data.dtype),
        },
    )


@torch.no_grad()
def mismatch_diagnostics(proximal: PerDecision, then: PerDecision, sequence: Indices) -> Metrics:
    """Figures of the mismatch that tell how far importance weights can be trusted, by decision or by answer.

    Per answer `[answers]`: the perplexity exp(-mean log p) under trainer and engine, their ratio, and the difference of
    their logarithms in nats. chi-square divergences of trainer from engine, E[rho^2] - 1 on the engine's tokens: by
    token `[n]`, and by answer with rho the product of its ratios `[answers]`. Log-ratios are bounded to 20 nats before
    they are squared. The means are those of verl's `rollout_corr/*`: training_ppl, rollout_ppl, ppl_ratio,
    log_ppl_abs_diff, k3_kl, chi2_token, chi2_seq.
    """
    trainer, engine = at_least_float32(proximal).double(), at_least_float32(then).double()
    count = torch.bincount(sequence)
    answers = count.nonzero()[:, 0]

    def by_answer(values: PerDecision) -> Tensor:
        return values.new_zeros(len(count)).index_add(0, sequence, values)[answers]

    length, gap = count[answers], trainer - engine
    log_perplexity, engine_log_perplexity = -by_answer(trainer) / length, -by_answer(engine) / length
    apart = log_perplexity - engine_log_perplexity
    bounded = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    product = by_answer(gap).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return {
        "mismatch/perplexity_trainer": log_perplexity.exp(),
        "mismatch/perplexity_engine": engine_log_perplexity.exp(),
        "mismatch/perplexity_ratio": apart.exp(),
        "mismatch/log_perplexity_gap": apart.abs(),
        "mismatch/k3_nats": torch.expm1(bounded) - bounded,
        "mismatch/chi2_token": torch.expm1(2.0 * bounded),
        "mismatch/chi2_answer": torch.expm1(2.0 * product),
    }


# ------------------------------------------------------------------------------------------------------------ rejection


DivergenceStatistic: TypeAlias = Callable[[PerDecision, PerDecision], PerDecision]
"""(proximal, then) `[n]` nats -> divergence of each token `[n]` nats."""
SequenceStatistic: TypeAlias = Callable[[PerDecision, Indices], PerDecision]
"""Divergences `[n]` and the tokens' sequences `[n]` -> one number for the sequence, at each of its tokens `[n]`."""


def k1_divergence(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """then - proximal nats: k1 of KL(engine || trainer), of either sign (verl's `*_k1`; AReaL's 'kl_k1' has the
    opposite sign).
    """
    return -token_log_ratio(proximal, then)


def k2_divergence(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """(proximal - then)^2 / 2 nats: never negative, biased (verl's `*_k2`, AReaL's 'kl_k2')."""
    return 0.5 * token_log_ratio(proximal, then).square()


def k3_divergence(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """exp(d) - 1 - d nats, d = proximal - then: never negative, unbiased for KL(engine || trainer) (verl's `*_k3`)."""
    log_ratio = token_log_ratio(proximal, then)
    return torch.expm1(log_ratio) - log_ratio


def reverse_k3_divergence(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """exp(-d) - 1 + d nats, d = proximal - then: `k3_divergence` with the policies exchanged (AReaL's 'kl_k3'). On
    the engine's tokens its mean is not a KL divergence.
    """
    return k3_divergence(then, proximal)


def binary_divergence(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """The larger of the two KL divergences of "this token or another", nats (AReaL's `binary_kl`; KPop's bound)."""
    return symmetric_binary_kl(proximal, then)


def own_divergence(divergence: PerDecision, sequence: Indices) -> PerDecision:
    """Each token's own divergence: tokens are rejected one by one."""
    del sequence
    return divergence


@torch.no_grad()
def sequence_max(values: PerDecision, sequence: Indices) -> PerDecision:
    """Maximum of `values` over the sequence of each decision, at each decision `[n]`."""
    if values.numel() == 0:
        return values
    largest = values.new_full((int(sequence.max()) + 1,), -torch.inf)
    return largest.scatter_reduce(0, sequence, values, "amax")[sequence]


@torch.no_grad()
def divergence_mask(
    proximal: PerDecision,
    then: PerDecision,
    sequence: Indices,
    *,
    statistic: DivergenceStatistic = k3_divergence,
    over: SequenceStatistic = own_divergence,
    min_nats: float | None = None,
    max_nats: float | None = None,
) -> PerDecision:
    """1 where the `statistic`, combined by `over`, is within [min_nats, max_nats], else 0; None is no bound.

    verl's 'seq_mean_k1' with "0.999_1.001" is k1, `sequence_mean` and bounds log 0.999 and log 1.001; its 'token_k3'
    with 0.01 is k3, `own_divergence` and `max_nats` 0.01. Several masks multiply: what one rejects is rejected.
    """
    values = over(statistic(proximal, then), sequence)
    kept = torch.ones_like(values)
    if min_nats is not None:
        kept = kept * (values >= min_nats)
    if max_nats is not None:
        kept = kept * (values <= max_nats)
    return kept
