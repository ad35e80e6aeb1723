"""Attention over packed rows by a compiled kernel: from the output of one linear layer to the input of the next.

The split of packed rows into the kernel's tasks, and the torch function. The kernel applies norms and rotary embeddings
on input, keeps the scores of a tile of queries in the CPU cache, and recomputes them in the backward pass.
"""

from dataclasses import dataclass
from typing import Final, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from hone.core.ragged import Ints
from hone.models.native.layers import DTYPE_CODES, address_of, call_kernel
from hone.models.native.library import HoneAttention
from hone.models.packing import PackedBatch, index_numbers

MAX_POSITIONS: Final = 2048
"""Positions; longer texts exceed the CPU cache, and leave too few tasks for the threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTexts:
    """Rows of texts, the costliest first; each begins with its trunk, which may be empty."""

    first: Ints
    """`[rows + 1]` offsets of each row's texts."""
    at: Ints
    """`[texts]` where a text's own tokens begin."""
    length: Ints
    """`[texts]` their number of tokens."""

    @classmethod
    def from_packed(cls, packed: PackedBatch) -> Self | None:
        """Texts of packed rows; None where the kernel does not support them: longer than LONGEST, or with split
        branches.
        """
        positions, count = index_numbers(packed.positions), len(packed.positions)
        lengths = np.diff(packed.offsets)
        row = np.repeat(np.arange(len(lengths)), lengths)
        branch = np.zeros(count, np.int64) if packed.branch is None else index_numbers(packed.branch)
        step = np.flatnonzero((np.diff(row) != 0) | (np.diff(branch) != 0)) + 1
        at = np.append(0, step) if count else step
        length = np.diff(np.append(at, count))
        is_trunk = branch[at] == 0
        trunks = np.zeros(len(lengths), np.int64)
        trunks[row[at[is_trunk]]] = length[is_trunk]
        begin = np.where(is_trunk, 0, trunks[row[at]])
        known = (
            len(np.unique(row[at] * (int(branch.max(initial=0)) + 1) + branch[at])) == len(at)
            and bool((at[is_trunk] == packed.offsets[row[at[is_trunk]]]).all())
            and np.array_equal(positions, np.arange(count) + np.repeat(begin - at, length))
            and int(positions.max(initial=0)) < MAX_POSITIONS
        )
        if not known:
            return None
        return cls._sorted(row[at], at, length, begin, trunks, packed.offsets[:-1])

    @classmethod
    def _sorted(cls, row: Ints, at: Ints, length: Ints, begin: Ints, trunks: Ints, starts: Ints) -> Self:
        """Rows sorted by cost; a text without tokens stands for the missing trunk of a row."""
        rows = len(trunks)
        cost = np.bincount(row, weights=length * (2 * begin + length), minlength=rows)
        rank = np.empty(rows, np.int64)
        rank[np.argsort(-cost, kind="stable")] = np.arange(rows)
        missing = np.flatnonzero(trunks == 0)
        row, begin = np.append(row, missing), np.append(begin, np.full(len(missing), -1))
        at, length = np.append(at, starts[missing]), np.append(length, np.zeros(len(missing), np.int64))
        order = np.lexsort((at, begin, rank[row]))
        counts = np.bincount(rank[row], minlength=rows)
        return cls(
            first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            at=np.ascontiguousarray(at[order], np.int64),
            length=np.ascontiguousarray(length[order], np.int64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeAttention:
    """Causal attention of one Packed batch, at head_dim^-1/2."""

    texts: KernelTexts
    turns: Tensor
    """`[T, head_dim / 2, 2]` float32: cosine and sine of each pair of features."""
    heads: int
    kv_heads: int
    head_dim: int

    def __call__(self, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, eps: float) -> Tensor:
        """`[T, (heads + 2 kv_heads) head_dim]` -> `[T, heads head_dim]`; the norms `[head_dim]`, both or none."""
        return _NativeAttentionFunction.apply(qkv, q_norm, k_norm, eps, self)

    def kernel_arguments(self, qkv: Tensor, norms: tuple[Tensor | None, Tensor | None], eps: float) -> HoneAttention:
        """Arguments of the C kernel, as pointers and sizes."""
        texts, kind = self.texts, DTYPE_CODES[qkv.dtype if norms[0] is None else norms[0].dtype]
        arrays = (array.ctypes.data for array in (texts.first, texts.at, texts.length))
        sizes = self.heads, self.kv_heads, self.head_dim, DTYPE_CODES[qkv.dtype], torch.get_num_threads()
        pointers = (address_of(tensor) for tensor in (qkv, self.turns, *norms))
        return HoneAttention(*sizes, len(texts.first) - 1, *arrays, *pointers, kind, eps)


class _NativeAttentionContext(Protocol):
    """Autograd context of both passes."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    plan: NativeAttention
    eps: float

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class _NativeAttentionFunction(torch.autograd.Function):
    """Saves its input and two numbers per query; scores are recomputed (Dao et al., "FlashAttention", 2022)."""

    @staticmethod
    def forward(
        ctx: _NativeAttentionContext,
        qkv: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        plan: NativeAttention,
    ) -> Tensor:
        qkv = qkv.contiguous()
        out, shares = qkv.new_empty(len(qkv), plan.heads * plan.head_dim), torch.empty(len(qkv), plan.heads, 2)
        ctx.save_for_backward(qkv, q_norm, k_norm, shares)
        ctx.plan, ctx.eps = plan, eps
        question = plan.kernel_arguments(qkv, (q_norm, k_norm), eps)
        question.mixed, question.shares = address_of(out), address_of(shares)
        call_kernel("hone_attend", question)
        return out

    @staticmethod
    def backward(ctx: _NativeAttentionContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (qkv, q_norm, k_norm, shares), plan, g = ctx.saved_tensors, ctx.plan, grads[0].contiguous()
        question, out = plan.kernel_arguments(qkv, (q_norm, k_norm), ctx.eps), torch.empty_like(qkv)
        question.mixed, question.shares, question.d_qkv = address_of(g), address_of(shares), address_of(out)
        if not any(ctx.needs_input_grad[1:3]):
            call_kernel("hone_attend_back", question)
            return out, None, None, None, None
        partial = torch.empty(question.tasks, plan.kv_heads, 2, plan.head_dim)
        norms = torch.empty(2, plan.head_dim)
        question.partial, question.d_norms = address_of(partial), address_of(norms)
        call_kernel("hone_attend_back", question)
        to_query, to_key = norms.to(q_norm.dtype)
        return out, to_query, to_key, None, None
