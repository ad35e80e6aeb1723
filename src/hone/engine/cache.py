"""Keys and values of running sequences, one slot each, and attention over them.

Every sum over keys is taken in blocks whose borders are fixed positions, so that a sequence's result does not depend on
how far its batch mates have come: blocks beyond its own length add exact zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from hone.engine.protocol import Shape
from hone.engine.rows import padded

FUSED_FROM: Final = 1024
"""Longer prompts are never given a `[heads, length, length]` tensor of scores."""
_FINE: Final = 64
_COARSE: Final = 256
_FINE_UNTIL: Final = 256


def block_edges(capacity: int) -> list[int]:
    """Block borders from 0 to at least `capacity`: every 64 positions up to 256, then every 256."""
    edges = [0]
    while edges[-1] < capacity:
        edges.append(edges[-1] + (_FINE if edges[-1] < _FINE_UNTIL else _COARSE))
    return edges


def _blocks_for(edges: list[int], positions: int) -> list[tuple[int, int]]:
    return [(a, b) for a, b in pairwise(edges) if a < positions]


class KeyValues:
    """`[layers, slots * kv_heads, 2, capacity, head_dim]`, allocated once; an `Attend` for one token in each row."""

    def __init__(self, shape: Shape, *, slots: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self._edges = block_edges(capacity)
        self.capacity = self._edges[-1]
        self.kv_heads, self.heads, self.head_dim = shape.kv_heads, shape.heads, shape.head_dim
        rows = padded(slots)
        self._store = torch.zeros(
            shape.layers, rows * shape.kv_heads, 2, self.capacity, shape.head_dim, dtype=dtype, device=device
        )
        self._flat = self._store.view(shape.layers, -1, shape.head_dim)
        self._mask = torch.full((rows, self.capacity), -torch.inf, dtype=dtype, device=device)
        # Place of (row, kv head) for keys at position 0; values lie `capacity` further.
        self._base = torch.arange(rows * shape.kv_heads, device=device).view(rows, -1) * (2 * self.capacity)
        self._put = self._base[:0].reshape(-1)
        self._blocks: list[tuple[int, int]] = []
        self._rows = 0

    def aim(self, positions: Tensor, longest: int) -> None:
        """Say where the next step's tokens go: `positions` `[n]` of rows 0..n-1, `longest` = max(positions)."""
        self._rows = len(positions)
        self._put = (self._base[: self._rows] + positions[:, None]).view(-1)
        self._mask[: self._rows].scatter_(1, positions[:, None], 0.0)
        self._blocks = _blocks_for(self._edges, longest + 1)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, last = self._rows * self.kv_heads, self._blocks[-1][1]
        flat, pairs = self._flat[layer], self._store[layer, :batch]
        flat.index_copy_(0, self._put, key.reshape(batch, self.head_dim))
        flat.index_copy_(0, self._put + self.capacity, value.reshape(batch, self.head_dim))
        q = (query * self.head_dim**-0.5).view(batch, -1, self.head_dim)
        scores = torch.bmm(q, pairs[:, 0, :last].transpose(1, 2))
        scores.view(self._rows, -1, last).add_(self._mask[: self._rows, None, :last])
        kept = torch.float32 if scores.dtype == torch.bfloat16 else scores.dtype
        weights = torch.softmax(scores, dim=-1, dtype=kept).to(scores.dtype)
        mixed = torch.bmm(weights[:, :, : self._edges[1]], pairs[:, 1, : self._edges[1]])
        for start, end in self._blocks[1:]:
            mixed = mixed.baddbmm_(weights[:, :, start:end], pairs[:, 1, start:end])
        return mixed.view(self._rows, -1)

    def load(self, row: int, prefix: Tensor) -> None:
        """Put a prompt's keys and values, `[layers, kv_heads, 2, P, head_dim]`, into a row that is taken anew."""
        length, first = prefix.shape[3], row * self.kv_heads
        self._store[:, first : first + self.kv_heads, :, :length] = prefix
        self._mask[row] = -torch.inf
        self._mask[row, :length] = 0.0

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        a, b, n = source * self.kv_heads, target * self.kv_heads, self.kv_heads
        self._store[:, b : b + n] = self._store[:, a : a + n]
        self._mask[target] = self._mask[source]

    def clear(self) -> None:
        """Forget everything: after a failure that may have left non-finite numbers behind."""
        self._store.zero_()
        self._mask.fill_(-torch.inf)


@dataclass(frozen=True, slots=True)
class _Group:
    """Prompts whose length rounds up to the same multiple of 16."""

    take: Tensor
    """`[rows * length]` token numbers; padding takes token 0."""
    give: Tensor
    """`[tokens]` places in the padded group."""
    tokens: Tensor
    """`[tokens]` token numbers."""
    mask: Tensor
    """`[length, length]` additive, causal; unused beyond FUSED_FROM. Padding lies behind: no real token sees it."""
    rows: int
    length: int


class Prefill:
    """An `Attend` for whole prompts, packed; keeps their keys and values.

    A prompt is computed in a block whose size depends on its own length alone.
    """

    def __init__(self, shape: Shape, lengths: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> None:
        self.kv_heads, self.heads, self.head_dim = shape.kv_heads, shape.heads, shape.head_dim
        self.lengths = list(lengths)
        self._kept: list[tuple[Tensor, Tensor]] = []
        starts = [sum(self.lengths[:i]) for i in range(len(self.lengths) + 1)]
        by_size: dict[int, list[int]] = {}
        for i, length in enumerate(self.lengths):
            by_size.setdefault(padded(length), []).append(i)
        self._starts = starts
        self._groups = [
            _group(size, [(starts[i], self.lengths[i]) for i in members], dtype, device)
            for size, members in by_size.items()
        ]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        del layer
        self._kept.append((key, value))
        out = query.new_zeros(query.shape)
        for group in self._groups:
            length, rows = group.length, group.rows
            q = self._block(query, group, self.heads, length)
            k = self._block(key, group, self.kv_heads, length)
            v = self._block(value, group, self.kv_heads, length)
            mixed = self._fused(q, k, v, rows) if length > FUSED_FROM else self._plain(q, k, v, group.mask)
            mixed = mixed.view(rows, self.heads, length, self.head_dim).transpose(1, 2).reshape(-1, *out.shape[1:])
            out[group.tokens] = mixed[group.give]
        return out.view(len(out), -1)

    def _plain(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        # The query heads of one key head are stacked along the rows, so that keys are never repeated.
        stacked = (q * self.head_dim**-0.5).reshape(len(k), -1, self.head_dim)
        scores = torch.bmm(stacked, k.transpose(1, 2))
        scores.view(-1, *mask.shape).add_(mask)
        kept = torch.float32 if scores.dtype == torch.bfloat16 else scores.dtype
        return torch.bmm(torch.softmax(scores, dim=-1, dtype=kept).to(v.dtype), v)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, rows: int) -> Tensor:
        q, k, v = (x.view(rows, -1, x.shape[1], self.head_dim) for x in (q, k, v))
        grouped = self.heads > self.kv_heads
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

    def _block(self, x: Tensor, group: _Group, heads: int, length: int) -> Tensor:
        rows = x[group.take].view(group.rows, length, heads, self.head_dim)
        return rows.transpose(1, 2).reshape(group.rows * heads, length, self.head_dim)

    def prefixes(self) -> list[Tensor]:
        """Of each prompt `[layers, kv_heads, 2, P, head_dim]`."""
        both = torch.stack([torch.stack(pair) for pair in self._kept]).permute(0, 3, 1, 2, 4)
        return [both[:, :, :, a:b] for a, b in pairwise(self._starts)]


def _group(size: int, members: list[tuple[int, int]], dtype: torch.dtype, device: torch.device) -> _Group:
    # A product over a batch of one takes another road than over several: never fewer than two rows.
    rows = max(2, len(members))
    take = torch.zeros(rows, size, dtype=torch.int64)
    for row, (start, length) in enumerate(members):
        take[row, :length] = torch.arange(start, start + length)
    give = torch.cat([row * size + torch.arange(length) for row, (_, length) in enumerate(members)])
    tokens = torch.cat([torch.arange(start, start + length) for start, length in members])
    shown = size if size <= FUSED_FROM else 1
    mask = torch.full((shown, shown), -torch.inf, dtype=dtype, device=device).triu_(1)
    return _Group(take.view(-1).to(device), give.to(device), tokens.to(device), mask, rows, size)
