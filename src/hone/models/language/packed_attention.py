"""Attention over packed rows: index tables made once for a batch, then plain matrix products in every layer.

Texts are gathered into padded `[texts, heads, length, head_dim]` blocks of similar length. A branch is a text that
reads its trunk's keys again, so that no scores are computed between branches, which cannot see each other. On a CPU the
backward of torch's fused attention is several times slower than matrix products for short texts; on CUDA, and for long
texts, whose scores would not fit in memory, the fused form is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hone.core.ragged import Ints
from hone.models.gradient_buffers import AutogradContext
from hone.models.native.library import is_widened
from hone.models.packing import PackedBatch, index_numbers, packed_text_slots

FUSED_MIN_KEYS: Final = 1024
"""Longer texts are never given a `[heads, length, length]` tensor of scores."""
_MIN_FILL: Final = 0.7
"""A text joins a block while it fills so much of its length, in queries and in keys."""


class LayerAttention(Protocol):
    """Causal attention of a layer, owned by the storage of the keys (packed rows here, cache slots in an engine)."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`[T, heads, head_dim]`, twice `[T, kv_heads, head_dim]` -> `[T, heads * head_dim]`, at head_dim^-1/2."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLimits:
    """What attention sees, and how far its scores go."""

    windows: tuple[int | None, ...] = ()
    """Each layer's window: a token sees itself and so many tokens before it, less one; None, or no entry: all."""
    score_cap: float | None = None
    """Scores s become `cap tanh(s / cap)`."""

    def window(self, layer: int) -> int | None:
        """The window of a layer."""
        return self.windows[layer] if layer < len(self.windows) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PackedTexts:
    """B texts: the tokens that they own and those that they read."""

    slots: Ints
    """`[B, L]` token at each position of a text, its trunk's tokens before its own."""
    begins: Ints
    """`[B]` position of the first token that is its own."""
    ends: Ints
    """`[B]` position behind its last."""

    def take(self, index: Ints) -> "_PackedTexts":
        return _PackedTexts(slots=self.slots[index], begins=self.begins[index], ends=self.ends[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class _PaddedBlock:
    """Texts of similar length, padded to `queries` and `keys`."""

    texts: int
    queries: int
    keys: int
    masks: Mapping[int | None, Tensor]
    """Window -> `[texts, 1, 1, queries, keys]` additive mask: 0 visible, -inf masked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PaddingTable:
    """Where token-head pairs lie in the padded blocks, for one number of heads."""

    gather: Tensor
    """`[M]`: padded place -> row of `x.view(T * heads, head_dim)`; padding takes row 0, and is always masked."""
    scatter: Tensor
    """`[T * heads]`: inverse, to the place where a token is its text's own."""
    padding: Tensor
    """`[P]`: padded places that hold no token."""
    shared_trunk: Tensor
    """`[S]`: padded places of tokens that a branch reads from its trunk."""
    sizes: list[int]
    """Padded places of each block."""


class PackedAttention:
    """An `Attend` for one Packed batch."""

    def __init__(
        self,
        packed: PackedBatch,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        fused: bool = False,
        limits: AttentionLimits | None = None,
    ) -> None:
        """`fused`: torch's fused attention instead of matrix products; for CUDA."""
        self._limits = limits or AttentionLimits()
        windows = {None, *self._limits.windows}
        texts = _texts(packed)
        # Blocks of similar numbers of queries, and within them of keys.
        groups = similar_lengths(texts.ends - texts.begins)
        blocks = [texts.take(some[part]) for some in groups for part in similar_lengths(texts.ends[some])]
        device, total = packed.tokens.device, len(packed.tokens)
        self._heads, self._kv_heads, self._head_dim, self._fused = heads, kv_heads, head_dim, fused
        self._wide = torch.float32 if is_widened(dtype, device) else dtype
        self._blocks = [_block(block, windows, self._wide, device) for block in blocks]
        owned = [_padded_positions(block.slots, block.begins, block.ends) for block in blocks]
        read = [_padded_positions(block.slots, np.zeros_like(block.ends), block.ends) for block in blocks]
        self._query = _table(owned, [block.begins * 0 for block in blocks], total, heads, device)
        self._key = _table(read, [block.begins for block in blocks], total, kv_heads, device)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tokens, window = query.shape[0], self._limits.window(layer)
        parts = zip(
            self._blocks, self._pad(query, self._query), self._pad(key, self._key), self._pad(value, self._key),
            strict=True,
        )  # fmt: skip
        mixed = torch.cat([self._attend(block, block.masks[window], *part) for block, *part in parts])
        return _UnpadFunction.apply(mixed, self._query).view(tokens, -1)

    def _pad(self, x: Tensor, table: _PaddingTable) -> tuple[Tensor, ...]:
        flat = x.reshape(-1, self._head_dim)
        return torch.split(_PadFunction.apply(flat, table), table.sizes)

    def _attend(self, block: _PaddedBlock, mask: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """In float32 where products of bfloat16 are widened: the result, and each gradient, is rounded once."""
        if query.dtype != self._wide:
            wide = (x.to(self._wide) for x in (query, key, value))
            return self._attend(block, mask, *wide).to(query.dtype)
        texts, queries, keys, group = block.texts, block.queries, block.keys, self._heads // self._kv_heads
        cap = self._limits.score_cap
        if cap is None and (self._fused or keys > FUSED_MIN_KEYS):
            out = functional.scaled_dot_product_attention(
                query.view(texts, -1, queries, self._head_dim),
                key.view(texts, -1, keys, self._head_dim),
                value.view(texts, -1, keys, self._head_dim),
                attn_mask=mask[:, 0],
                enable_gqa=group > 1,
            )
            return out.reshape(-1, self._head_dim)
        # The query heads of one key head are stacked along the rows, so that keys are never repeated.
        q = (query * self._head_dim**-0.5).view(texts * self._kv_heads, group * queries, self._head_dim)
        k = key.view(texts * self._kv_heads, keys, self._head_dim)
        v = value.view(texts * self._kv_heads, keys, self._head_dim)
        scores = torch.bmm(q, k.transpose(1, 2)).view(texts, self._kv_heads, group, queries, keys)
        scores = scores if cap is None else torch.tanh(scores / cap) * cap
        weights = torch.softmax(scores.add_(mask), dim=-1)  # bfloat16: summed in float32, rounded once
        return torch.bmm(weights.view(texts * self._kv_heads, group * queries, keys), v).view(-1, self._head_dim)


class _PadFunction(torch.autograd.Function):
    """`x[take]`, with a copy as gradient (padding is masked), summed only over tokens that are read again."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, table: _PaddingTable) -> Tensor:
        ctx.table = table
        return x.index_select(0, table.gather)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, None]:
        table, grad = ctx.table, grads[0]
        own = grad.index_select(0, table.scatter)
        if not len(table.shared_trunk):
            return own, None
        wide = own.float() if own.dtype == torch.bfloat16 else own  # branches add up: rounded once
        wide.index_add_(0, table.gather[table.shared_trunk], grad.index_select(0, table.shared_trunk).to(wide.dtype))
        return wide.to(own.dtype), None


class _UnpadFunction(torch.autograd.Function):
    """`x[give]`; the gradient of a padded place is 0."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, table: _PaddingTable) -> Tensor:
        ctx.table = table
        return x.index_select(0, table.scatter)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, None]:
        padded = grads[0].index_select(0, ctx.table.gather)
        return padded.index_fill_(0, ctx.table.padding, 0.0), None


def _texts(packed: PackedBatch) -> _PackedTexts:
    sequence, slots = packed_text_slots(packed)
    count, positions = len(slots), index_numbers(packed.positions)
    begins, ends = np.full(count, slots.shape[1]), np.zeros(count, np.int64)
    np.minimum.at(begins, sequence, positions)
    np.maximum.at(ends, sequence, positions + 1)
    return _PackedTexts(slots=slots, begins=begins, ends=ends)


def similar_lengths(lengths: Ints) -> list[Ints]:
    """Numbers of texts `[B]` in blocks, the longest first, each text filling most of its block's length."""
    order = np.argsort(-lengths, kind="stable")
    starts: list[int] = []
    longest = 0
    for place, length in enumerate(lengths[order].tolist()):
        if not starts or length < _MIN_FILL * longest:
            starts.append(place)
            longest = length
    return np.split(order, starts[1:]) if starts else []


def _padded_positions(slots: Ints, first: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Tokens at the positions `first:ends` of each text, padded to `[texts, length]`; and these positions, -1: none."""
    length = int((ends - first).max())
    positions = first[:, None] + np.arange(length)
    real = positions < ends[:, None]
    tokens = np.take_along_axis(slots, np.minimum(positions, slots.shape[1] - 1), axis=1)
    return np.where(real, tokens, 0), np.where(real, positions, -1)


def _table(
    places: list[tuple[Ints, Ints]], begins: list[Ints], total: int, heads: int, device: torch.device
) -> _PaddingTable:  # fmt: skip
    """`begins`: positions before it belong to another text."""
    give = np.zeros(total * heads, np.int64)
    takes: list[Ints] = []
    padding: list[Ints] = []
    again: list[Ints] = []
    start = 0
    for (tokens, positions), own in zip(places, begins, strict=True):
        shape = (len(tokens), heads, tokens.shape[1])
        take = (tokens[:, None, :] * heads + np.arange(heads)[None, :, None]).reshape(-1)
        none = np.broadcast_to((positions < 0)[:, None, :], shape).reshape(-1)
        mine = np.broadcast_to((positions >= own[:, None])[:, None, :], shape).reshape(-1)
        give[take[mine]] = start + np.flatnonzero(mine)
        takes.append(np.where(none, 0, take))
        padding.append(start + np.flatnonzero(none))
        again.append(start + np.flatnonzero(~mine & ~none))
        start += len(take)
    nothing = np.zeros(0, np.int64)
    return _PaddingTable(
        gather=torch.from_numpy(np.concatenate([nothing, *takes])).to(device),
        padding=torch.from_numpy(np.concatenate([nothing, *padding])).to(device),
        shared_trunk=torch.from_numpy(np.concatenate([nothing, *again])).to(device),
        scatter=torch.from_numpy(give).to(device),
        sizes=[len(take) for take in takes],
    )


def _block(
    texts: _PackedTexts, windows: set[int | None], dtype: torch.dtype, device: torch.device
) -> _PaddedBlock:  # fmt: skip
    queries, keys = int((texts.ends - texts.begins).max()), int(texts.ends.max())
    positions = texts.begins[:, None] + np.arange(queries)
    behind = positions[:, :, None] - np.arange(keys)  # of each key, from the query
    masks = dict[int | None, Tensor]()
    for window in windows:
        hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
        # A padding query must see something, or its softmax is 0/0; so every query behind a text's end sees key 0.
        hidden[:, :, 0] &= positions < texts.ends[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        mask.masked_fill_(torch.from_numpy(hidden).to(device), -torch.inf)
        masks[window] = mask[:, None, None]
    return _PaddedBlock(texts=len(texts.ends), queries=queries, keys=keys, masks=masks)
