"""Forward and backward passes of rows that belong to several adapters of one decoder, together or one by one.

A row's log-probabilities and gradient are, to the bit, those that it has alone: products of the base are
batch-invariant in both directions, and all else (attention, the adapter's products, the output, the loss) is computed
row by row. So are they those of the engine that samples with the same adapter.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hone.core.errors import ConfigError
from hone.core.ragged import Ints
from hone.models.gradient_buffers import AutogradContext
from hone.models.language.batch_invariant import (
    TILE,
    BatchInvariantLinear,
    BatchInvariantPackedAttention,
    pad_to_tile,
)
from hone.models.language.decoder import Decoder
from hone.models.language.lora import LoraAdapter
from hone.models.packing import pack_rows

_LOGITS: Final = 1 << 22
"""Logits that live at once, 16 MiB; the backward pass computes them again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedRow:
    """A row to be computed."""

    adapter: LoraAdapter | None
    """Unmerged, of the batch's decoder; None: the base alone."""
    tokens: Ints
    """`[N]`."""
    targets: Ints
    """`[N]` or `[N, K]`: tokens whose log-probabilities after each position are wanted."""
    loss: Callable[[Tensor], Tensor]
    """Log-probabilities, shaped as `targets`, to a loss `[]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What came of a row."""

    logprobs: NDArray[np.float32]
    """Shaped as the row's targets, nats."""
    loss: float
    gradient: list[Tensor] | None
    """Gradient of each factor of the row's adapter, in the order of `LoraAdapter.factors`, or of each of the decoder's
    parameters; None if not asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class RowModel:
    """A decoder in float32 on a CPU, as the service computes with it."""

    decoder: Decoder
    vocab_used: int
    """Logits from here on have probability 0."""
    trained: bool = False
    """Whether the decoder's own weights are trained, all of them, and rows have no adapters."""

    def prepare(self, context: int) -> None:
        """Set the decoder's arithmetic, for rows of at most `context` tokens. Raises ConfigError for a model whose rows
        depend on each other."""
        config = self.decoder.config
        if config.experts is not None or config.by_texts or self.decoder.code_bits:
            other = "in codes" if self.decoder.code_bits else config.family
            raise ConfigError(
                "the training service computes dense models of hone's own families in float32; this one is "
                f"{'a mixture of experts' if config.experts else other}"
            )
        self.decoder.use_bitwise_arithmetic()
        self.decoder.invariant_gradients = True
        self.decoder.fix_rope_length(context)
        for parameter in self.decoder.parameters():
            parameter.requires_grad = False

    @property
    def shares_passes(self) -> bool:
        """Whether rows of one pass do not depend on each other to the bit; otherwise each needs a pass of its own, as
        it does where its gradient is that of all weights."""
        return not (self.trained or self.decoder.config.design.gelu)

    def for_training(self) -> "RowModel":
        """The same model with weights of its own, which share this one's memory until they are moved."""
        return RowModel(self.decoder.twin({}, trained=True), self.vocab_used, trained=True)

    def compute(self, rows: Sequence[TrainedRow], *, gradients: bool) -> list[RowResult]:
        """Results of rows in one pass, in their order."""
        with torch.set_grad_enabled(gradients):
            used = [None if row.adapter is None else row.adapter.with_leaves() for row in rows]
            logprobs = list(self._logprobs(rows, used))
            losses = [row.loss(logp) for row, logp in zip(rows, logprobs, strict=True)]
        pieces: list[list[Tensor] | None] = [None] * len(rows)
        if gradients:
            whole = list(self.decoder.parameters()) if self.trained else list[Tensor]()
            leaves = [whole if one is None else [factor for _, factor in one.factors()] for one in used]
            flat = torch.autograd.grad(sum(losses[1:], losses[0]), [leaf for own in leaves for leaf in own])
            ends = np.cumsum([len(own) for own in leaves]).tolist()
            pieces = [list(flat[end - len(own) : end]) for own, end in zip(leaves, ends, strict=True)]
        return [
            RowResult(logprobs=logp.detach().numpy().astype(np.float32), loss=float(loss.detach()), gradient=piece)
            for logp, loss, piece in zip(logprobs, losses, pieces, strict=True)
        ]

    def _logprobs(self, rows: Sequence[TrainedRow], adapters: Sequence[LoraAdapter | None]) -> Iterator[Tensor]:
        """Log-probabilities of each row's targets."""
        decoder, packed = self.decoder, pack_rows([row.tokens.astype(np.int32) for row in rows])
        lengths = [len(row.tokens) for row in rows]
        linear = _RowProducts(self, rows, adapters, lengths)
        attend = _RowAttention(decoder, lengths)
        hidden = decoder.run(pad_to_tile(packed.tokens), pad_to_tile(packed.positions), attend, linear)
        for row, adapter, own in zip(rows, adapters, hidden[: sum(lengths)].split(lengths), strict=True):
            targets = torch.from_numpy(row.targets.reshape(len(row.tokens), -1))
            yield self._target_logprobs(own, targets, row, adapter).view(row.targets.shape)

    def _target_logprobs(self, hidden: Tensor, targets: Tensor, row: TrainedRow, adapter: LoraAdapter | None) -> Tensor:
        """`[N, K]`: the arithmetic of the engine, over one chunk of positions after another."""
        size = max(TILE, _LOGITS // len(self.decoder.output_weight) // TILE * TILE)
        parts = [
            checkpoint(self._chunk, part, chosen, row, adapter, use_reentrant=False, preserve_rng_state=False)
            if torch.is_grad_enabled()
            else self._chunk(part, chosen, row, adapter)
            for part, chosen in zip(hidden.split(size), targets.split(size), strict=True)
        ]
        return torch.cat(parts)

    def _chunk(self, hidden: Tensor, targets: Tensor, row: TrainedRow, adapter: LoraAdapter | None) -> Tensor:
        linear = _RowProducts(self, [row], [adapter], [len(hidden)])
        logits = self.decoder.logits(pad_to_tile(hidden), linear)[: len(hidden), : self.vocab_used]
        return torch.log_softmax(logits, dim=-1).gather(1, targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """An adapter's update of one layer for neighbouring rows."""

    lengths: Sequence[int]
    """Tokens of each row."""
    places: Sequence[slice]
    """Outputs of each factor B."""
    outputs: int
    scale: float
    products: BatchInvariantLinear


class _BesideFunction(torch.autograd.Function):
    """y = scale x A^T B^T of rows together. `leaves` are A and B once for each row, the same numbers: a row's gets the
    row's own gradient, by products of its tokens alone, and so that of a pass without the others."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, layer: _Beside, *leaves: Tensor) -> Tensor:
        count, product = len(layer.places), layer.products.product
        low = product(pad_to_tile(x), torch.cat(leaves[:count]), None) * layer.scale
        out = x.new_zeros(len(x), layer.outputs)
        for place, part, b in zip(layer.places, low.chunk(count, 1), leaves[count : 2 * count], strict=True):
            out[:, place] = product(part.contiguous(), b, None)[: len(x)]
        ctx.layer = layer
        ctx.save_for_backward(x, low, *leaves[: 2 * count])
        return out

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, low, *factors), (g,), layer = ctx.saved_tensors, grads, ctx.layer
        count, product = len(layer.places), layer.products.product
        parts = [g[:, place].contiguous() for place in layer.places]
        to_low = [
            product(pad_to_tile(part), b.t(), None) * layer.scale
            for part, b in zip(parts, factors[count:], strict=True)
        ]
        to_x = product(torch.cat(to_low, 1), torch.cat(factors[:count]).t(), None)[: len(x)]
        slopes, at = list[Tensor](), 0
        for length in layer.lengths:  # of copies: where a row lies in memory must not choose how it is multiplied
            own = slice(at, at + length)
            tokens = x[own].clone()
            slopes += [one[own].clone().t() @ tokens for one in to_low]
            slopes += [
                part[own].clone().t() @ one[own].clone() for part, one in zip(parts, low.chunk(count, 1), strict=True)
            ]
            at += length
        return to_x, None, *slopes


@dataclass(frozen=True, slots=True, eq=False)
class _RowProducts:
    """Linear layers of rows, each with its adapter beside the base; what is behind the rows is padding."""

    model: RowModel
    rows: Sequence[TrainedRow]
    adapters: Sequence[LoraAdapter | None]
    """Adapter of each row, with leaves of its own."""
    lengths: Sequence[int]

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        products = self.model.decoder.rows
        out = products(x, weight, bias) if self.model.trained else products.frozen(x, weight, bias)
        added, at, changed = list[Tensor](), 0, False
        for _, group in groupby(range(len(self.lengths)), lambda place: id(self.rows[place].adapter)):
            places = list(group)
            lengths, first = [self.lengths[place] for place in places], self.adapters[places[0]]
            end = len(x) if len(places) == len(self.rows) else at + sum(lengths)  # of one adapter, the padding too
            each = [] if first is None else first.factors_beside(weight)
            if first is None or not each:
                added.append(out.new_zeros(end - at, out.shape[1]))
            else:
                leaves = list[Tensor]()
                for place in places:
                    own = self.adapters[place]
                    assert own is not None
                    factors = own.factors_beside(weight)
                    leaves += [*(a for _, a, _ in factors), *(b for _, _, b in factors)]
                layer = _Beside(
                    lengths=lengths, places=[one[0] for one in each], outputs=out.shape[1],
                    scale=first.settings.scale, products=products,
                )  # fmt: skip
                added.append(_BesideFunction.apply(x[at:end], layer, *leaves))
                changed = True
            at = end
        if not changed:
            return out
        return out + torch.cat([*added, out.new_zeros(len(x) - at, out.shape[1])] if at < len(x) else added)


class _RowAttention:
    """A `LayerAttention` of rows `lengths`, each computed by itself; what is behind them is padding, and gets zeros."""

    def __init__(self, decoder: Decoder, lengths: Sequence[int]) -> None:
        c = decoder.config
        self._lengths, self._size = lengths, c.heads * c.head_dim
        self._attends = [
            BatchInvariantPackedAttention(
                pack_rows([np.zeros(length, np.int32)]),
                heads=c.heads,
                kv_heads=c.kv_heads,
                head_dim=c.head_dim,
                dtype=decoder.compute,
                limits=c.limits,
            )
            for length in lengths
        ]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        lengths = [*self._lengths, len(query) - sum(self._lengths)]
        parts = zip(*(x.split(lengths) for x in (query, key, value)), strict=True)
        mixed = [attend(layer, *part) for attend, part in zip(self._attends, parts, strict=False)]
        return torch.cat([*mixed, query.new_zeros(lengths[-1], self._size)])
