"""Rejection by the divergence between trainer and engine: bounds on a statistic of each token or of its answer.

With d = proximal - then in nats (the trainer's log-probability at the start of the update minus the recorded one), on
tokens of the engine: k1 = -d and k3 = exp(d) - 1 - d estimate KL(engine || trainer) without bias, k2 = d^2 / 2 with
bias (Schulman, "Approximating KL divergence", 2020). The result is 1 where an answer or token is kept and 0 where it is
rejected: a mask without an importance weight. Rejected tokens stay in the denominator of the loss, as in AReaL; verl
takes them out of it, and so does `learner.ratio.count_rejected = false`.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch

from hone.objectives.mismatch import symmetric_binary_kl, token_log_ratio
from hone.objectives.shapes import Indices, PerDecision

DivergenceStatistic: TypeAlias = Callable[[PerDecision, PerDecision], PerDecision]
"""(proximal, then) `[n]` nats -> divergence of each token `[n]` nats."""
SequenceStatistic: TypeAlias = Callable[[PerDecision, Indices], PerDecision]
"""Divergences `[n]` and the tokens' sequences `[n]` -> one number for the sequence, at each of its tokens `[n]`."""


def k1_divergence(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """then - proximal nats: k1 of KL(engine || trainer), of either sign (verl's `*_k1`; AReaL's `kl_k1` has the
    opposite sign).
    """
    return -token_log_ratio(proximal, then)


def k2_divergence(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """(proximal - then)^2 / 2 nats: never negative, biased (verl's `*_k2`, AReaL's `kl_k2`)."""
    return 0.5 * token_log_ratio(proximal, then).square()


def k3_divergence(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """exp(d) - 1 - d nats, d = proximal - then: never negative, unbiased for KL(engine || trainer) (verl's `*_k3`)."""
    log_ratio = token_log_ratio(proximal, then)
    return torch.expm1(log_ratio) - log_ratio


def reverse_k3_divergence(proximal: PerDecision, then: PerDecision) -> PerDecision:
    """exp(-d) - 1 + d nats, d = proximal - then: `k3_divergence` with the policies exchanged (AReaL's `kl_k3`). On
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

    verl's `seq_mean_k1` with "0.999_1.001" is k1, `sequence_mean` and bounds log 0.999 and log 1.001; its `token_k3`
    with 0.01 is k3, `own_divergence` and `max_nats` 0.01. Several masks multiply: what one rejects is rejected.
    """
    found = over(statistic(proximal, then), sequence)
    kept = torch.ones_like(found)
    if min_nats is not None:
        kept = kept * (found >= min_nats)
    if max_nats is not None:
        kept = kept * (found <= max_nats)
    return kept
