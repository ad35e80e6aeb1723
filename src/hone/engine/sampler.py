"""Drawing tokens: a row's draw is a function of its own logits, its settings and its uniform number alone."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.engine.work import DRAW, SamplerInput, SamplerOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingTensors:
    """Settings of each row `[n]`; see `work.SamplerInput`."""

    given: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    greedy: Tensor
    """Bool."""
    truncates: bool
    """True if a row uses truncated sampling."""


def sampling_tensors(draws: SamplerInput, device: torch.device) -> SamplingTensors:
    """Settings of rows as tensors on a device."""
    cut = (draws.top_k > 0) | (draws.top_p < 1) | (draws.min_p > 0)
    return SamplingTensors(
        given=torch.from_numpy(draws.forced_token).to(device, torch.int64),
        temperature=torch.from_numpy(draws.temperature).to(device),
        top_k=torch.from_numpy(draws.top_k).to(device, torch.int64),
        top_p=torch.from_numpy(draws.top_p).to(device),
        min_p=torch.from_numpy(draws.min_p).to(device),
        greedy=torch.from_numpy(draws.greedy).to(device),
        truncates=bool((cut & ~draws.greedy).any()),
    )


def sample_tokens(logits: Tensor, draws: SamplerInput) -> SamplerOutput:
    """Inverse-CDF sampling: the first token at which the cumulative probability exceeds `uniform` `[n]`, in [0, 1).

    `logits` `[n, vocab]`, float32 at least. The cumulative sum runs in float64, by token id. A given token takes the
    place of the draw; everything else is the same arithmetic.
    """
    settings = sampling_tensors(draws, logits.device)
    uniform = torch.from_numpy(draws.uniform).to(logits.device)
    logp = torch.log_softmax(logits / settings.temperature[:, None].to(logits.dtype), dim=-1)
    drawn_from, kept = logp, None
    if settings.truncates:
        cut = ((settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)) & ~settings.greedy
        rows = cut.nonzero()[:, 0]
        left = truncate_logp(logp[rows], settings.top_k[rows], settings.top_p[rows], settings.min_p[rows])
        drawn_from = logp.index_copy(0, rows, torch.log_softmax(left, dim=-1))
        bits = np.packbits(torch.isfinite(left).cpu().numpy(), axis=1, bitorder="little")
        kept = np.zeros((len(logp), bits.shape[1]), np.uint8)
        kept[rows.cpu().numpy()] = bits
    tokens, greedy = _inverse_cdf(drawn_from, uniform), settings.greedy
    best = logp.argmax(dim=-1)
    tokens = torch.where(greedy, best, tokens)
    tokens = torch.where(settings.given == DRAW, tokens, settings.given)
    at = tokens[:, None]
    sampled = drawn_from.gather(1, at)[:, 0]
    certain = torch.where(tokens == best, 0.0, -torch.inf).to(sampled.dtype)
    top_tokens, top_logp = (None, None) if draws.top_logprobs is None else rank_likeliest(logp, draws.top_logprobs)
    return SamplerOutput(
        token=tokens.cpu().numpy().astype(np.int32),
        logp=logp.gather(1, at)[:, 0].float().cpu().numpy(),
        sampled_logp=torch.where(greedy, certain, sampled).float().cpu().numpy(),
        sampling_mask_bits=kept,
        top_tokens=top_tokens,
        top_logp=top_logp,
    )


def rank_likeliest(logp: Tensor, counts: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The likeliest tokens of each row of `logp` `[n, vocab]`, and their log-probabilities `[n, K]`: as many as its
    count in `counts` `[n]`, at most the vocabulary. Ties from the smaller id."""
    most = min(int(counts.max(initial=0)), logp.shape[1])
    tokens, values = np.zeros((len(logp), most), np.int32), np.zeros((len(logp), most), np.float32)
    asked = np.flatnonzero(counts)
    ranked, order = logp[torch.from_numpy(asked).to(logp.device)].sort(dim=-1, descending=True, stable=True)
    tokens[asked] = order[:, :most].cpu().numpy()
    values[asked] = ranked[:, :most].float().cpu().numpy()
    return tokens, values


def _inverse_cdf(logp: Tensor, uniform: Tensor) -> Tensor:
    cdf = logp.double().exp_().cumsum(dim=-1)
    total = cdf[:, -1]
    # uniform < 1, but its product with the total may round up to it: then no entry would exceed it.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    result = torch.searchsorted(cdf, target[:, None], right=True)[:, 0]
    return result.clamp_(max=logp.shape[1] - 1)  # only rows of NaN come here beyond the end


def truncate_logp(logp: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`logp` `[n, vocab]` with -inf for tokens removed by top-k, then top-p of the rest, then min-p; the most likely
    always stays. Ties are broken towards the smaller token id.
    """
    ranked, order = logp.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logp.shape[1], device=logp.device)
    limit = torch.where(top_k > 0, top_k, logp.shape[1])[:, None]
    ranked = ranked.masked_fill(rank >= limit, -torch.inf)
    p = torch.softmax(ranked, dim=-1).double()
    before = p.cumsum(dim=-1) - p
    out = (before >= top_p[:, None].double()) & (rank > 0) & (top_p < 1)[:, None]
    out |= p < min_p[:, None].double() * p[:, :1]
    ranked = ranked.masked_fill(out, -torch.inf)
    return torch.empty_like(logp).scatter_(1, order, ranked)
