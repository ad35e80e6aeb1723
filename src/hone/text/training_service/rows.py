"""Forward and backward passes of rows that belong to several adapters of one decoder, together or one by one.

A row's log-probabilities and gradient are, to the bit, those that it has alone: products of the base and of the
adapters are batch-invariant in both directions, and all else (attention, norms, the loss, the gradient of the row's
adapter) is computed row by row, by compiled kernels where they can. For a sampler whose log-probabilities are to be the
trainer's to the bit, and for rows that are longer than kernels reach, torch computes what that sampler does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hone.core.errors import ConfigError
from hone.core.ragged import Ints
from hone.models.gradient_buffers import AutogradContext
from hone.models.language.batch_invariant import (
    TILE,
    BatchInvariantPackedAttention,
    pad_to_tile,
)
from hone.models.language.decoder import Decoder
from hone.models.language.lora import LoraAdapter
from hone.models.packing import pack_rows

_LOGITS: Final = 1 << 24
"""Logits that live at once, 64 MiB; of a pass with more, the backward pass computes them again."""


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
    """Parts that one after another are the gradient: one for all factors of the row's adapter, in the order of
    `LoraAdapter.factors`, or one for each of the decoder's parameters. None if not asked for."""


@dataclass(slots=True, eq=False)
class RowModel:
    """A decoder in float32 on a CPU, as the service computes with it."""

    decoder: Decoder
    vocab_used: int
    """Logits from here on have probability 0."""
    trained: bool = False
    """Whether the decoder's own weights are trained, all of them, and rows have no adapters."""
    reach: int = 0
    """Tokens of the longest row that compiled kernels compute."""

    def prepare(self, context: int, *, exact: bool = False) -> None:
        """Set the decoder's arithmetic, for rows of at most `context` tokens; `exact`: that of the sampler by torch.
        Raises ConfigError for a model whose rows depend on each other."""
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
        self.reach = 0 if exact else self.decoder.kernel_reach()
        for parameter in self.decoder.parameters():
            parameter.requires_grad = False

    @property
    def shares_passes(self) -> bool:
        """Whether rows of one pass do not depend on each other to the bit; otherwise each needs a pass of its own, as
        it does where its gradient is that of all weights."""
        return not (self.trained or self.decoder.config.design.gelu)

    def for_training(self) -> "RowModel":
        """The same model with weights of its own, which share this one's memory until they are moved."""
        return RowModel(self.decoder.twin({}, trained=True), self.vocab_used, trained=True, reach=self.reach)

    def compute(self, rows: Sequence[TrainedRow], *, gradients: bool) -> list[RowResult]:
        """Results of rows in one pass, in their order; in two where only some are within the kernels' reach."""
        results: dict[int, RowResult] = {}
        for long in (False, True):
            places = [place for place, row in enumerate(rows) if self._long(row) == long]
            if places:
                some = self._compute([rows[place] for place in places], gradients=gradients)
                results |= zip(places, some, strict=True)
        return [results[place] for place in range(len(rows))]

    def _long(self, row: TrainedRow) -> bool:
        return len(row.tokens) > self.reach

    def _compute(self, rows: Sequence[TrainedRow], *, gradients: bool) -> list[RowResult]:
        pieces, slopes = list[_Piece](), dict[int, _Slopes]()
        for row in rows:
            line = sum(one.adapter is row.adapter for one in pieces)
            pieces.append(_Piece(adapter=row.adapter, tokens=len(row.tokens), line=line))
        for one in reversed(pieces) if gradients else ():  # the last one of an adapter knows how many there are
            if one.adapter is not None and id(one.adapter) not in slopes:
                slopes[id(one.adapter)] = _Slopes.of(one.adapter, one.line + 1)
        with torch.set_grad_enabled(gradients):
            logprobs = self._logprobs(rows, pieces, slopes)
            losses = [row.loss(logp) for row, logp in zip(rows, logprobs, strict=True)]
        parts: list[list[Tensor] | None] = [None] * len(rows)
        if gradients and self.trained:
            parts = [list(torch.autograd.grad(losses[0], list(self.decoder.parameters())))]
        elif gradients:
            torch.autograd.backward(losses)
            parts = [[] if one.adapter is None else [slopes[id(one.adapter)].lines[one.line]] for one in pieces]
        return [
            RowResult(logprobs=logp.detach().numpy().astype(np.float32), loss=float(loss.detach()), gradient=part)
            for logp, loss, part in zip(logprobs, losses, parts, strict=True)
        ]

    def _logprobs(
        self, rows: Sequence[TrainedRow], pieces: Sequence["_Piece"], slopes: Mapping[int, "_Slopes"]
    ) -> list[Tensor]:
        """Log-probabilities of each row's targets. A backward pass adds gradients to `slopes`, by the adapter's id."""
        decoder, packed = self.decoder, pack_rows([row.tokens.astype(np.int32) for row in rows])
        lengths = [len(row.tokens) for row in rows]
        linear = _RowProducts(self, pieces, slopes)
        if self._long(rows[0]):
            attend = _RowAttention(decoder, lengths)
            hidden = decoder.run(pad_to_tile(packed.tokens), pad_to_tile(packed.positions), attend, linear)
        else:
            hidden = decoder.hidden_by_kernels(packed, linear)
        parts = [
            checkpoint(self._target_logprobs, *chunk, use_reentrant=False, preserve_rng_state=False)
            if recomputed and torch.is_grad_enabled()
            else self._target_logprobs(*chunk)
            for chunk, recomputed in self._chunks(hidden[: sum(lengths)], rows, linear)
        ]
        each = torch.cat(parts).split(lengths)
        return [
            logp[:, : row.targets.size // len(logp)].reshape(row.targets.shape)
            for row, logp in zip(rows, each, strict=True)
        ]

    def _chunks(
        self, hidden: Tensor, rows: Sequence[TrainedRow], linear: "_RowProducts"
    ) -> Iterator[tuple[tuple[Tensor, Tensor, "_RowProducts"], bool]]:
        """Neighbouring tokens whose logits fit into memory, with their targets `[n, K]`, and whether there are several
        chunks. Where a row is cut does not depend on its neighbours."""
        size = max(TILE, _LOGITS // len(self.decoder.output_weight) // TILE * TILE)
        chunks, used = [list[_Piece]()], 0
        for one in linear.pieces:
            for at in range(0, one.tokens, size):
                part = replace(one, tokens=min(size, one.tokens - at))
                if used + part.tokens > size:
                    chunks.append([])
                    used = 0
                chunks[-1].append(part)
                used += part.tokens
        columns = max(row.targets.size // len(row.tokens) for row in rows)
        targets = torch.zeros(len(hidden), columns, dtype=torch.int64)
        for row, place in zip(rows, targets.split([len(row.tokens) for row in rows]), strict=True):
            own = torch.from_numpy(row.targets.reshape(len(row.tokens), -1))
            place[:, : own.shape[1]] = own
        sizes = [sum(part.tokens for part in chunk) for chunk in chunks]
        for chunk, states, chosen in zip(chunks, hidden.split(sizes), targets.split(sizes), strict=True):
            yield (states, chosen, _RowProducts(self, chunk, linear.slopes)), len(chunks) > 1

    def _target_logprobs(self, hidden: Tensor, targets: Tensor, linear: "_RowProducts") -> Tensor:
        """`[n, K]`: the arithmetic of the engine by torch."""
        logits = self.decoder.logits(hidden, linear)
        if self.vocab_used < logits.shape[1]:
            logits = logits[:, : self.vocab_used]
        return torch.log_softmax(logits, dim=-1).gather(1, targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Neighbouring tokens of a row."""

    adapter: LoraAdapter | None
    tokens: int
    line: int
    """The row's number among those of its adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slopes:
    """Gradients of an adapter for each of its rows."""

    lines: Tensor
    """`[rows, P]`: all factors one after another."""
    columns: Mapping[int, slice]
    """Columns of each factor, by the factor's id."""

    @classmethod
    def of(cls, adapter: LoraAdapter, rows: int) -> "_Slopes":
        """Zeros."""
        columns, at = dict[int, slice](), 0
        for _, factor in adapter.factors():
            columns[id(factor)] = slice(at, at + factor.numel())
            at += factor.numel()
        return cls(lines=torch.zeros(rows, at), columns=columns)

    def add(self, factor: Tensor, first: int, more: Tensor) -> None:
        """Add the gradients `[pieces, *factor.shape]` of neighbouring rows, from number `first` on."""
        self.lines[first : first + more.shape[0], self.columns[id(factor)]].view(more.shape).add_(more)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """Neighbouring pieces of one adapter, in a product."""

    adapter: LoraAdapter
    place: slice
    """Their tokens."""
    runs: Sequence[Sequence[_Piece]]
    """The pieces, neighbours of equal length together."""
    slopes: _Slopes | None
    """Gradients of the adapter; None in a forward pass alone."""

    def add_slopes(
        self,
        factors: Sequence[tuple[slice, nn.Parameter, nn.Parameter]],
        to_low: Tensor,
        x: Tensor,
        above: Tensor,
        low: Tensor,
    ) -> None:
        """Add the gradients of A, `to_low^T x`, and of B, `above^T low`, of the group's tokens to their rows'."""
        assert self.slopes is not None
        for run, to_a, to_b in zip(self.runs, self._products(to_low, x), self._products(above, low), strict=True):
            parts = zip(factors, to_a.chunk(len(factors), 1), to_b.chunk(len(factors), 2), strict=True)
            for (place, factor_a, factor_b), part_a, part_b in parts:
                self.slopes.add(factor_a, run[0].line, part_a)
                self.slopes.add(factor_b, run[0].line, part_b[:, place])

    def _products(self, above: Tensor, below: Tensor) -> Iterator[Tensor]:
        """`above^T below` `[pieces, A, B]` of each run, for `[n, A]` and `[n, B]`: sums over a piece's tokens alone.

        Where tokens lie in memory must not choose how they are multiplied, so each piece begins at a multiple of TILE
        rows, copied if need be; and a batch of one takes another road than one of several.
        """
        at = self.place.start
        for run in self.runs:
            count, tokens = len(run), run[0].tokens
            span = slice(at - self.place.start, at - self.place.start + tokens * count)
            left, right = (self._aligned(x[span].view(count, tokens, -1), at) for x in (above, below))
            if count == 1:
                left, right = left.expand(2, -1, -1), right.expand(2, -1, -1)
            yield torch.bmm(left.transpose(1, 2), right)[:count]
            at += tokens * count

    def _aligned(self, x: Tensor, at: int) -> Tensor:
        missing = -x.shape[1] % TILE
        if missing:
            return nn.functional.pad(x, (0, 0, 0, missing))
        return x.clone() if at % TILE else x


@dataclass(slots=True, eq=False)
class _RowProducts:
    """Linear layers of rows, each with its adapter beside the base."""

    model: RowModel
    pieces: Sequence[_Piece]
    """What lies behind them is padding."""
    slopes: Mapping[int, _Slopes]
    """By the adapter's id; empty for a forward pass alone."""
    groups: list[_Beside] = field(default_factory=list[_Beside])
    anchor: Tensor = field(default_factory=lambda: torch.zeros(0, requires_grad=True))
    """Asks autograd for gradients of factors also where the input needs none."""

    def __post_init__(self) -> None:
        at = 0
        for _, run in groupby(self.pieces, lambda one: id(one.adapter)):
            pieces = list(run)
            place = slice(at, at + sum(one.tokens for one in pieces))
            if pieces[0].adapter is not None:
                runs = [list(same) for _, same in groupby(pieces, lambda one: one.tokens)]
                slopes = self.slopes.get(id(pieces[0].adapter))
                self.groups.append(_Beside(adapter=pieces[0].adapter, place=place, runs=runs, slopes=slopes))
            at = place.stop

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.model.trained:
            return self.model.decoder.rows(pad_to_tile(x), weight, bias)[: len(x)]
        return _RowProductFunction.apply(x, self.anchor, weight, bias, self)


class _RowProductFunction(torch.autograd.Function):
    """y = x W^T + b + scale x A^T B^T, the latter of each row's adapter; dx = g W + scale g B A. The gradients of A and
    B go to the pieces, a row's own to each: they are those of a pass without the others."""

    @staticmethod
    def forward(
        ctx: AutogradContext, x: Tensor, anchor: Tensor, weight: Tensor, bias: Tensor | None, layer: _RowProducts
    ) -> Tensor:
        del anchor
        product, kept = layer.model.decoder.rows.product, list[Tensor]()
        out = product(pad_to_tile(x), weight, bias)[: len(x)]
        for group in layer.groups:
            if (stacked := group.adapter.stacked_beside(weight)) is None:
                continue
            own, (a, b) = x[group.place], stacked
            low = product(pad_to_tile(own), a, None).mul_(group.adapter.settings.scale)
            out[group.place].add_(product(low, b, None)[: len(own)])
            kept += [a, b, low]
        ctx.layer, ctx.weight = layer, weight
        ctx.save_for_backward(*([x, *kept] if kept else []))
        return out

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, layer, weight = grads[0].contiguous(), ctx.layer, ctx.weight
        product = layer.model.decoder.rows.product
        to_x = product(pad_to_tile(g), weight.t(), None)[: len(g)] if ctx.needs_input_grad[0] else None
        x, *kept = ctx.saved_tensors or (g,)
        for group in layer.groups:
            if not (factors := group.adapter.factors_beside(weight)):
                continue
            (a, b, low), kept = kept[:3], kept[3:]
            own, above = x[group.place], g[group.place]
            to_low = product(pad_to_tile(above), b.t(), None).mul_(group.adapter.settings.scale)
            if to_x is not None:
                to_x[group.place].add_(product(to_low, a.t(), None)[: len(own)])
            group.add_slopes(factors, to_low[: len(own)], own, above, low[: len(own)])
        return to_x, None, None, None, None


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
