"""Batch-invariant arithmetic: a token's result depends, to the bit, only on its own text and not on its batch.

The linear layers and the attention that a generation engine and, with `exactness = "bitwise"`, the trainer share.
Matrix products add up in an order that depends on their shape, so every row is computed in a product whose shape
depends on the row's position only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hone.core.ragged import Ints
from hone.models.gradient_buffers import AutogradContext
from hone.models.language.packed_attention import AttentionLimits, LayerAttention, PackedAttention
from hone.models.language.token_logprobs import capped
from hone.models.native.library import WIDENED_ROWS, is_widened
from hone.models.packing import PackedBatch, packed_text_slots

TILE: Final = 16
"""Rows of a product are padded to multiples of it. MKL switches kernels below 11 to 16 rows, depending on the shape."""
STRIDE: Final = 32
"""Keys are read in multiples of it; a multiple of TILE."""
_MAX_ROWS: Final = 256
"""Rows of the largest linear product that is tried."""
_PROBE_ELEMENTS: Final = 1 << 24
"""Weights up to this size are replaced by random numbers for the measurement."""
_SCORES: Final = 1 << 22
"""Largest number of scores held at once."""


def pad_to_tile(x: Tensor) -> Tensor:
    """`x` `[n, ...]` with zeros behind it, up to a multiple of TILE."""
    missing = -len(x) % TILE
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x


@dataclass
class BatchInvariantLinear:
    """`F.linear` for a number of rows that is a multiple of TILE; on CUDA it is `F.linear`.

    A row's value is, by definition, its value in a product of TILE rows; larger products are used up to the size for
    which this machine gave the same bits. Gradients are plain products.
    """

    exact: bool = True
    """Whether every shape so far gave the same bits in each place of a tile; always False on CUDA."""
    _limits: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])

    @property
    def tile(self) -> int:
        return TILE

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return _BatchInvariantLinearFunction.apply(x, weight, bias, self)

    def frozen(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The same product, of a weight that is not trained; the gradient of `x` does not depend on the batch either,
        and neither weight nor bias gets one."""
        return _FrozenLinearFunction.apply(x, weight, bias, self)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not is_widened(x.dtype, x.device):
            return self._product(x, weight, bias)
        wide, out = x.float(), x.new_empty(len(x), len(weight))
        for at in range(0, len(weight), WIDENED_ROWS):
            part = slice(at, at + WIDENED_ROWS)
            out[:, part] = self._product(wide, weight[part].float(), None if bias is None else bias[part].float())
        return out

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # The split of a product over threads is part of the order of its sums.
        kind = (weight.shape, weight.dtype, bias is None, weight.is_contiguous(), torch.get_num_threads())
        limit = self._limits.get(kind)
        if limit is None:
            limit = self._limits[kind] = self._measure(weight, bias)
        if x.shape[0] <= limit:
            return functional.linear(x, weight, bias)
        return torch.cat([functional.linear(part, weight, bias) for part in x.contiguous().split(limit)])

    def _measure(self, weight: Tensor, bias: Tensor | None) -> int:
        """Largest row count up to which every multiple of TILE gives the bits of TILE rows."""
        if weight.is_cuda:
            self.exact = False
            return 1 << 62
        draws = torch.Generator().manual_seed(0)
        x = torch.randn(_MAX_ROWS, weight.shape[1], generator=draws).to(weight.dtype)
        if weight.numel() <= _PROBE_ELEMENTS:
            stored = weight if weight.is_contiguous() else weight.t()
            random = torch.randn(stored.shape, generator=draws).to(weight.dtype)
            weight = random if weight.is_contiguous() else random.t()
        tiles = torch.cat([functional.linear(part, weight, bias) for part in x.split(TILE)])
        turned = functional.linear(x[:TILE].flip(0).contiguous(), weight, bias).flip(0)
        if not torch.equal(turned, tiles[:TILE]):
            self.exact = False
        for rows in range(2 * TILE, _MAX_ROWS + 1, TILE):
            if not torch.equal(functional.linear(x[:rows], weight, bias), tiles[:rows]):
                return rows - TILE
        return _MAX_ROWS


@dataclass(frozen=True, slots=True)
class _QueryTiles:
    """Query tiles that read the same number of keys, in one pair of products."""

    take: Tensor
    """`[m * heads * TILE]` rows of the queries `[T * heads, head_dim]`; a place without a token takes row 0."""
    read: Tensor
    """`[m * kv_heads * width]` rows of the keys `[slots * kv_heads, head_dim]`."""
    mask: Tensor
    """`[m, 1, TILE, STRIDE]` additive mask of the last STRIDE keys; all earlier ones are visible."""
    windows: Mapping[int, Tensor]
    """Window -> `[m, 1, TILE, width]` additive mask of the keys before it."""


class BatchInvariantAttention:
    """Causal attention of T queries over keys in slots.

    TILE positions of a sequence are one tile, in which position p always has row p % TILE; a tile that ends at position
    e reads ceil(e / STRIDE) * STRIDE keys. So the shape of both products, and the row in it, are functions of a query's
    position: its bits cannot depend on its neighbours.
    """

    def __init__(
        self,
        sequence: Ints,
        positions: Ints,
        slots: Ints,
        *,
        heads: int,
        kv_heads: int,
        device: torch.device,
        limits: AttentionLimits | None = None,
    ) -> None:
        """`sequence` `[T]` rows of `slots` `[B, L]`, the slot of each position of each sequence; `positions` `[T]`."""
        self._heads, self._kv_heads, self._limits = heads, kv_heads, limits or AttentionLimits()
        windows = {window for window in self._limits.windows if window is not None}
        length = slots.shape[1] // TILE + 1
        tiles, tile = np.unique(sequence * length + positions // TILE, return_inverse=True)
        owner, base = tiles // length, tiles % length * TILE
        width = -(-(base + TILE) // STRIDE) * STRIDE
        order = np.argsort(width, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        place = ((rank[tile] * heads)[:, None] + np.arange(heads)) * TILE + (positions % TILE)[:, None]
        take = np.zeros(len(order) * heads * TILE, np.int64)
        take[place.reshape(-1)] = np.arange(place.size)
        self._give = torch.from_numpy(place.reshape(-1)).to(device)
        self._groups: list[_QueryTiles] = []
        for start, stop in _chunks(width[order], heads):
            longest, some = int(width[order[start]]), order[start:stop]
            last, by_window = _masks(base[some], longest, windows)
            self._groups.append(
                _QueryTiles(
                    take=torch.from_numpy(take[start * heads * TILE : stop * heads * TILE]).to(device),
                    read=_read(slots, owner[some], longest, kv_heads).to(device),
                    mask=last.to(device),
                    windows={window: one.to(device) for window, one in by_window.items()},
                )
            )

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, layer: int = 0) -> Tensor:
        """`[T, heads, head_dim]`, twice `[slots, kv_heads, head_dim]` -> `[T, heads * head_dim]`."""
        size, window = query.shape[-1], self._limits.window(layer)
        q = (query * size**-0.5).reshape(-1, size)
        k, v = keys.view(-1, size), values.view(-1, size)
        mixed = torch.cat([self._attend(q, k, v, group, window).to(query.dtype) for group in self._groups])
        return mixed.index_select(0, self._give).view(len(query), -1)

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, group: _QueryTiles, window: int | None
    ) -> Tensor:  # fmt: skip
        items, size = len(group.mask) * self._kv_heads, query.shape[-1]
        q = query.index_select(0, group.take).view(items, -1, size)
        k = keys.index_select(0, group.read).view(items, -1, size)
        v = values.index_select(0, group.read).view(items, -1, size)
        if items == 1:  # a product over a batch of one takes another road than over several
            q, k, v = q.expand(2, -1, -1), k.expand(2, -1, -1), v.expand(2, -1, -1)
        if is_widened(query.dtype, query.device):  # all of it in float32; the caller rounds once
            q, k, v = q.float(), k.float(), v.float()
        scores = torch.bmm(q, k.transpose(1, 2))[:items]
        if self._limits.score_cap is not None:
            scores = capped(scores, self._limits.score_cap)
        by_tile = scores.view(len(group.mask), self._heads, TILE, -1)
        by_tile[..., -STRIDE:].add_(group.mask)
        if window is not None:
            by_tile.add_(group.windows[window])
        weights = torch.softmax(scores, dim=-1)  # bfloat16: summed in float32, rounded once
        if items == 1:
            weights = weights.expand(2, -1, -1)
        return torch.bmm(weights, v)[:items].view(-1, size)


class BatchInvariantPackedAttention:
    """A `LayerAttention` for one PackedBatch: BatchInvariantAttention's values, PackedAttention's gradient.

    A branch is a text of its own that begins with the trunk, so that shared prompts change no bit. Rows beyond the
    packed tokens are padding, and get zeros.
    """

    def __init__(
        self,
        packed: PackedBatch,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        limits: AttentionLimits | None = None,
    ) -> None:
        sequence, slots = packed_text_slots(packed)
        positions, device = packed.positions.cpu().numpy(), packed.tokens.device
        self._fixed = BatchInvariantAttention(
            sequence, positions, slots, heads=heads, kv_heads=kv_heads, device=device, limits=limits
        )
        self._usual = PackedAttention(
            packed, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, limits=limits
        )
        self._count = len(positions)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen = (x[: self._count].contiguous() for x in (query, key, value))
        out = _BatchInvariantAttentionFunction.apply(*seen, self._fixed, self._usual, layer)
        return functional.pad(out, (0, 0, 0, len(query) - self._count))


def batch_invariant_logits(rows: BatchInvariantLinear, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """`(hidden [n, D], used) -> [n, len(used)]` logits as an engine computes them: over the whole output `weight`,
    which may have more rows than the `used` part of the vocabulary.
    """
    whole = weight.detach()

    def product(hidden: Tensor, used: Tensor) -> Tensor:
        return rows.product(pad_to_tile(hidden), whole, None)[: len(hidden), : len(used)]

    return product


class _BatchInvariantLinearFunction(torch.autograd.Function):
    """y = x w^T + b by rows;  dx = g w,  dw = g^T x,  db = sum g."""

    @staticmethod
    def forward(
        ctx: AutogradContext, x: Tensor, weight: Tensor, bias: Tensor | None, rows: BatchInvariantLinear
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        return rows.product(x, weight, bias)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (x, weight), g = ctx.saved_tensors, grads[0]
        to_x, to_weight, to_bias = ctx.needs_input_grad[:3]
        return g @ weight if to_x else None, g.t() @ x if to_weight else None, g.sum(0) if to_bias else None, None


class _FrozenLinearFunction(torch.autograd.Function):
    """y = x w^T + b by rows;  dx = g w by rows."""

    @staticmethod
    def forward(
        ctx: AutogradContext, x: Tensor, weight: Tensor, bias: Tensor | None, rows: BatchInvariantLinear
    ) -> Tensor:
        ctx.weight, ctx.rows = weight, rows
        return rows.product(x, weight, bias)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.rows.product(grads[0].contiguous(), ctx.weight.detach().t(), None), None, None, None


class _BatchInvariantAttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: AutogradContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        fixed: BatchInvariantAttention,
        usual: LayerAttention,
        layer: int,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.usual, ctx.layer = usual, layer
        return fixed(query, key, value, layer)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = tuple(x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad():
            out = ctx.usual(ctx.layer, *inputs)
        return (*torch.autograd.grad(out, inputs, grads[0]), None, None, None)


def _chunks(width: Ints, heads: int) -> Iterator[tuple[int, int]]:
    """Runs of one width `[U]` ascending, cut so that their scores fit."""
    ends = np.append(np.flatnonzero(np.diff(width)) + 1, len(width))
    start = 0
    for end in ends.tolist():
        most = max(1, _SCORES // (int(width[start]) * heads * TILE)) if end else 1
        while start < end:
            stop = min(start + most, end)
            yield start, stop
            start = stop


def _read(slots: Ints, owner: Ints, width: int, kv_heads: int) -> Tensor:
    """Key rows for each text in `owner` `[m]`; positions beyond a text are masked, and read slot 0."""
    there = np.zeros((len(owner), width), np.int64)
    known = slots[owner, :width]
    there[:, : known.shape[1]] = known
    rows = there[:, None, :] * kv_heads + np.arange(kv_heads)[None, :, None]
    return torch.from_numpy(rows.reshape(-1))


def _masks(base: Ints, width: int, windows: Iterable[int]) -> tuple[Tensor, dict[int, Tensor]]:
    """A mask of the last STRIDE keys, and for each window one that hides keys so many or more places before a query."""

    def mask(hidden: NDArray[np.bool_]) -> Tensor:
        return torch.zeros(hidden.shape).masked_fill_(torch.from_numpy(hidden), -torch.inf)[:, None]

    rows = np.arange(TILE)[:, None]
    behind = base[:, None, None] + rows - np.arange(width)
    late = np.arange(STRIDE) > (base % STRIDE)[:, None, None] + rows
    return mask(late), {window: mask(behind >= window) for window in windows}
