"""Attention over packed rows: index tables made once for a batch, then plain matrix products in every layer.

Rows are gathered into padded `[rows, heads, length, head_dim]` blocks of similar length. On a CPU the backward of
torch's fused attention is several times slower than matrix products for short rows; on CUDA, and for long rows, whose
scores would not fit in memory, the fused form is used.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hone.models.packed import Packed

FUSED_FROM: Final = 1024
"""Longer rows are never given a `[heads, length, length]` tensor of scores."""


class Attend(Protocol):
    """Causal attention, owned by whoever knows where the keys are (packed rows here, cache slots in an engine)."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`[T, heads, head_dim]`, twice `[T, kv_heads, head_dim]` -> `[T, heads * head_dim]`, at head_dim^-1/2."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Rows of similar length, padded to `length`."""

    rows: int
    length: int
    mask: Tensor
    """`[rows, 1, 1, length, length]` additive: 0 seen, -inf not seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Where token-head pairs lie in the padded blocks, for one number of heads."""

    take: Tensor
    """`[M]`: padded place -> row of `x.view(T * heads, head_dim)`; padding takes row 0, and is never seen."""
    give: Tensor
    """`[T * heads]`: the way back."""
    padding: Tensor
    """`[P]`: padded places that hold no token."""
    sizes: list[int]
    """Padded places of each block."""


class PackedAttention:
    """An `Attend` for one Packed batch."""

    def __init__(
        self, packed: Packed, *, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, fused: bool = False
    ) -> None:
        """`fused`: torch's own attention instead of matrix products; for CUDA."""
        lengths = np.diff(packed.offsets)
        blocks = _group(lengths)
        device = packed.tokens.device
        self._heads, self._kv_heads, self._head_dim, self._fused = heads, kv_heads, head_dim, fused
        self._blocks = [_block(packed, rows, dtype) for rows in blocks]
        self._query = _table(packed.offsets, blocks, heads, device)
        self._key = self._query if heads == kv_heads else _table(packed.offsets, blocks, kv_heads, device)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        del layer
        tokens = query.shape[0]
        parts = zip(
            self._blocks, self._pad(query, self._query), self._pad(key, self._key), self._pad(value, self._key),
            strict=True,
        )  # fmt: skip
        mixed = torch.cat([self._attend(*part) for part in parts])
        return _Unpad.apply(mixed, self._query).view(tokens, -1)

    def _pad(self, x: Tensor, table: _Table) -> tuple[Tensor, ...]:
        flat = x.reshape(-1, self._head_dim)
        return torch.split(_Pad.apply(flat, table), table.sizes)

    def _attend(self, block: _Block, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, length, group = block.rows, block.length, self._heads // self._kv_heads
        if self._fused or length > FUSED_FROM:
            shape = (rows, -1, length, self._head_dim)
            out = functional.scaled_dot_product_attention(
                query.view(shape), key.view(shape), value.view(shape), attn_mask=block.mask[:, 0], enable_gqa=group > 1
            )
            return out.reshape(-1, self._head_dim)
        # The query heads of one key head are stacked along the rows, so that keys are never repeated.
        q = (query * self._head_dim**-0.5).view(rows * self._kv_heads, group * length, self._head_dim)
        k = key.view(rows * self._kv_heads, length, self._head_dim)
        v = value.view(rows * self._kv_heads, length, self._head_dim)
        scores = torch.bmm(q, k.transpose(1, 2)).view(rows, self._kv_heads, group, length, length)
        scores = scores.add_(block.mask)
        kept = torch.float32 if scores.dtype == torch.bfloat16 else scores.dtype
        weights = torch.softmax(scores, dim=-1, dtype=kept).to(v.dtype)
        return torch.bmm(weights.view(rows * self._kv_heads, group * length, length), v).view(-1, self._head_dim)


class _Context(Protocol):
    table: _Table


class _Pad(torch.autograd.Function):
    """`x[take]`, whose gradient is a copy as well: what padding read is never seen, so that it gets no gradient."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, table: _Table) -> Tensor:
        ctx.table = table
        return x.index_select(0, table.take)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].index_select(0, ctx.table.give), None


class _Unpad(torch.autograd.Function):
    """`x[give]`; the gradient of a padded place is 0."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, table: _Table) -> Tensor:
        ctx.table = table
        return x.index_select(0, table.give)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor, None]:
        padded = grads[0].index_select(0, ctx.table.take)
        return padded.index_fill_(0, ctx.table.padding, 0.0), None


def _group(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Row numbers in blocks; a row joins a block while it fills at least 70% of its length."""
    order = np.argsort(-lengths, kind="stable")
    blocks: list[list[int]] = []
    longest = 0
    for row in order.tolist():
        if not lengths[row]:
            continue
        if not blocks or lengths[row] < 0.7 * longest:
            blocks.append([])
            longest = int(lengths[row])
        blocks[-1].append(row)
    return [np.asarray(rows, np.int64) for rows in blocks]


def _places(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """`[rows, length]` token numbers, and which of them are real."""
    lengths = offsets[rows + 1] - offsets[rows]
    steps = np.arange(lengths.max())
    real = steps[None, :] < lengths[:, None]
    return np.where(real, offsets[rows][:, None] + steps[None, :], 0), real


def _table(
    offsets: NDArray[np.int64], blocks: list[NDArray[np.int64]], heads: int, device: torch.device
) -> _Table:  # fmt: skip
    total = int(offsets[-1])
    give = np.zeros(total * heads, np.int64)
    takes: list[NDArray[np.int64]] = []
    padding: list[NDArray[np.int64]] = []
    start = 0
    for rows in blocks:
        tokens, real = _places(offsets, rows)
        take = (tokens[:, None, :] * heads + np.arange(heads)[None, :, None]).reshape(-1)
        seen = np.broadcast_to(real[:, None, :], (len(rows), heads, tokens.shape[1])).reshape(-1)
        give[take[seen]] = start + np.flatnonzero(seen)
        takes.append(np.where(seen, take, 0))
        padding.append(start + np.flatnonzero(~seen))
        start += len(take)
    none = np.zeros(0, np.int64)
    return _Table(
        take=torch.from_numpy(np.concatenate([none, *takes])).to(device),
        padding=torch.from_numpy(np.concatenate([none, *padding])).to(device),
        give=torch.from_numpy(give).to(device),
        sizes=[len(take) for take in takes],
    )


def _block(packed: Packed, rows: NDArray[np.int64], dtype: torch.dtype) -> _Block:
    places, real = _places(packed.offsets, rows)
    device = packed.tokens.device
    length = places.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None]
    if packed.branch is not None:
        branch = packed.branch[torch.from_numpy(places).to(device)]
        seen = seen & ((branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None]))
    is_real = torch.from_numpy(real).to(device)
    seen = seen & is_real[:, None, :]
    seen[:, :, 0] |= ~is_real  # a padding query must see something, or its softmax is 0/0
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)
    return _Block(rows=len(rows), length=length, mask=mask[:, None, None])
