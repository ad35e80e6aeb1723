"""Log-probability and entropy of chosen tokens under the model, without a `[tokens, vocab]` tensor.

The output projection and the log-softmax, in chunks that are recomputed in the backward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from hone.models.native.products import tiled_matmul as tiled

CHUNK_ELEMENTS: Final = 1 << 22
"""Logits that live at once: 16 MiB in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMask:
    """The tokens that sampling left at each of N positions (top-k, top-p, min-p), one list after another.

    Replayed by the trainer, so that both policies of a ratio choose from the same tokens, which keeps it unbiased (the
    sampling mask of DeepSeek-V3.2, 2025).
    """

    ids: Tensor
    """`[M]` int64."""
    offsets: Tensor
    """`[N+1]` int64: position n kept `ids[offsets[n]:offsets[n+1]]`; none means that nothing was cut off there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """float32 (float64 for a float64 model), differentiable."""

    logp: Tensor
    """`[N]` log pi(chosen), nats."""
    entropy: Tensor | None = None
    """`[N]` entropy in nats; None unless requested."""
    extra_logp: Tensor | None = None
    """`[N, K]` log pi of further requested tokens, nats; None unless requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKTokens:
    """The K likeliest next tokens, likeliest first."""

    ids: Tensor
    """`[N, K]` int64."""
    logp: Tensor
    """`[N, K]` nats."""


def scaled_logits(
    hidden: Tensor,
    weight: Tensor,
    temperature: float | Tensor,
    product: Callable[[Tensor, Tensor], Tensor] = functional.linear,
) -> Tensor:
    """`hidden @ weight.T / temperature` -> `[N, vocab]`, float32 or wider; shared by trainer and engine."""
    return at_least_float32(product(hidden, weight)) / temperature


def at_least_float32(x: Tensor) -> Tensor:
    """float32, or float64 for float64 input."""
    return x if x.dtype == torch.float64 else x.float()


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    chosen: Tensor,
    temperature: float,
    *,
    entropy: bool = False,
    extra_tokens: Tensor | None = None,
    sampling_mask: SamplingMask | None = None,
) -> TokenLogprobs:
    """Log-probabilities (and entropies) of `softmax(hidden @ weight.T / temperature)`.

    `hidden` `[N, D]`, `weight` `[vocab, D]`, `chosen` `[N]`; `among` `[N, K]` are further tokens; `kept` renormalises
    over the tokens that sampling left. Memory beyond the inputs: one chunk of logits.
    """
    return query_logprobs(hidden, weight, chosen, extra_tokens, LogprobQuery(temperature, entropy, sampling_mask))


def _by_tiles(hidden: Tensor, weight: Tensor) -> Tensor:
    return tiled(hidden, weight.t())


@dataclass(frozen=True, slots=True)
class LogprobQuery:
    """Settings shared by all positions."""

    temperature: float
    entropy: bool = False
    sampling_mask: SamplingMask | None = None
    matmul: Callable[[Tensor, Tensor], Tensor] = _by_tiles
    """`(hidden [n, D], weight [vocab, D]) -> [n, vocab]`: the arithmetic of the logits."""

    def log_softmax(self, hidden: Tensor, weight: Tensor, part: slice) -> Tensor:
        """Log-probabilities of all tokens `[rows of part, vocab]`; -inf for those that sampling cut off."""
        logits = scaled_logits(hidden[part], weight, self.temperature, self.matmul)
        if self.sampling_mask is not None:
            logits = logits.masked_fill_(_masked_tokens(self.sampling_mask, part, logits), -torch.inf)
        return torch.log_softmax(logits, dim=-1)


def query_logprobs(
    hidden: Tensor, weight: Tensor, chosen: Tensor, among: Tensor | None, question: LogprobQuery
) -> TokenLogprobs:
    """`outlook`, with everything that may be asked."""
    asked = chosen[:, None] if among is None else torch.cat((chosen[:, None], among), dim=1)
    logp, entropies = _TokenLogprobsFunction.apply(hidden, weight, asked, question)
    return TokenLogprobs(
        logp=logp[:, 0],
        entropy=entropies if question.entropy else None,
        extra_logp=None if among is None else logp[:, 1:],
    )


@torch.no_grad()
def top_k_tokens(hidden: Tensor, weight: Tensor, temperature: float, count: int) -> TopKTokens:
    """The `count` likeliest tokens of each row of `hidden` `[N, D]`, as data."""
    result = [
        LogprobQuery(temperature).log_softmax(hidden, weight, part).topk(count, dim=-1)
        for part in _chunks(len(hidden), len(weight))
    ]
    if not result:
        nothing = at_least_float32(hidden.new_zeros(0, count))
        return TopKTokens(ids=nothing.long(), logp=nothing)
    return TopKTokens(
        ids=torch.cat([part.indices for part in result]), logp=torch.cat([part.values for part in result])
    )  # fmt: skip


def _chunks(rows: int, vocab: int) -> list[slice]:
    size = max(16, CHUNK_ELEMENTS // max(1, vocab))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _masked_tokens(kept: SamplingMask, part: slice, logits: Tensor) -> Tensor:
    bounds = kept.offsets[part.start : part.stop + 1]
    counts = bounds.diff()
    cut = (counts > 0)[:, None].expand(logits.shape).clone()
    rows = torch.repeat_interleave(torch.arange(len(counts), device=cut.device), counts)
    cut[rows, kept.ids[bounds[0] : bounds[-1]]] = False
    return cut


class _LogprobContext(Protocol):
    """Tensors that autograd keeps between forward and backward."""

    question: LogprobQuery
    saved_tensors: tuple[Tensor, Tensor, Tensor]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _TokenLogprobsFunction(torch.autograd.Function):
    """With `l = hidden @ weight.T / t`: d logp(k) / d l_j = [j = k] - p_j, and d H / d l_j = -p_j (log p_j + H)."""

    @staticmethod
    def forward(
        ctx: _LogprobContext, hidden: Tensor, weight: Tensor, asked: Tensor, question: LogprobQuery
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logp = torch.empty(asked.shape, dtype=dtype, device=hidden.device)
        entropies = torch.zeros(len(hidden) if question.entropy else 0, dtype=dtype, device=hidden.device)
        for part in _chunks(len(hidden), len(weight)):
            all_logp = question.log_softmax(hidden, weight, part)
            logp[part] = all_logp.gather(1, asked[part])
            if question.entropy:
                entropies[part] = _entropy(all_logp.exp(), all_logp)
        ctx.save_for_backward(hidden, weight, asked)
        ctx.question = question
        return logp, entropies

    @staticmethod
    def backward(ctx: _LogprobContext, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, asked = ctx.saved_tensors
        question = ctx.question
        to_logp, to_entropy = grads
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        for part in _chunks(len(hidden), len(weight)):
            all_logp = question.log_softmax(hidden, weight, part)
            p = all_logp.exp()
            grad = -p * to_logp[part].sum(1, keepdim=True)
            grad.scatter_add_(1, asked[part], to_logp[part])
            if question.entropy:
                h = _entropy(p, all_logp)[:, None]
                grad -= torch.where(p > 0, p * (all_logp + h), 0.0) * to_entropy[part, None]
            grad = (grad / question.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                tiled(grad, weight, out=grad_hidden[part])
            if grad_weight is not None:
                tiled(grad.T, hidden[part], out=grad_weight, add=True)
        return grad_hidden, grad_weight, None, None


def _entropy(p: Tensor, logp: Tensor) -> Tensor:
    """`[rows]` nats; a token that was cut off adds nothing (0 times -inf is not a number)."""
    return -torch.where(p > 0, p * logp, 0.0).sum(-1)
