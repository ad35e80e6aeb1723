"""Layers of a decoder: attention and a gated MLP, or a mixture of experts, each added to the stream.

Key storage and masking are in a `LayerAttention` that the caller brings.

Sums over the ranks that hold one model together, as functions with gradients (tensor_parallel.py cuts the model).

A stream of states is the same on every rank; a layer's heads and MLP columns are not. A product enters the part of a
rank with the whole stream as its input, so its backward pass sums the gradients of all parts; the product that leaves
it gives a part of the output, so the forward pass sums (Shoeybi et al., "Megatron-LM", 2019).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeAlias

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from hone.core.errors import DataError
from hone.models.gradient_buffers import AutogradContext, write_gradient
from hone.models.language.config import ModelConfig
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.families import NormKind
from hone.models.language.fused_ops import any_matmul, apply_rotary, gated_gelu, gated_silu, rms_norm
from hone.models.language.packed_attention import LayerAttention
from hone.models.language.quantised_linear import QuantisedProjection
from hone.models.language.token_logprobs import at_least_float32
from hone.models.native.library import (
    NativeAttention,
    native_add_norm,
    native_gated_silu,
    weight_gradient,
)

# -------------------------------------------------------------------------------------------------------------- experts
# Mixtures of experts: the router's choice, the experts' products, and the record of which token went where.
#
# Tokens are sorted by expert, and each expert multiplies its own in one product. A token's result does not depend on
# its neighbours: its experts' outputs are added in the order in which they were chosen.


LinearFn: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`(x [N, in], weight [out, in], bias [out] | None) -> [N, out]`."""
NO_ROUTE: Final = -1
"""In a replayed routing: no expert was recorded, the router chooses."""


@dataclass(frozen=True, slots=True)
class _RoutedTokens:
    """Choice of one layer's router for T tokens."""

    chosen: Tensor
    """`[T, k]` int64: the experts of each token, the one with the largest weight first (or as they were replayed)."""
    logits: Tensor
    """`[T, E]` float32 at least, differentiable: the router's scores of all experts."""


@dataclass(slots=True)
class RoutingRecord:
    """Routes of a forward pass: those to be followed, and those that were taken."""

    replayed: Tensor | None = None
    """`[T, L, k]` int64 experts to use; NO_ROUTE: the router's own choice. None: its own everywhere."""
    layers: list[_RoutedTokens] = field(default_factory=list[_RoutedTokens])

    def replayed_of(self, layer: int) -> Tensor | None:
        """`[T, k]` the experts that a layer is told to use, by its number among those with experts; a negative one has
        none."""
        return None if self.replayed is None or layer < 0 else self.replayed[:, layer]

    def padded(self, count: int) -> "RoutingRecord":
        """An empty record that is told the same experts, for `count` tokens, of which the last are padding."""
        if self.replayed is None:
            return RoutingRecord()
        missing = count - len(self.replayed)
        return RoutingRecord(functional.pad(self.replayed, (0, 0, 0, 0, 0, missing), value=NO_ROUTE))

    def take(self, other: "RoutingRecord", count: int) -> None:
        """Take over what another record holds of its first `count` tokens."""
        self.layers += [_RoutedTokens(one.chosen[:count], one.logits[:count]) for one in other.layers]

    def chosen(self) -> Tensor:
        """`[T, L, k]` the experts that were used."""
        return torch.stack([layer.chosen for layer in self.layers], dim=1)

    def logits(self, at: Tensor) -> Tensor:
        """`[n, L, E]` the routers' scores for tokens `at` `[n]`."""
        return torch.stack([layer.logits[at] for layer in self.layers], dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertArithmetic:
    """Functions that a layer's experts compute with."""

    linear: LinearFn
    """Products of the experts."""
    router_linear: LinearFn
    """Products of the router, in float32 at least: a rounded score sends tokens elsewhere."""
    gate: Callable[[Tensor], Tensor]
    """`[n, 2 f] -> [n, f]`."""
    tile: int = 1
    """Every product has a multiple of so many rows."""


def check_routing_shape(routing: Tensor | None, *, layers: int, experts: ExpertsConfig) -> None:
    """Raise DataError for a routing that was recorded from another architecture."""
    if routing is not None and routing.shape[1:] != (layers, experts.per_token):
        raise DataError(
            f"a routing of {routing.shape[1]} layers and {routing.shape[2]} experts a token does not fit a model of "
            f"{layers} layers and {experts.per_token}: it was recorded from another architecture"
        )


def _mix_experts(
    x: Tensor,
    router: Tensor,
    stacks: tuple[Tensor, Tensor],
    config: ExpertsConfig,
    by: ExpertArithmetic,
    *,
    bias: Tensor | None = None,
    replayed: Tensor | None = None,
) -> tuple[Tensor, _RoutedTokens]:
    """sum_i gate_i expert_i(x) for each token of `x` `[T, hidden]`, `[T, hidden]`.

    The experts are those with the largest probability, plus `bias` `[E]` where there is one, the smaller number first
    among equals, of the groups that are used; or `replayed` `[T, k]`. Their gates are p_i, or p_i / sum_j p_j over
    them, with p = softmax(router x), or the sigmoid, times a factor.
    `router` `[E, hidden]`; `stacks`: gates and ups `[E * 2 f, hidden]`, downs `[E * hidden, f]`, expert after expert.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    logits = by.router_linear(x.to(wide), router.to(wide), None)
    probabilities = torch.sigmoid if config.sigmoid else partial(torch.softmax, dim=-1)
    scores = probabilities(logits.detach())
    if bias is not None:
        scores = scores + bias
    if config.groups_used < config.groups:
        scores = _of_best_groups(scores, config)
    chosen = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, : config.per_token]
    if replayed is not None:
        chosen = torch.where(replayed == NO_ROUTE, chosen, replayed)
    # Whoever chose the experts, the gradient reaches the router through their weights (rollout routing replay, 2025).
    gates = probabilities(logits).gather(1, chosen)
    if config.normalise_gates:
        gates = gates / (gates.sum(dim=-1, keepdim=True) + (1e-20 if config.sigmoid else 0))
    gates = gates if config.factor == 1 else gates * config.factor
    flat = chosen.reshape(-1)
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=config.count).tolist()
    rows = x.index_select(0, order // config.per_token)
    inner = by.gate(_ExpertLinear.apply(rows, stacks[0], counts, by))
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    shape = len(x), config.per_token, -1
    outer = _ExpertLinear.apply(inner, stacks[1], counts, by)
    parts = outer.index_select(0, back).view(shape).to(wide)
    del outer  # no copy is held
    total = parts[:, 0] * gates[:, 0, None]
    for slot in range(1, config.per_token):
        total = total + parts[:, slot] * gates[:, slot, None]
    return total.to(x.dtype), _RoutedTokens(chosen, logits)


def _of_best_groups(scores: Tensor, config: ExpertsConfig) -> Tensor:
    """`scores` `[T, E]` with -inf for experts of the groups that are not used."""
    groups = scores.view(len(scores), config.groups, -1)
    of_group = groups.topk(2, dim=-1).values.sum(dim=-1)
    best = torch.sort(of_group, dim=-1, descending=True, stable=True).indices[:, : config.groups_used]
    used = torch.zeros_like(of_group, dtype=torch.bool).scatter_(1, best, value=True)
    return groups.masked_fill(~used[..., None], -torch.inf).flatten(1)


class _ExpertLinear(torch.autograd.Function):
    """Rows `[n, in]` of the experts, one after another, times each expert's part of `stack` `[E * out, in]`:
    y_e = x_e w_e^T for each expert e;  dx_e = g_e w_e,  dw_e = g_e^T x_e, 0 for an expert without tokens.

    One function for all experts: autograd would add a gradient of the size of the whole stack for each of them.
    """

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, stack: Tensor, counts: list[int], by: ExpertArithmetic) -> Tensor:
        weights, parts = stack.view(len(counts), -1, stack.shape[1]), []
        for weight, rows in zip(weights, x.split(counts), strict=True):
            if len(rows):
                missing = -len(rows) % by.tile
                padded = functional.pad(rows, (0, 0, 0, missing)) if missing else rows
                parts.append(by.linear(padded, weight, None)[: len(rows)])
        out = torch.cat(parts)
        ctx.save_for_backward(x.to(out.dtype), stack)
        ctx.weight, ctx.counts, ctx.kind = stack, counts, x.dtype
        return out

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, stack = ctx.saved_tensors
        g, counts = grads[0], ctx.counts
        to_x, to_weight = ctx.needs_input_grad[:2]
        weights = stack.view(len(counts), -1, stack.shape[1])
        dx = None
        if to_x:
            parts = zip(weights, g.split(counts), strict=True)
            dx = torch.cat([any_matmul(rows, weight.to(rows.dtype)) for weight, rows in parts if len(rows)]).to(
                ctx.kind
            )
        write = partial(_write_gradients, g, x, counts)
        dw = write_gradient(ctx.weight, write, partial(_stacked_gradients, g, x, counts, stack)) if to_weight else None
        return dx, dw, None, None


def _stacked_gradients(g: Tensor, x: Tensor, counts: list[int], stack: Tensor) -> Tensor:
    place = torch.empty_like(stack)
    _write_gradients(g, x, counts, place)
    return place


def _write_gradients(g: Tensor, x: Tensor, counts: list[int], place: Tensor) -> bool:
    """Write `g_e^T x_e` of every expert to its part of `place`; bfloat16 numbers to float32 by a kernel, where there is
    one, which rounds nothing on the way."""
    by_kernel = g.dtype == torch.bfloat16 and place.dtype == torch.float32
    for part, above, rows in zip(
        place.view(len(counts), -1, place.shape[1]), g.split(counts), x.split(counts), strict=True
    ):
        if not len(rows):
            part.zero_()
        elif not (by_kernel and weight_gradient(above, rows, part) is not None):
            part.copy_(any_matmul(above.t(), rows))
    return True


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


class _SharedInput(torch.autograd.Function):
    """y = x on every rank;  dx = the sum of every rank's dy."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum(grads[0]), None


class _SharedWeights(torch.autograd.Function):
    """The weights themselves;  their gradients summed over the ranks, all in one sum."""

    @staticmethod
    def forward(ctx: AutogradContext, group: TensorGroup, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total = ctx.group.sum(torch.cat([grad.flatten() for grad in grads]))
        pieces = total.split([grad.numel() for grad in grads])
        return None, *(piece.view_as(grad) for piece, grad in zip(pieces, grads, strict=True))


class _SummedOutput(torch.autograd.Function):
    """y = the sum of every rank's x, + b once;  dx = dy,  db = the sum of dy over the tokens."""

    @staticmethod
    def forward(ctx: AutogradContext, part: Tensor, bias: Tensor | None, group: TensorGroup) -> Tensor:
        ctx.bias_type = None if bias is None else bias.dtype
        result = group.sum(part)
        return result if bias is None else result.add_(bias)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        wanted = ctx.needs_input_grad[1] and ctx.bias_type is not None
        return grads[0], grads[0].sum(0, dtype=ctx.bias_type) if wanted else None, None


# -------------------------------------------------------------------------------------------------------- decoder layer


class LinearProjection(nn.Module):
    """A weight `[out, in]` with an optional bias; zero until `init` or `hf_checkpoint` fills it."""

    def __init__(self, features_in: int, features_out: int, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features_out, features_in, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(features_out, dtype=dtype)) if bias else None

    def product(self, x: Tensor, linear: LinearFn) -> Tensor:
        """`[N, out]` for `x` `[N, in]`."""
        return linear(x, self.weight, self.bias)

    def low_rank_factors(self) -> None:
        """None: an update is merged into the weight."""


AnyProjection: TypeAlias = LinearProjection | QuantisedProjection


def linear_projection(
    features_in: int, features_out: int, *, bias: bool, dtype: torch.dtype, bits: int | None, gated: bool = False
) -> AnyProjection:
    """A linear layer with numbers of `dtype`, or a frozen one with codes of `bits`."""
    if bits is None:
        return LinearProjection(features_in, features_out, bias=bias, dtype=dtype)
    return QuantisedProjection(features_in, features_out, bias=bias, bits=bits, gated=gated)


@dataclass(frozen=True, slots=True)
class ForwardArithmetic:
    """Functions and types that a forward pass computes with."""

    linear: LinearFn
    dtype: torch.dtype
    """Dtype between the additions to the residual stream, which keeps the weights' dtype."""
    position_invariant: bool
    """Whether an element's bits are independent of its place in a tensor."""
    invariant_gradients: bool = False
    """Whether those of the MLP's gradient are, too."""
    experts: ExpertArithmetic | None = None
    """For layers with experts."""
    group: TensorGroup | None = None
    """Ranks that the heads and the columns of the MLP are cut among; None: all are here."""

    def into_part(self, x: Tensor, projection: AnyProjection) -> Tensor:
        """Product whose outputs are cut among the ranks: those of this rank."""
        x = x if self.group is None else _SharedInput.apply(x, self.group)
        return projection.product(x, self.linear)

    def out_of_part(self, x: Tensor, projection: AnyProjection) -> Tensor:
        """Product whose inputs are cut among the ranks: its whole output, on every rank."""
        if self.group is None:
            return projection.product(x, self.linear)
        return _SummedOutput.apply(self.linear(x, projection.weight, None), projection.bias, self.group)


class RmsNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`, computed in float32 at least (Zhang and Sennrich, 2019); other `kind`s are
    those of `families.NormKind`."""

    def __init__(self, *shape: int, eps: float, dtype: torch.dtype, kind: NormKind = "rms") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, 0.0 if kind == "rms_plus_one" else 1.0, dtype=dtype))
        self.eps, self.kind = eps, kind

    def forward(self, x: Tensor, kind: torch.dtype | None = None) -> Tensor:
        return self.over(x, self.factor(), kind)

    def over(self, x: Tensor, factor: Tensor, kind: torch.dtype | None = None) -> Tensor:
        """The norm of `x` with `factor` in the place of its own."""
        if self.kind != "rms":
            kind, x = kind or x.dtype, at_least_float32(x)
        if self.kind == "layer":
            x = x - x.mean(dim=-1, keepdim=True)
        return rms_norm(x, factor, self.eps, kind)

    def factor(self) -> Tensor:
        """What a normalised input is multiplied by, in float32 where that is not rounded before."""
        if self.kind == "rms":
            return self.weight
        return at_least_float32(self.weight) + 1 if self.kind == "rms_plus_one" else at_least_float32(self.weight)


class DecoderLayer(nn.Module):
    """Attention and gated MLP, each added to the stream, with norms before or after them, or both."""

    def __init__(self, config: ModelConfig, number: int, dtype: torch.dtype, bits: int | None = None) -> None:
        super().__init__()
        project = partial(linear_projection, dtype=dtype, bits=bits)
        c, experts, design = config, config.experts_of(number), config.design
        self.number, self.head_dim = number, c.head_dim
        self.heads, self.kv_heads = c.heads, c.kv_heads
        self.parallel, self.gelu, self.factor = design.parallel, design.gelu, c.switches.residual_factor

        def norm(place: int) -> RmsNorm | None:
            return (
                RmsNorm(c.hidden_size, eps=c.norm_eps, dtype=dtype, kind=design.norm) if design.norms[place] else None
            )

        self.attention_norm, self.attention_after = norm(0), norm(1)
        self.make_attention(c, project, dtype)
        self.mlp_norm, self.mlp_after = norm(2), norm(3)
        self.experts, count = experts, 1 if experts is None else experts.count
        self.router = None if experts is None else LinearProjection(c.hidden_size, count, bias=False, dtype=dtype)
        # With experts, those of one expert after those of another.
        width = c.intermediate_size if experts is None else experts.width
        self.gate_up = project(c.hidden_size, count * 2 * width, bias=c.mlp_bias, gated=True)
        self.down = project(width, count * c.hidden_size, bias=c.mlp_bias)
        shared = 0 if experts is None else experts.shared * experts.width
        self.shared_gate_up = project(c.hidden_size, 2 * shared, bias=False, gated=True) if shared else None
        self.shared_down = project(shared, c.hidden_size, bias=False) if shared else None
        self.selection_bias: Tensor | None
        self.register_buffer("selection_bias", torch.zeros(count) if experts and experts.selection_bias else None)

    def make_attention(self, config: ModelConfig, project: Callable[..., AnyProjection], dtype: torch.dtype) -> None:
        """Make the projections of attention, and the norms of queries and keys."""
        c, width = config, config.heads * config.head_dim
        self.qkv = project(c.hidden_size, width + 2 * c.kv_heads * c.head_dim, bias=c.qkv_bias)
        self.norm_whole = c.qk_norm_whole
        q_shape, k_shape = query_key_norm_shapes(c)
        self.q_norm = RmsNorm(*q_shape, eps=c.norm_eps, dtype=dtype, kind=c.design.norm) if c.qk_norm else None
        self.k_norm = RmsNorm(*k_shape, eps=c.norm_eps, dtype=dtype, kind=c.design.norm) if c.qk_norm else None
        self.out = project(width, c.hidden_size, bias=c.output_bias)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: LayerAttention, by: ForwardArithmetic,
        halves: "CompiledLayerHalves | None" = None, replayed: Tensor | None = None
    ) -> tuple[Tensor, _RoutedTokens | None]:  # fmt: skip
        """The stream after the layer, and where its experts were asked; `turns` of queries and of keys; `replayed`
        `[T, k]` are experts to use."""
        enter, leave = (
            (type(self).project_qkv, type(self).add_attention_and_mlp)
            if halves is None
            else (halves.project_qkv, halves.add_attention_and_mlp)
        )
        query, key, value = enter(self, x, by)
        mixed = attend(self.number, apply_rotary(query, turns[0]), apply_rotary(key, turns[1]), value)
        del query, key, value  # the backward pass needs none of them, and the MLP is the layer's largest part
        if self.router is None:
            return leave(self, x, mixed, by), None
        x = x + self.attended(mixed, by)
        assert self.mlp_norm is not None
        y, routed = self.mix_experts(self.mlp_norm(x, by.dtype), by, replayed)
        return x + y, routed

    def entering(self, x: Tensor, by: ForwardArithmetic) -> Tensor:
        """What attention reads of the stream."""
        return _normed(self.attention_norm, x, by)

    def project_qkv(self, x: Tensor, by: ForwardArithmetic) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, not turned yet."""
        qkv = by.into_part(self.entering(x, by), self.qkv).view(len(x), -1, self.head_dim)
        query, key, value = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q_norm, k_norm = self._query_key_norms(by)
        if q_norm is not None and k_norm is not None:
            query, key = self._norm_heads(self.q_norm, query, q_norm), self._norm_heads(self.k_norm, key, k_norm)
        return query, key, value

    def attended(self, mixed: Tensor, by: ForwardArithmetic) -> Tensor:
        """The projection of what attention gives, `[T, heads * head_dim] -> [T, hidden_size]`."""
        return by.out_of_part(mixed, self.out)

    def _norm_heads(self, norm: RmsNorm | None, x: Tensor, factor: Tensor) -> Tensor:
        """`x` `[T, heads, head_dim]` normalised."""
        assert norm is not None
        if self.norm_whole:
            return norm.over(x.flatten(1), factor).view_as(x)
        if factor.ndim == 1:
            return norm.over(x, factor)
        return (norm.over(x, torch.ones_like(factor[0]), factor.dtype) * factor).to(x.dtype)

    def _query_key_norms(self, by: ForwardArithmetic) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Factors of the norms of queries and keys, if any."""
        if self.q_norm is None or self.k_norm is None:
            return None, None
        weights = self.q_norm.factor(), self.k_norm.factor()
        if by.group is None:
            return weights
        to_query, to_key = _SharedWeights.apply(by.group, *weights)
        return to_query, to_key

    def kernel_tensors(self) -> dict[str, Tensor | None]:
        """Weights, biases, and what the norms multiply by; None: there is none."""
        norms = {
            "attention_norm": self.attention_norm, "q_norm": self.q_norm, "k_norm": self.k_norm,
            "mlp_norm": self.mlp_norm, "attention_after": self.attention_after, "mlp_after": self.mlp_after,
        }  # fmt: skip
        products = {"qkv": self.qkv, "out": self.out, "gate_up": self.gate_up, "down": self.down}
        updates = {name: product.low_rank_factors() or (None, None) for name, product in products.items()}
        return {
            **{name: None if norm is None else norm.factor() for name, norm in norms.items()},
            **{name: product.weight for name, product in products.items()},
            **{f"{name}_bias": product.bias for name, product in products.items()},
            **{f"{name}_low": factors[0] for name, factors in updates.items()},
            **{f"{name}_low_out": factors[1] for name, factors in updates.items()},
            "router": None if self.router is None else self.router.weight,
            "selection_bias": self.selection_bias,
        }

    def mix_experts(
        self, normed: Tensor, by: ForwardArithmetic, replayed: Tensor | None
    ) -> tuple[Tensor, _RoutedTokens]:
        """The MLP of a layer with experts, for normalised inputs `[T, hidden_size]`."""
        assert self.router is not None and self.experts is not None and by.experts is not None
        stacks = (self.gate_up.weight, self.down.weight)
        mixed, routed = _mix_experts(
            normed, self.router.weight, stacks, self.experts, by.experts, bias=self.selection_bias, replayed=replayed
        )
        if self.shared_gate_up is None or self.shared_down is None:
            return mixed, routed
        inner = by.experts.gate(self.shared_gate_up.product(normed, by.linear))
        return mixed + self.shared_down.product(inner, by.linear), routed

    def add_attention_and_mlp(self, x: Tensor, mixed: Tensor, by: ForwardArithmetic) -> Tensor:
        """The residual stream, plus the attention output `mixed`, plus the MLP."""
        attended = self._leaving(self.attended(mixed, by), self.attention_after, by)
        if self.parallel:  # the first norm is computed again: no sum of the stream lies between
            return x + attended + self._mlp(self.entering(x, by), by)
        x = x + attended
        return x + self._mlp(_normed(self.mlp_norm, x, by), by)

    def _mlp(self, normed: Tensor, by: ForwardArithmetic, *, native: bool = False) -> Tensor:
        gate_up = by.into_part(normed, self.gate_up)
        if self.gelu:
            inner = gated_gelu(gate_up, steady=by.position_invariant)
        else:
            steady = {"steady": by.position_invariant, "steady_gradient": by.invariant_gradients}
            inner = native_gated_silu(gate_up) if native else gated_silu(gate_up, **steady)
        return self._leaving(by.out_of_part(inner, self.down), self.mlp_after, by)

    def _leaving(self, y: Tensor, norm: RmsNorm | None, by: ForwardArithmetic) -> Tensor:
        """What an output adds to the stream."""
        y = y if norm is None else norm(y, by.dtype)
        return y if self.factor == 1 else y * self.factor

    def forward_native(
        self, x: Tensor, delta: Tensor | None, attend: NativeAttention, by: ForwardArithmetic,
        replayed: Tensor | None = None
    ) -> tuple[Tensor, Tensor, _RoutedTokens | None]:  # fmt: skip
        """`forward` by compiled kernels. `delta` is still to be added to the stream; so is the second result."""
        x, normed = native_add_normed(self.attention_norm, x, delta, by.dtype)
        mixed = attend(
            *self._kernel_heads(by.into_part(normed, self.qkv), by), 0.0 if self.q_norm is None else self.q_norm.eps
        )
        if self.parallel:
            attended = self._leaving(by.out_of_part(mixed, self.out), self.attention_after, by)
            return x, attended + self._mlp(normed, by, native=True), None
        x, normed = native_add_normed(
            self.mlp_norm, x, self._leaving(by.out_of_part(mixed, self.out), self.attention_after, by), by.dtype
        )
        if self.router is not None:
            return x, *self.mix_experts(normed, by, replayed)
        return x, self._mlp(normed, by, native=True), None

    def _kernel_heads(self, qkv: Tensor, by: ForwardArithmetic) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Queries, keys and values, and the norms that are left for the kernel, which has those of single heads."""
        norms = self._query_key_norms(by)
        if norms[0] is None or (norms[0].ndim == 1 and not self.norm_whole):
            return qkv, norms[0], norms[1]
        parts = qkv.view(len(qkv), -1, self.head_dim).split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        query, key = (self._norm_heads(*one) for one in zip((self.q_norm, self.k_norm), parts, norms, strict=False))
        return torch.cat((query, key, parts[2]), dim=1).flatten(1), None, None


_NORM_EPS: Final = 1e-6
"""Epsilon of the norms of latents, whatever `rms_norm_eps` says."""


class LatentLayer(DecoderLayer):
    """Latent attention (MLA; DeepSeek-V2, 2024) and a gated MLP, each added to the stream: keys and values of all heads
    come from one latent for each token, beside one rotary key.

    With the latent c_j = norm(A x_j) of token j, its rotary key k_j, and a head's K (keys), V (values), plain query q
    and rotary query p:

        score_ij = scale (q_i . K c_j + turn(p_i) . turn(k_j)) = scale ([p_i, K^T q_i] . [k_j, c_j])
        out_i    = V sum_j softmax(score)_ij c_j

    The right side is attention with one key head of rank + turned features, whose value is the latent. It is computed
    so everywhere, in training as in generation: what a token leaves behind is its latent, however many heads there are,
    and packed rows, shared prompts and pages of keys need no attention of another kind.
    """

    def make_attention(self, config: ModelConfig, project: Callable[..., AnyProjection], dtype: torch.dtype) -> None:
        """Make the projections into latents and out of them, and the latents' norms."""
        sizes = config.latent
        assert sizes is not None
        self.sizes, hidden, heads = sizes, config.hidden_size, config.heads
        if sizes.query_rank is None:
            self.q = project(hidden, heads * sizes.query, bias=False)
        else:
            self.q_down = project(hidden, sizes.query_rank, bias=config.attention_bias)
            self.q_norm = RmsNorm(sizes.query_rank, eps=_NORM_EPS, dtype=dtype)
            self.q = project(sizes.query_rank, heads * sizes.query, bias=False)
        self.kv_down = project(hidden, sizes.rank + sizes.turned, bias=config.attention_bias)
        self.kv_norm = RmsNorm(sizes.rank, eps=_NORM_EPS, dtype=dtype)
        self.kv = project(sizes.rank, heads * (sizes.plain + sizes.value), bias=False)
        self.out = project(heads * sizes.value, hidden, bias=config.output_bias)

    def project_qkv(self, x: Tensor, by: ForwardArithmetic) -> tuple[Tensor, Tensor, Tensor]:
        """Query `[T, heads, turned + rank]`, key and value `[T, 1, turned + rank]`, not turned yet. A value has zeros
        behind its latent."""
        sizes, normed = self.sizes, self.entering(x, by)
        asked = normed
        if sizes.query_rank is not None:
            asked = self.q_norm(self.q_down.product(normed, by.linear), by.dtype)  # type: ignore[misc]
        query = self.q.product(asked, by.linear).view(len(x), self.heads, sizes.query)
        plain, rotary = query.split((sizes.plain, sizes.turned), dim=2)
        keys = self._head_weights(by)[:, : sizes.plain]
        parts = [
            by.linear(plain[:, head].contiguous(), keys[head].t().contiguous(), None) for head in range(self.heads)
        ]
        query = torch.cat((rotary, torch.stack(parts, dim=1)), dim=2)
        latent, key = self.kv_down.product(normed, by.linear).split((sizes.rank, sizes.turned), dim=1)
        latent = self.kv_norm(latent, by.dtype)
        key = torch.cat((key, latent), dim=1)[:, None]
        return query, key, functional.pad(latent, (0, sizes.turned))[:, None]

    def attended(self, mixed: Tensor, by: ForwardArithmetic) -> Tensor:
        """Each head's value of its mixed latents, and their projection."""
        latents = mixed.view(len(mixed), self.heads, self.sizes.cached)[..., : self.sizes.rank]
        values = self._head_weights(by)[:, self.sizes.plain :]
        parts = [by.linear(latents[:, head].contiguous(), values[head], None) for head in range(self.heads)]
        return self.out.product(torch.cat(parts, dim=1), by.linear)

    def _head_weights(self, by: ForwardArithmetic) -> Tensor:
        """`[heads, plain + value, rank]`: K and V of each head, decoded and with their update where they are codes."""
        if isinstance(self.kv, QuantisedProjection):
            weight, factors = self.kv.decode(by.dtype), self.kv.low_rank_factors()
            weight = weight if factors is None else weight + (factors[1] @ factors[0]).to(by.dtype)
        else:
            assert isinstance(self.kv, LinearProjection)
            weight = self.kv.weight
        return weight.view(self.heads, -1, self.sizes.rank)


def query_key_norm_shapes(config: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the weights of the norms of queries and of keys."""
    c = config
    if c.qk_norm_whole:
        return (c.heads * c.head_dim,), (c.kv_heads * c.head_dim,)
    if c.design.norm == "layer":
        return (c.heads, c.head_dim), (c.kv_heads, c.head_dim)
    return (c.head_dim,), (c.head_dim,)


def _normed(norm: RmsNorm | None, x: Tensor, by: ForwardArithmetic) -> Tensor:
    """What a projection reads of the stream."""
    return x.to(by.dtype) if norm is None else norm(x, by.dtype)


def native_add_normed(
    norm: RmsNorm | None, x: Tensor, delta: Tensor | None, kind: torch.dtype
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`x + delta`, and its norm of dtype `kind`, by a compiled kernel where it has this norm."""
    factor = None if norm is None or norm.kind == "layer" else norm.factor()
    if norm is not None and factor is not None and factor.dtype == x.dtype:
        return native_add_norm(x, delta, factor, norm.eps, kind)
    x = x if delta is None else x + delta
    return x, x.to(kind) if norm is None else norm(x, kind)


class CompiledLayerHalves:
    """The parts of a layer before and after attention, compiled by torch once for layers of one shape.

    The first run of each takes seconds, or minutes on a GPU; the number of tokens may change from run to run.
    """

    def __init__(self) -> None:
        compiled = partial(torch.compile, dynamic=True, fullgraph=True)
        self.project_qkv = compiled(lambda layer, x, by: layer.project_qkv(x, by))
        self.add_attention_and_mlp = compiled(lambda layer, x, mixed, by: layer.add_attention_and_mlp(x, mixed, by))
