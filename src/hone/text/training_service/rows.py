"""Forward and backward passes of rows that belong to several adapters of one decoder, together or one by one.

A row's log-probabilities and gradient are, to the bit, those that it has alone: products of the base are
batch-invariant in both directions, and all else (attention, the adapter's products, the output, the loss) is computed
row by row. So are they those of the engine that samples with the same adapter.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hone.core.errors import ConfigError
from hone.core.ragged import Ints
from hone.models.language.batch_invariant import TILE, BatchInvariantPackedAttention, pad_to_tile
from hone.models.language.decoder import Decoder
from hone.models.language.decoder_layer import LinearFn
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
    """Gradient of each factor of the row's adapter, in the order of `LoraAdapter.factors`; None if not asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class RowModel:
    """A frozen decoder in float32 on a CPU, as the service computes with it."""

    decoder: Decoder
    vocab_used: int
    """Logits from here on have probability 0."""

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
        """Whether rows of one pass do not depend on each other to the bit; otherwise each needs a pass of its own."""
        return not self.decoder.config.design.gelu

    def compute(self, rows: Sequence[TrainedRow], *, gradients: bool) -> list[RowResult]:
        """Results of rows in one pass, in their order."""
        with torch.set_grad_enabled(gradients):
            used = [None if row.adapter is None else row.adapter.with_leaves() for row in rows]
            logprobs = list(self._logprobs(rows, used))
            losses = [row.loss(logp) for row, logp in zip(rows, logprobs, strict=True)]
        pieces: list[list[Tensor] | None] = [None] * len(rows)
        if gradients:
            leaves = [[] if one is None else [factor for _, factor in one.factors()] for one in used]
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
        linear = _RowProducts(decoder, adapters, [*lengths, -sum(lengths) % TILE])
        attend = _RowAttention(decoder, lengths)
        hidden = decoder.run(pad_to_tile(packed.tokens), pad_to_tile(packed.positions), attend, linear)
        for row, adapter, own in zip(rows, adapters, hidden.split(linear.lengths), strict=False):
            targets = torch.from_numpy(row.targets.reshape(len(row.tokens), -1))
            yield self._target_logprobs(own, targets, adapter).view(row.targets.shape)

    def _target_logprobs(self, hidden: Tensor, targets: Tensor, adapter: LoraAdapter | None) -> Tensor:
        """`[N, K]`: the arithmetic of the engine, over one chunk of positions after another."""
        size = max(TILE, _LOGITS // len(self.decoder.output_weight) // TILE * TILE)
        parts = [
            checkpoint(self._chunk, part, chosen, adapter, use_reentrant=False, preserve_rng_state=False)
            if torch.is_grad_enabled()
            else self._chunk(part, chosen, adapter)
            for part, chosen in zip(hidden.split(size), targets.split(size), strict=True)
        ]
        return torch.cat(parts)

    def _chunk(self, hidden: Tensor, targets: Tensor, adapter: LoraAdapter | None) -> Tensor:
        padded = pad_to_tile(hidden)
        linear = _RowProducts(self.decoder, [adapter], [len(hidden), len(padded) - len(hidden)])
        logits = self.decoder.logits(padded, linear)[: len(hidden), : self.vocab_used]
        return torch.log_softmax(logits, dim=-1).gather(1, targets)


class _RowProducts:
    """Linear layers of rows `lengths`, each with its adapter beside the base; the last length is padding."""

    def __init__(self, decoder: Decoder, adapters: Sequence[LoraAdapter | None], lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self._rows, self._adapters = decoder.rows, adapters

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out = self._rows.frozen(x, weight, bias)
        products: LinearFn = self._rows
        parts = list(x.split(self.lengths))
        added = [
            None if adapter is None else adapter.added_product(part, weight, products)
            for adapter, part in zip(self._adapters, parts, strict=False)
        ]
        if not any(one is not None for one in added):
            return out
        whole = [
            out.new_zeros(length, out.shape[1]) if one is None else one
            for one, length in zip([*added, None], self.lengths, strict=True)
        ]
        return out + torch.cat(whole)


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
