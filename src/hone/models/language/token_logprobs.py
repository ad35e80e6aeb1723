"""Log-probability and entropy of chosen tokens under the model, without a `[tokens, vocab]` tensor.

The output projection and the log-softmax, in chunks that are recomputed in the backward pass: of rows, or, for bfloat16
products on a CPU, of the vocabulary, so that each weight is read once for all rows (an online softmax; Milakov and
Gimelshein, 2018).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from hone.models.gradient_buffers import AutogradContext, write_gradient
from hone.models.native.library import computes_nothing, half_matmul
from hone.models.native.library import tiled_matmul as tiled

CHUNK_ELEMENTS: Final = 1 << 22
"""Logits that live at once: 16 MiB in float32."""
CUDA_CHUNK_ELEMENTS: Final = 1 << 27
"""The same on a GPU, 512 MiB: smaller products would leave most of it idle."""
BLOCK_ELEMENTS: Final = 1 << 19
"""The same for bfloat16 products on a CPU, 2 MiB, which stay in its cache."""
BLOCK_ROWS: Final = 1024
"""Rows of such a block, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMask:
    """The tokens that sampling left at each of N positions (grammar, top-k, top-p, min-p), one list after another.

    Replayed by the trainer, so that both policies of a ratio choose from the same tokens, which keeps it unbiased (the
    sampling mask of DeepSeek-V3.2, 2025).
    """

    ids: Tensor
    """`[M]` int64."""
    offsets: Tensor
    """`[N+1]` int64: position n kept `ids[offsets[n]:offsets[n+1]]`, or all but these where the first of them is -1;
    none means that nothing was cut off there."""


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


def capped(x: Tensor, cap: float) -> Tensor:
    """`cap tanh(x / cap)` (Gemma 2)."""
    return torch.tanh(x / cap).mul_(cap) if not x.requires_grad else torch.tanh(x / cap) * cap


def _scaled_logits(
    hidden: Tensor,
    weight: Tensor,
    temperature: float | Tensor,
    product: Callable[[Tensor, Tensor], Tensor] = functional.linear,
    cap: float | None = None,
) -> Tensor:
    """`hidden @ weight.T / temperature` -> `[N, vocab]`, float32 or wider; shared by trainer and engine. `cap`: see
    `LogprobQuery`."""
    logits = at_least_float32(product(hidden, weight))
    logits = logits if cap is None else capped(logits, cap)
    return logits if isinstance(temperature, float) and temperature == 1.0 else logits / temperature


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


def _half_linear(hidden: Tensor, weight: Tensor) -> Tensor:
    return half_matmul(hidden, weight.t())


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
    half: bool = False
    """Products, also those of the backward pass, are of bfloat16 numbers with float32 sums; `matmul` is not asked."""
    vocab_size_used: int | None = None
    """Logits from this one on have probability 0; None: all are used."""
    cap: float | None = None
    """Logits z become `cap tanh(z / cap)` before they are divided by the temperature."""

    def operands(self, hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """What is multiplied; products of blocks round it themselves."""
        return (hidden.to(torch.bfloat16), weight.to(torch.bfloat16)) if self.half else (hidden, weight)

    def log_softmax(self, hidden: Tensor, weight: Tensor, part: slice) -> Tensor:
        """Log-probabilities of all tokens `[rows of part, vocab]`; -inf for those that sampling cut off."""
        return self.log_softmax_and_slope(hidden, weight, part, slope=False)[0]

    def log_softmax_and_slope(
        self, hidden: Tensor, weight: Tensor, part: slice, *, slope: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """The same, and what the gradient of its input is multiplied by beside the temperature; None: by nothing."""
        logits, steep = self.logits_and_slope(hidden, weight, part, slice(0, len(weight)), slope=slope)
        return torch.log_softmax(logits, dim=-1), steep

    def logits_and_slope(
        self, hidden: Tensor, weight: Tensor, part: slice, columns: slice, *, slope: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Logits `[rows of part, columns]`, divided by the temperature, and what their gradients are multiplied by."""
        product = _half_linear if self.half else self.matmul
        logits, steep = _scaled_logits(hidden[part], weight[columns], self.temperature, product, self.cap), None
        if self.cap is not None and slope:  # 1 - tanh^2
            steep = (logits * (self.temperature / self.cap)).square_().neg_().add_(1)
        if self.sampling_mask is not None:
            logits = logits.masked_fill_(_masked_tokens(self.sampling_mask, part, logits, columns.start), -torch.inf)
        return logits, steep


def query_logprobs(
    hidden: Tensor, weight: Tensor, chosen: Tensor, among: Tensor | None, question: LogprobQuery
) -> TokenLogprobs:
    """`token_logprobs`, with everything that may be asked."""
    asked = chosen[:, None] if among is None else torch.cat((chosen[:, None], among), dim=1)
    by_blocks = question.half and hidden.device.type == "cpu"
    function = _BlockwiseLogprobsFunction if by_blocks else _TokenLogprobsFunction
    logp, entropies = function.apply(hidden, weight, asked, question)
    return TokenLogprobs(
        logp=logp[:, 0],
        entropy=entropies if question.entropy else None,
        extra_logp=None if among is None else logp[:, 1:],
    )


@torch.no_grad()
def top_k_tokens(
    hidden: Tensor, weight: Tensor, temperature: float, count: int, *, half: bool = False, cap: float | None = None
) -> TopKTokens:  # fmt: skip
    """The `count` likeliest tokens of each row of `hidden` `[N, D]`, as data."""
    question = LogprobQuery(temperature, half=half, cap=cap)
    hidden, weight = question.operands(hidden, weight)
    result = [question.log_softmax(hidden, weight, part).topk(count, dim=-1) for part in _chunks(hidden, weight)]
    if not result:
        nothing = at_least_float32(hidden.new_zeros(0, count))
        return TopKTokens(ids=nothing.long(), logp=nothing)
    return TopKTokens(
        ids=torch.cat([part.indices for part in result]), logp=torch.cat([part.values for part in result])
    )  # fmt: skip


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    """Rows that are computed at once; where only memory is asked for, chunks beyond the second, which take the same,
    are left out."""
    most = CUDA_CHUNK_ELEMENTS if hidden.is_cuda else CHUNK_ELEMENTS
    rows, size = len(hidden), max(16, most // max(1, len(weight)))
    parts = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
    return [*parts[:2], *parts[2:][-1:]] if computes_nothing() else parts


def _masked_tokens(kept: SamplingMask, part: slice, logits: Tensor, first: int = 0) -> Tensor:
    """True where a token was cut off, for the rows of `part` and the tokens of `logits`, of which `first` is one."""
    bounds = kept.offsets[part.start : part.stop + 1]
    counts, ids = bounds.diff(), kept.ids[bounds[0] : bounds[-1]]
    rows = torch.repeat_interleave(torch.arange(len(counts), device=logits.device), counts)
    lists_cut = torch.zeros(len(counts), dtype=torch.bool, device=logits.device)
    lists_cut[rows[ids < 0]] = True
    cut = ((counts > 0) & ~lists_cut)[:, None].expand(logits.shape).clone()
    # The last byte of an engine's bits may reach beyond the vocabulary.
    tokens = (ids >= first) & (ids < first + logits.shape[1])
    cut[rows[tokens], ids[tokens] - first] = lists_cut[rows[tokens]]
    return cut


class _TokenLogprobsFunction(torch.autograd.Function):
    """With `l = hidden @ weight.T / t`: d logp(k) / d l_j = [j = k] - p_j, and d H / d l_j = -p_j (log p_j + H)."""

    @staticmethod
    def forward(
        ctx: AutogradContext, hidden: Tensor, weight: Tensor, asked: Tensor, question: LogprobQuery
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logp = torch.empty(asked.shape, dtype=dtype, device=hidden.device)
        entropies = torch.zeros(len(hidden) if question.entropy else 0, dtype=dtype, device=hidden.device)
        factors = question.operands(hidden, weight[: question.vocab_size_used])
        for part in _chunks(*factors):
            all_logp = question.log_softmax(*factors, part)
            logp[part] = all_logp.gather(1, asked[part])
            if question.entropy:
                entropies[part] = _entropy(all_logp.exp(), all_logp)
            del all_logp  # or it would stand beside the next chunk's
        ctx.save_for_backward(hidden, weight, asked)
        ctx.question = question
        return logp, entropies

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, asked = ctx.saved_tensors
        question = ctx.question
        to_logp, to_entropy = grads
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        all_grad_weight = torch.zeros_like(weight) if wants_weight else None
        weight = weight[: question.vocab_size_used]
        grad_weight = None if all_grad_weight is None else all_grad_weight[: question.vocab_size_used]
        low_hidden, low_weight = question.operands(hidden, weight)
        for part in _chunks(hidden, weight):
            all_logp, slope = question.log_softmax_and_slope(low_hidden, low_weight, part)
            share = -to_logp[part].sum(1, keepdim=True)
            if question.entropy:
                p = all_logp.exp()
                h = _entropy(p, all_logp)[:, None]
                grad = (p * share).scatter_add_(1, asked[part], to_logp[part])
                grad -= torch.where(p > 0, p * (all_logp + h), 0.0) * to_entropy[part, None]
            else:
                grad = all_logp.exp_().mul_(share).scatter_add_(1, asked[part], to_logp[part])
            if question.temperature != 1.0:
                grad = grad / question.temperature
            if slope is not None:
                grad = grad * slope
            grad = grad.to(low_hidden.dtype)
            if grad_hidden is not None and question.half:
                grad_hidden[part] = half_matmul(grad, low_weight)
            elif grad_hidden is not None:
                tiled(grad, weight, out=grad_hidden[part])
            if grad_weight is not None and question.half:
                grad_weight += half_matmul(grad.T, low_hidden[part])
            elif grad_weight is not None:
                tiled(grad.T, hidden[part], out=grad_weight, add=True)
            del all_logp, grad, slope  # or they would stand beside the next chunk's
        return grad_hidden, all_grad_weight, None, None


class _BlockwiseLogprobsFunction(torch.autograd.Function):
    """`_TokenLogprobsFunction` over blocks of rows and of the vocabulary. With the largest logit m so far, sums of
    exp(l - m) and of l exp(l - m) go on from block to block, and are scaled where m grows:
    logp(k) = l_k - log sum exp(l), and H = log sum exp(l) - sum p l."""

    @staticmethod
    def forward(
        ctx: AutogradContext, hidden: Tensor, weight: Tensor, asked: Tensor, question: LogprobQuery
    ) -> tuple[Tensor, Tensor]:
        logp = torch.full(asked.shape, -torch.inf)  # what a token beyond those that are used keeps
        entropies, normalisers = torch.zeros(len(hidden) if question.entropy else 0), torch.empty(len(hidden))
        used = weight[: question.vocab_size_used]
        for part in _row_blocks(hidden):
            largest = torch.full((len(hidden[part]), 1), torch.finfo(torch.float32).min)
            total, weighted = torch.zeros_like(largest), torch.zeros_like(largest)
            for columns in _column_blocks(part, used):
                logits = question.logits_and_slope(hidden, used, part, columns, slope=False)[0]
                inside, places = _places_in_block(asked[part], columns)
                logp[part] = torch.where(inside, logits.gather(1, places), logp[part])
                before, largest = largest, torch.maximum(largest, logits.amax(1, keepdim=True))
                shrunk = (before - largest).exp_()
                if question.entropy:
                    p = (logits - largest).exp_()
                    spread = logits.mul_(p).masked_fill_(p == 0, 0.0)
                    weighted = weighted * shrunk + spread.sum(1, keepdim=True)
                    del spread
                else:
                    p = logits.sub_(largest).exp_()
                total = total * shrunk + p.sum(1, keepdim=True)
                del logits, p  # or they would stand beside the next block's
            normaliser = total.log().add_(largest)
            logp[part] -= normaliser
            normalisers[part] = normaliser[:, 0]
            if question.entropy:
                entropies[part] = (normaliser - weighted / total)[:, 0]
        ctx.save_for_backward(hidden, weight, asked, normalisers, entropies)
        ctx.question, ctx.weight = question, weight
        return logp, entropies

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight = ctx.saved_tensors[:2]
        to_hidden = torch.zeros(hidden.shape) if ctx.needs_input_grad[0] else None

        def write(place: Tensor | None) -> bool:
            _blockwise_gradients(ctx.saved_tensors, ctx.question, grads, to_hidden, place)
            return True

        def compute() -> Tensor:
            place = torch.empty_like(weight)
            write(place)
            return place

        own = None
        if ctx.needs_input_grad[1]:
            own = write_gradient(ctx.weight, lambda place: place.dtype == torch.float32 and write(place), compute)
        else:
            write(None)
        return None if to_hidden is None else to_hidden.to(hidden.dtype), own, None, None


def _blockwise_gradients(
    kept: Sequence[Tensor],
    question: LogprobQuery,
    grads: Sequence[Tensor],
    to_hidden: Tensor | None,
    to_weight: Tensor | None,
) -> None:
    """Add the gradient of the states to `to_hidden` and write that of the weight to `to_weight`."""
    hidden, weight, asked, normalisers, entropies = kept
    to_logp, to_entropy = (grad / question.temperature for grad in grads)
    used = weight[: question.vocab_size_used]
    if to_weight is not None:
        to_weight[len(used) if len(hidden) else 0 :].zero_()
    for part in _row_blocks(hidden):
        share = -to_logp[part].sum(1, keepdim=True)
        for columns in _column_blocks(part, used):
            logits, slope = question.logits_and_slope(hidden, used, part, columns)
            all_logp = logits.sub_(normalisers[part, None])
            if question.entropy:
                p = all_logp.exp()
                uncertain = all_logp.add_(entropies[part, None]).mul_(p).masked_fill_(p == 0, 0.0)
                grad = p.mul_(share).sub_(uncertain.mul_(to_entropy[part, None]))
                del p, uncertain
            else:
                grad = all_logp.exp_().mul_(share)
            inside, places = _places_in_block(asked[part], columns)
            grad.scatter_add_(1, places, torch.where(inside, to_logp[part], 0.0))
            if slope is not None:
                grad *= slope
            if to_hidden is not None:
                half_matmul(grad, used[columns], out=to_hidden[part], add=True)
            if to_weight is not None and to_weight.dtype == torch.float32:
                half_matmul(grad.t(), hidden[part], out=to_weight[columns], add=part.start > 0)
            elif to_weight is not None:
                rows = half_matmul(grad.t(), hidden[part])
                to_weight[columns] = rows.add_(to_weight[columns]) if part.start > 0 else rows
                del rows
            del logits, all_logp, grad, slope, inside, places  # or they would stand beside the next block's


def _row_blocks(hidden: Tensor) -> list[slice]:
    """Rows that are computed at once; where only memory is asked for, the first alone."""
    parts = [slice(start, min(start + BLOCK_ROWS, len(hidden))) for start in range(0, len(hidden), BLOCK_ROWS)]
    return parts[:1] if computes_nothing() else parts


def _column_blocks(part: slice, weight: Tensor) -> list[slice]:
    """Tokens of the vocabulary whose logits are computed at once; where only memory is asked for, the first two."""
    size = max(32, BLOCK_ELEMENTS // max(1, part.stop - part.start) // 32 * 32)
    blocks = [slice(start, min(start + size, len(weight))) for start in range(0, len(weight), size)]
    return blocks[:2] if computes_nothing() else blocks


def _places_in_block(asked: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Which tokens of `asked` are in a block, and their places in it, where they are."""
    inside = (asked >= columns.start) & (asked < columns.stop)
    return inside, (asked - columns.start).clamp_(0, columns.stop - columns.start - 1)


def _entropy(p: Tensor, logp: Tensor) -> Tensor:
    """`[rows]` nats; a token that was cut off adds nothing (0 times -inf is not a number)."""
    return -torch.where(p > 0, p * logp, 0.0).sum(-1)
