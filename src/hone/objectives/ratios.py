"""What losses on log-probabilities are built from: safe ratios, sums within sequences, gathering what was decided.

Belongs here: arithmetic that several losses share. Log-ratios are capped before `exp`; what arrives in half precision
is widened to float32 first, and float64 stays float64.
"""

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are capped here before `exp`, so that one absurd decision is a large number and not infinity."""


def widened(x: Tensor) -> Tensor:
    """float32, or float64 where it is float64: sums of half-precision numbers lose their small ones."""
    return x if x.dtype == torch.float64 else x.float()


def gap(now: Tensor, then: Tensor) -> Tensor:
    """`[n]` nats: now - then, widened and not capped."""
    return widened(now) - widened(then)


def ratio(now: Tensor, then: Tensor) -> Tensor:
    """`[n]` importance ratio exp(now - then), the log-ratio capped at 20 nats (no gradient beyond)."""
    return torch.exp(gap(now, then).clamp(max=LOG_RATIO_LIMIT))


def saturated(log_ratio: Tensor) -> Tensor:
    """`[n]` bool: beyond the cap, where a loss that differentiates the ratio has no gradient."""
    return log_ratio.detach() > LOG_RATIO_LIMIT


def drift(r: Tensor, log_ratio: Tensor) -> dict[str, Tensor]:
    """Metrics of every loss with a ratio: r - 1 - log r, the estimate of KL(then || now) in nats; the largest ratio."""
    return {"policy/kl_nats": (r - 1.0) - log_ratio.clamp(max=LOG_RATIO_LIMIT), "policy/ratio_max": r.detach()}


def sequence_sum(values: Tensor, sequence: Tensor) -> Tensor:
    """`[n]`: at each decision, the sum of `values` `[n]` over its sequence; differentiable.

    `sequence` `[n]` int64 numbers the decision's sequence; a batch holds whole sequences, in any order.
    """
    if values.numel() == 0:
        return values
    totals = values.new_zeros(int(sequence.max()) + 1).index_add(0, sequence, values)
    return totals[sequence]


def sequence_mean(values: Tensor, sequence: Tensor) -> Tensor:
    """`[n]`: at each decision, the mean of `values` `[n]` over its sequence; differentiable."""
    return sequence_sum(values, sequence) / sequence_sum(torch.ones_like(values), sequence)


def sequence_max(values: Tensor, sequence: Tensor) -> Tensor:
    """`[n]`: at each decision, the largest of `values` `[n]` in its sequence; data, without gradient."""
    if values.numel() == 0:
        return values
    most = values.new_zeros(int(sequence.max()) + 1)
    return most.scatter_reduce(0, sequence, values.detach(), "amax", include_self=False)[sequence]


def quantile(values: Tensor, share: float) -> Tensor:
    """`[]`: the value below which `share` of `values` `[n]` lie, linear between neighbours, for any n >= 1."""
    return sequence_quantile(values, torch.zeros_like(values, dtype=torch.int64), share)[0]


def sequence_quantile(values: Tensor, sequence: Tensor, share: float) -> Tensor:
    """`[n]`: at each decision, that quantile of its sequence's `values` `[n]`; data, without gradient."""
    if values.numel() == 0:
        return values
    flat = values.detach()
    by_value = torch.argsort(flat, stable=True)
    order = by_value[torch.argsort(sequence[by_value], stable=True)]
    ranked = flat[order]
    lengths = torch.bincount(sequence)
    starts = torch.cumsum(lengths, 0) - lengths
    place = share * (lengths - 1).clamp(min=0).to(flat.dtype)
    below = place.floor()
    first = starts + below.long()
    last = torch.minimum(first + 1, starts + (lengths - 1).clamp(min=0))
    low, high = ranked[first[sequence]], ranked[last[sequence]]
    return low + (place - below)[sequence] * (high - low)


def decided(mask: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    """Padded rows -> decisions: `mask` `[B, T]` and columns `[B, T, ...]` -> `[n, ...]` each, rows in order.

    What stands where the mask is 0 is never read, so it may be NaN, and its gradient is exactly 0: multiplying by the
    mask would turn NaN into NaN.
    """
    chosen = mask.bool()
    return tuple(column[chosen] for column in columns)


def owners(mask: Tensor) -> Tensor:
    """`mask` `[B, T]` -> `[n]` int64: the row of each decision that `decided` gathers."""
    return mask.bool().nonzero()[:, 0]
