"""Layers of a decoder: pre-norm attention and a gated MLP, or a mixture of experts, each added to the stream.

Key storage and masking are in a `LayerAttention` that the caller brings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, distributed, nn

from hone.models.language.config import ModelConfig
from hone.models.language.experts import ExpertArithmetic, LinearFn, RoutedTokens, mix_experts
from hone.models.language.fused_ops import apply_rotary, gated_silu, rms_norm
from hone.models.language.packed_attention import LayerAttention
from hone.models.native.library import NativeAttention, native_add_norm, native_gated_silu

# ------------------------------------------------------------------------------------------------------ sums over ranks


class TensorGroup(Protocol):
    """Ranks that compute one forward pass together. All make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Position of this process in the group."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def sum(self, part: Tensor) -> Tensor:
        """Sum of every rank's `part`, as a new tensor: the same bits on all ranks."""
        ...

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        """Every rank's `part`, in the order of the ranks; all have one shape."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessTensorGroup:
    """Processes of a group of torch.distributed."""

    group: distributed.ProcessGroup

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        return self.group.size()

    def sum(self, part: Tensor) -> Tensor:
        result = part.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(result, group=self.group)
        return result

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        distributed.all_gather(parts, part, group=self.group)
        return parts


class _SharedContext(Protocol):
    """Autograd context of all functions here."""

    group: TensorGroup
    bias_type: torch.dtype | None
    needs_input_grad: tuple[bool, ...]


class _SharedInput(torch.autograd.Function):
    """y = x on every rank;  dx = the sum of every rank's dy."""

    @staticmethod
    def forward(ctx: _SharedContext, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: _SharedContext, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum(grads[0]), None


class _SharedWeights(torch.autograd.Function):
    """The weights themselves;  their gradients summed over the ranks, all in one sum."""

    @staticmethod
    def forward(ctx: _SharedContext, group: TensorGroup, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    def backward(ctx: _SharedContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total = ctx.group.sum(torch.cat([grad.flatten() for grad in grads]))
        pieces = total.split([grad.numel() for grad in grads])
        return None, *(piece.view_as(grad) for piece, grad in zip(pieces, grads, strict=True))


class _SummedOutput(torch.autograd.Function):
    """y = the sum of every rank's x, + b once;  dx = dy,  db = the sum of dy over the tokens."""

    @staticmethod
    def forward(ctx: _SharedContext, part: Tensor, bias: Tensor | None, group: TensorGroup) -> Tensor:
        ctx.bias_type = None if bias is None else bias.dtype
        result = group.sum(part)
        return result if bias is None else result.add_(bias)

    @staticmethod
    def backward(ctx: _SharedContext, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        wanted = ctx.needs_input_grad[1] and ctx.bias_type is not None
        return grads[0], grads[0].sum(0, dtype=ctx.bias_type) if wanted else None, None


# -------------------------------------------------------------------------------------------------------- decoder layer


class LinearProjection(nn.Module):
    """A weight `[out, in]` with an optional bias; zero until `init` or `hf_checkpoint` fills it."""

    def __init__(self, features_in: int, features_out: int, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features_out, features_in, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(features_out, dtype=dtype)) if bias else None


@dataclass(frozen=True, slots=True)
class ForwardArithmetic:
    """Functions and types that a forward pass computes with."""

    linear: LinearFn
    dtype: torch.dtype
    """Dtype between the additions to the residual stream, which keeps the weights' dtype."""
    position_invariant: bool
    """Whether an element's bits are independent of its place in a tensor."""
    experts: ExpertArithmetic | None = None
    """For layers with experts."""
    group: TensorGroup | None = None
    """Ranks that the heads and the columns of the MLP are cut among; None: all are here."""

    def into_part(self, x: Tensor, projection: LinearProjection) -> Tensor:
        """Product whose outputs are cut among the ranks: those of this rank."""
        x = x if self.group is None else _SharedInput.apply(x, self.group)
        return self.linear(x, projection.weight, projection.bias)

    def out_of_part(self, x: Tensor, projection: LinearProjection) -> Tensor:
        """Product whose inputs are cut among the ranks: its whole output, on every rank."""
        if self.group is None:
            return self.linear(x, projection.weight, projection.bias)
        return _SummedOutput.apply(self.linear(x, projection.weight, None), projection.bias, self.group)


class RmsNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`, computed in float32 at least (Zhang and Sennrich, 2019)."""

    def __init__(self, features: int, *, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor, kind: torch.dtype | None = None) -> Tensor:
        return rms_norm(x, self.weight, self.eps, kind)


class DecoderLayer(nn.Module):
    """Pre-norm attention and gated MLP, each added to the stream."""

    def __init__(self, config: ModelConfig, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        c, width, experts = config, config.heads * config.head_dim, config.experts
        self.number, self.head_dim = number, c.head_dim
        self.heads, self.kv_heads = c.heads, c.kv_heads
        self.attention_norm = RmsNorm(c.hidden_size, eps=c.norm_eps, dtype=dtype)
        self.qkv = LinearProjection(c.hidden_size, width + 2 * c.kv_heads * c.head_dim, bias=c.qkv_bias, dtype=dtype)
        self.norm_whole = c.qk_norm_whole
        q_width, k_width = (width, c.kv_heads * c.head_dim) if c.qk_norm_whole else (c.head_dim, c.head_dim)
        self.q_norm = RmsNorm(q_width, eps=c.norm_eps, dtype=dtype) if c.qk_norm else None
        self.k_norm = RmsNorm(k_width, eps=c.norm_eps, dtype=dtype) if c.qk_norm else None
        self.out = LinearProjection(width, c.hidden_size, bias=c.output_bias, dtype=dtype)
        self.mlp_norm = RmsNorm(c.hidden_size, eps=c.norm_eps, dtype=dtype)
        self.experts, count = experts, 1 if experts is None else experts.count
        self.router = None if experts is None else LinearProjection(c.hidden_size, count, bias=False, dtype=dtype)
        # With experts, those of one expert after those of another.
        self.gate_up = LinearProjection(c.hidden_size, count * 2 * c.mlp_width, bias=c.mlp_bias, dtype=dtype)
        self.down = LinearProjection(c.mlp_width, count * c.hidden_size, bias=c.mlp_bias, dtype=dtype)
        self.selection_bias: Tensor | None
        self.register_buffer("selection_bias", torch.zeros(count) if experts and experts.selection_bias else None)

    def forward(
        self, x: Tensor, turns: Tensor, attend: LayerAttention, by: ForwardArithmetic,
        halves: "CompiledLayerHalves | None" = None, replayed: Tensor | None = None
    ) -> tuple[Tensor, RoutedTokens | None]:  # fmt: skip
        """The stream after the layer, and where its experts were asked; `replayed` `[T, k]` are experts to use."""
        enter, leave = (
            (DecoderLayer.project_qkv, DecoderLayer.add_attention_and_mlp)
            if halves is None
            else (halves.project_qkv, halves.add_attention_and_mlp)
        )
        query, key, value = enter(self, x, by)
        mixed = attend(self.number, apply_rotary(query, turns), apply_rotary(key, turns), value)
        del query, key, value  # the backward pass needs none of them, and the MLP is the layer's largest part
        if self.router is None:
            return leave(self, x, mixed, by), None
        x = x + by.out_of_part(mixed, self.out)
        y, routed = self.mix_experts(self.mlp_norm(x, by.dtype), by, replayed)
        return x + y, routed

    def project_qkv(self, x: Tensor, by: ForwardArithmetic) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, not turned yet."""
        qkv = by.into_part(self.attention_norm(x, by.dtype), self.qkv).view(len(x), -1, self.head_dim)
        query, key, value = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q_norm, k_norm = self._query_key_norms(by)
        if q_norm is not None and k_norm is not None:
            eps = self.attention_norm.eps
            if self.norm_whole:
                query = rms_norm(query.flatten(1), q_norm, eps).view_as(query)
                key = rms_norm(key.flatten(1), k_norm, eps).view_as(key)
            else:
                query, key = rms_norm(query, q_norm, eps), rms_norm(key, k_norm, eps)
        return query, key, value

    def _query_key_norms(self, by: ForwardArithmetic) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Weights of the norms of queries and keys, if any."""
        if self.q_norm is None or self.k_norm is None:
            return None, None
        weights = self.q_norm.weight, self.k_norm.weight
        if by.group is None:
            return weights
        to_query, to_key = _SharedWeights.apply(by.group, *weights)
        return to_query, to_key

    def mix_experts(
        self, normed: Tensor, by: ForwardArithmetic, replayed: Tensor | None
    ) -> tuple[Tensor, RoutedTokens]:
        """The MLP of a layer with experts, for normalised inputs `[T, hidden_size]`."""
        assert self.router is not None and self.experts is not None and by.experts is not None
        stacks = (self.gate_up.weight, self.down.weight)
        return mix_experts(
            normed, self.router.weight, stacks, self.experts, by.experts, bias=self.selection_bias, replayed=replayed
        )

    def add_attention_and_mlp(self, x: Tensor, mixed: Tensor, by: ForwardArithmetic) -> Tensor:
        """The residual stream, plus the attention output `mixed`, plus the MLP."""
        x = x + by.out_of_part(mixed, self.out)
        gate_up = by.into_part(self.mlp_norm(x, by.dtype), self.gate_up)
        return x + by.out_of_part(gated_silu(gate_up, steady=by.position_invariant), self.down)

    def forward_native(
        self, x: Tensor, delta: Tensor | None, attend: NativeAttention, by: ForwardArithmetic,
        replayed: Tensor | None = None
    ) -> tuple[Tensor, Tensor, RoutedTokens | None]:  # fmt: skip
        """`forward` by compiled kernels. `delta` is still to be added to the stream; so is the second result."""
        eps = self.attention_norm.eps
        x, normed = native_add_norm(x, delta, self.attention_norm.weight, eps, by.dtype)
        mixed = attend(by.into_part(normed, self.qkv), *self._query_key_norms(by), eps)
        x, normed = native_add_norm(x, by.out_of_part(mixed, self.out), self.mlp_norm.weight, eps, by.dtype)
        if self.router is not None:
            return x, *self.mix_experts(normed, by, replayed)
        return x, by.out_of_part(native_gated_silu(by.into_part(normed, self.gate_up)), self.down), None


class CompiledLayerHalves:
    """The parts of a layer before and after attention, compiled by torch once for layers of one shape.

    The first run of each takes seconds, or minutes on a GPU; the number of tokens may change from run to run.
    """

    def __init__(self) -> None:
        self.project_qkv = torch.compile(DecoderLayer.project_qkv, dynamic=True, fullgraph=True)
        self.add_attention_and_mlp = torch.compile(DecoderLayer.add_attention_and_mlp, dynamic=True, fullgraph=True)
