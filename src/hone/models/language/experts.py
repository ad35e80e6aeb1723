"""Mixtures of experts: the router's choice, the experts' products, and the record of which token went where.

Tokens are sorted by expert, and each expert multiplies its own in one product. A token's result does not depend on its
neighbours: its experts' outputs are added in the order in which they were chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from hone.core.errors import DataError
from hone.models.gradient_buffers import write_gradient
from hone.models.language.config import ExpertsConfig
from hone.models.native.library import rounded_matmul, tiled_matmul, weight_gradient

LinearFn: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`(x [N, in], weight [out, in], bias [out] | None) -> [N, out]`."""
NO_ROUTE: Final = -1
"""In a replayed routing: no expert was recorded, the router chooses."""


@dataclass(frozen=True, slots=True)
class RoutedTokens:
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
    layers: list[RoutedTokens] = field(default_factory=list[RoutedTokens])

    def replayed_of(self, layer: int) -> Tensor | None:
        """`[T, k]` the experts that a layer is told to use."""
        return None if self.replayed is None else self.replayed[:, layer]

    def padded(self, count: int) -> "RoutingRecord":
        """An empty record that is told the same experts, for `count` tokens, of which the last are padding."""
        if self.replayed is None:
            return RoutingRecord()
        missing = count - len(self.replayed)
        return RoutingRecord(functional.pad(self.replayed, (0, 0, 0, 0, 0, missing), value=NO_ROUTE))

    def take(self, other: "RoutingRecord", count: int) -> None:
        """Take over what another record holds of its first `count` tokens."""
        self.layers += [RoutedTokens(one.chosen[:count], one.logits[:count]) for one in other.layers]

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


def mix_experts(
    x: Tensor,
    router: Tensor,
    stacks: tuple[Tensor, Tensor],
    config: ExpertsConfig,
    by: ExpertArithmetic,
    *,
    bias: Tensor | None = None,
    replayed: Tensor | None = None,
) -> tuple[Tensor, RoutedTokens]:
    """sum_i gate_i expert_i(x) for each token of `x` `[T, hidden]`, `[T, hidden]`.

    The experts are those with the largest probability, plus `bias` `[E]` where there is one, the smaller number first
    among equals; or `replayed` `[T, k]`. Their gates are p_i, or p_i / sum_j p_j over them, with p = softmax(router x).
    `router` `[E, hidden]`; `stacks`: gates and ups `[E * 2 f, hidden]`, downs `[E * hidden, f]`, expert after expert.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    logits = by.router_linear(x.to(wide), router.to(wide), None)
    scores = torch.softmax(logits.detach(), dim=-1)
    if bias is not None:
        scores = scores + bias
    chosen = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, : config.per_token]
    if replayed is not None:
        chosen = torch.where(replayed == NO_ROUTE, chosen, replayed)
    # Whoever chose the experts, the gradient reaches the router through their weights (rollout routing replay, 2025).
    gates = torch.softmax(logits, dim=-1).gather(1, chosen)
    if config.normalise_gates:
        gates = gates / gates.sum(dim=-1, keepdim=True)
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
    return total.to(x.dtype), RoutedTokens(chosen, logits)


class _ExpertContext(Protocol):
    """Autograd context of both passes."""

    saved_tensors: tuple[Tensor, Tensor]
    weight: Tensor
    counts: list[int]
    kind: torch.dtype
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _ExpertLinear(torch.autograd.Function):
    """Rows `[n, in]` of the experts, one after another, times each expert's part of `stack` `[E * out, in]`:
    y_e = x_e w_e^T for each expert e;  dx_e = g_e w_e,  dw_e = g_e^T x_e, 0 for an expert without tokens.

    One function for all experts: autograd would add a gradient of the size of the whole stack for each of them.
    """

    @staticmethod
    def forward(ctx: _ExpertContext, x: Tensor, stack: Tensor, counts: list[int], by: ExpertArithmetic) -> Tensor:
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
    def backward(ctx: _ExpertContext, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, stack = ctx.saved_tensors
        g, counts = grads[0], ctx.counts
        to_x, to_weight = ctx.needs_input_grad[:2]
        weights = stack.view(len(counts), -1, stack.shape[1])
        dx = None
        if to_x:
            parts = zip(weights, g.split(counts), strict=True)
            dx = torch.cat([_product(rows, weight.to(rows.dtype)) for weight, rows in parts if len(rows)]).to(ctx.kind)
        write = partial(_write_gradients, g, x, counts)
        dw = write_gradient(ctx.weight, write, partial(_stacked_gradients, g, x, counts, stack)) if to_weight else None
        return dx, dw, None, None


def _product(left: Tensor, right: Tensor) -> Tensor:
    return tiled_matmul(left, right) if left.dtype == torch.float32 else rounded_matmul(left, right)


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
            part.copy_(_product(above.t(), rows))
    return True
