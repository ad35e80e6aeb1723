"""Drawing tokens: a row's draw is a function of its own logits, its settings and its uniform number alone."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of each row `[n]`."""

    temperature: Tensor
    top_k: Tensor
    """0: off."""
    top_p: Tensor
    """1: off."""
    greedy: Tensor
    """Bool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    tokens: Tensor
    """`[n]` int64."""
    logp: Tensor
    """`[n]` of the untruncated policy, nats; NaN where the logits were not finite."""
    sampled_logp: Tensor
    """`[n]` of the distribution that was drawn from, nats."""


def draw(logits: Tensor, uniform: Tensor, settings: Settings) -> Drawn:
    """Inverse-CDF sampling: the first token at which the cumulative probability exceeds `uniform` `[n]`, in [0, 1).

    `logits` `[n, vocab]`, float32 at least. The cumulative sum runs in float64, by token id.
    """
    scaled = logits / settings.temperature[:, None].to(logits.dtype)
    logp = torch.log_softmax(scaled, dim=-1)
    truncated = (settings.top_k > 0) | (settings.top_p < 1)
    drawn_from = logp
    if bool(truncated.any()):
        rows = truncated.nonzero()[:, 0]
        kept = truncate(logp[rows], settings.top_k[rows], settings.top_p[rows])
        drawn_from = logp.index_copy(0, rows, torch.log_softmax(kept, dim=-1))
    tokens = _inverse_cdf(drawn_from, uniform)
    greedy = settings.greedy
    if bool(greedy.any()):
        tokens = torch.where(greedy, logp.argmax(dim=-1), tokens)
    at = tokens[:, None]
    sampled = drawn_from.gather(1, at)[:, 0]
    return Drawn(
        tokens=tokens, logp=logp.gather(1, at)[:, 0], sampled_logp=sampled.masked_fill(greedy, 0.0)
    )  # fmt: skip


def _inverse_cdf(logp: Tensor, uniform: Tensor) -> Tensor:
    cdf = logp.double().exp_().cumsum(dim=-1)
    total = cdf[:, -1]
    # uniform < 1, but its product with the total may round up to it: then no entry would exceed it.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cdf, target[:, None], right=True)[:, 0]
    return found.clamp_(max=logp.shape[1] - 1)  # only rows of NaN come here beyond the end


def truncate(logp: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`logp` `[n, vocab]` with -inf for what top-k, then top-p of the rest, leave out; the likeliest always stays.

    Ties are broken towards the smaller token id.
    """
    ranked, order = logp.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logp.shape[1], device=logp.device)
    limit = torch.where(top_k > 0, top_k, logp.shape[1])[:, None]
    ranked = ranked.masked_fill(rank >= limit, -torch.inf)
    p = torch.softmax(ranked, dim=-1).double()
    before = p.cumsum(dim=-1) - p
    out = (before >= top_p[:, None].double()) & (rank > 0) & (top_p < 1)[:, None]
    ranked = ranked.masked_fill(out, -torch.inf)
    return torch.empty_like(logp).scatter_(1, order, ranked)
