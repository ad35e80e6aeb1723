"""Building blocks of losses on log-probabilities: safe ratios, sums within sequences, gathering of decisions,
and exponentials and logarithms that stay finite.

Log-ratios are capped before `exp`; half precision is widened to float32 first, and float64 stays float64.
"""

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from hone.objectives.terms import Elementwise, Flags, Indices, PerDecision

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are capped at this many nats before `exp`, so that an extreme decision gives a large number and not
infinity.
"""


def at_least_float32(x: Shaped[Tensor, " *shape"]) -> Elementwise:
    """float32, or float64 for float64 input: sums of half-precision numbers lose small addends."""
    return x if x.dtype == torch.float64 else x.float()


def logp_difference(now: Elementwise, then: Elementwise) -> Elementwise:
    """now - then in nats, widened and not capped."""
    return at_least_float32(now) - at_least_float32(then)


def ratio(now: Elementwise, then: Elementwise) -> Elementwise:
    """Importance ratio exp(now - then), the log-ratio capped at 20 nats (no gradient beyond)."""
    return torch.exp(logp_difference(now, then).clamp(max=LOG_RATIO_LIMIT))


def is_saturated(log_ratio: PerDecision) -> Flags:
    """Flags `[n]` of log-ratios beyond the cap, where a loss that differentiates the ratio has no gradient."""
    return log_ratio.detach() > LOG_RATIO_LIMIT


def ratio_metrics(r: PerDecision, log_ratio: PerDecision) -> dict[str, PerDecision]:
    """Metrics of every loss with a ratio: the estimate r - 1 - log r of KL(then || now), nats; the largest ratio."""
    return {"policy/kl_nats": (r - 1.0) - log_ratio.clamp(max=LOG_RATIO_LIMIT), "policy/ratio_max": r.detach()}


def sequence_sum(values: PerDecision, sequence: Indices) -> PerDecision:
    """Sum of `values` over the sequence of each decision, at each decision `[n]`; differentiable.

    `sequence` numbers the decision's sequence; a batch holds whole sequences, in any order.
    """
    if values.numel() == 0:
        return values
    totals = values.new_zeros(int(sequence.max()) + 1).index_add(0, sequence, values)
    return totals[sequence]


def sequence_mean(values: PerDecision, sequence: Indices) -> PerDecision:
    """Mean of `values` over the sequence of each decision, at each decision `[n]`; differentiable."""
    return sequence_sum(values, sequence) / sequence_sum(torch.ones_like(values), sequence)


def quantile(values: PerDecision, share: float) -> Float[Tensor, ""]:
    """The `share` quantile of `values`, interpolated linearly, for any n >= 1."""
    return sequence_quantile(values, torch.zeros_like(values, dtype=torch.int64), share)[0]


def sequence_quantile(values: PerDecision, sequence: Indices, share: float) -> PerDecision:
    """The `share` quantile of `values` within the sequence of each decision `[n]`; without gradient."""
    flat = values.detach()
    by_value = torch.argsort(flat, stable=True)
    order = by_value[torch.argsort(sequence[by_value], stable=True)]
    ranked = flat[order]
    lengths = torch.bincount(sequence)
    starts = torch.cumsum(lengths, 0) - lengths
    place = share * (lengths - 1).to(flat.dtype)
    below = place.floor()
    first = starts + below.long()
    last = torch.minimum(first + 1, starts + (lengths - 1).clamp(min=0))
    low, high = ranked[first[sequence]], ranked[last[sequence]]
    return low + (place - below)[sequence] * (high - low)


def gather_decisions(
    mask: Shaped[Tensor, "B T"], *columns: Shaped[Tensor, "B T ..."]
) -> tuple[Shaped[Tensor, "n ..."], ...]:
    """Padded rows -> decisions: the entries of each column where the mask is not 0, row by row.

    Entries where the mask is 0 are never read, so they may be NaN, and their gradient is exactly 0; multiplying by the
    mask would keep the NaN.
    """
    chosen = mask.bool()
    return tuple(column[chosen] for column in columns)


def decision_rows(mask: Shaped[Tensor, "B T"]) -> Indices:
    """The row of each decision that `gather_decisions` returns."""
    return mask.bool().nonzero()[:, 0]


# ------------------------------------------------------------------------------------------------------------- numerics


EXPONENT_LIMIT = 20.0
"""Nats; above it `exp` is continued by its tangent: e^20 is 5e8, far below the overflow of float32."""


def sum_by_sequence(values: PerDecision, sequence: Indices, *, count: int) -> Float[Tensor, " {count}"]:
    """Sum of `values` over each of `count` sequences `[count]`, in float32 or wider: answers from tokens.

    `sequence` numbers each value's sequence; a sequence without values sums to 0. Padded rows go through
    `ratios.gather_decisions` and `ratios.decision_rows` first.
    """
    values = at_least_float32(values)
    return values.new_zeros(count).index_add(0, sequence, values)


def linear_tail_exp(x: Elementwise) -> Elementwise:
    """exp(x) up to 20, its tangent beyond: finite, with a gradient for every x."""
    kept = x.clamp(max=EXPONENT_LIMIT)
    return kept.exp() * (1.0 + (x - kept))


def log1mexp(x: Elementwise) -> Elementwise:
    """log(1 - exp(x)) for x < 0, exact at both ends (Mächler, 2012); x is clamped to at most -1e-6 (result -13.8)."""
    x = x.clamp(max=-1e-6)
    return torch.where(x > -math.log(2.0), torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))
