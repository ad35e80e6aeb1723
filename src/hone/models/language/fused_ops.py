"""Four layers of a decoder with custom backward passes: fewer passes over memory than autograd's, same numbers.

Autograd differentiates a complex product through conjugate copies, a normalisation op by op, and a split by
concatenation; on a CPU that is a large share of a small model's step. In mixed precision a normalisation writes in the
dtype of the next matrix product, and a product rounds its master weights on the way.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hone.models.gradient_buffers import AutogradContext, write_gradient
from hone.models.language.token_logprobs import at_least_float32
from hone.models.native.library import (
    half_matmul,
    is_widened,
    rounded_linear,
    rounded_matmul,
    tiled_matmul,
    weight_gradient,
)


class _RmsNorm(torch.autograd.Function):
    """y = x r w with r = (mean(x^2) + eps)^-1/2;  dx = r (g w - x r^2 mean(g w x)),  dw = sum(g x r)."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, weight: Tensor, eps: float, kind: torch.dtype) -> Tensor:
        wide = at_least_float32(x)
        r = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        if kind == x.dtype:
            return (wide * r).to(kind).mul_(weight)
        return (wide * r).mul_(weight).to(kind)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, weight, r = ctx.saved_tensors
        wide, g = at_least_float32(x), at_least_float32(grads[0])
        normed = wide * r
        gw = g * at_least_float32(weight)
        dot = torch.linalg.vecdot(gw, normed)[..., None].div_(x.shape[-1])
        dx = torch.addcmul(gw, normed, dot, value=-1).mul_(r).to(x.dtype)
        dw = None
        if ctx.needs_input_grad[1]:
            dw = torch.mul(g, normed).flatten(0, -2).sum(0).to(weight.dtype)
        return dx, dw, None, None


class _MixedLinear(torch.autograd.Function):
    """y = x w^T + b in bfloat16 with sums in float32;  dx = g w,  dw = g^T x, the latter in the weight's dtype."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        low, rounded = x.to(torch.bfloat16), weight.to(torch.bfloat16)
        ctx.save_for_backward(low, rounded)
        ctx.kinds, ctx.weight = (x.dtype, weight.dtype), weight
        return rounded_linear(low, rounded, None if bias is None else bias.to(torch.bfloat16))

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        low, rounded = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        input_kind, weight_kind = ctx.kinds
        g = grads[0]
        return (
            rounded_matmul(g, rounded.to(torch.bfloat16)).to(input_kind) if to_x else None,
            write_gradient(
                ctx.weight,
                lambda place: place.dtype == torch.float32 and weight_gradient(g, low, place) is not None,
                partial(_weight_gradient, g, low, weight_kind),
            )
            if to_weight
            else None,
            g.sum(0, dtype=weight_kind) if to_bias else None,
        )


class _RoundingLinear(_MixedLinear):
    """`_MixedLinear` that keeps the weight itself, which is there anyway, and rounds it again: the same numbers, and 2
    bytes less for each weight between the passes."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        low = x.to(torch.bfloat16)
        ctx.save_for_backward(low, weight)
        ctx.kinds, ctx.weight = (x.dtype, weight.dtype), weight
        rounded = weight.to(torch.bfloat16)
        return rounded_linear(low, rounded, None if bias is None else bias.to(torch.bfloat16))


class _TiledLinear(torch.autograd.Function):
    """y = x w^T + b in float32, by tiles;  dx = g w,  dw = g^T x,  db = sum g."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight = weight
        return tiled_matmul(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        g = grads[0]
        return (
            tiled_matmul(g, weight) if to_x else None,
            write_gradient(
                ctx.weight, lambda place: tiled_matmul(g.t(), x, out=place) is place, partial(tiled_matmul, g.t(), x)
            )
            if to_weight
            else None,
            g.sum(0) if to_bias else None,
        )


def _weight_gradient(g: Tensor, x: Tensor, kind: torch.dtype) -> Tensor:
    """`g^T x` of dtype `kind`. The smaller factor is transposed, because libraries are slow at that."""
    whole = kind == torch.float32 or is_widened(g.dtype, g.device)
    if whole and (result := weight_gradient(g, x)) is not None:
        return result.to(kind)
    if kind == torch.float32 and g.is_cuda:
        return half_matmul(g.t(), x)
    return (rounded_matmul(x.t(), g).t() if g.shape[1] > x.shape[1] else rounded_matmul(g.t(), x)).to(kind)


class _RotaryFunction(torch.autograd.Function):
    """Each adjacent pair of features as a complex number, times a unit number; backward rotates by the inverse."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, turns: Tensor) -> Tensor:
        ctx.save_for_backward(turns)
        return _rotated(x, turns)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, None]:
        (turns,) = ctx.saved_tensors
        return _rotated(grads[0], turns.conj().resolve_conj()), None


def _rotated(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(at_least_float32(x).contiguous().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


class _GatedSilu(torch.autograd.Function):
    """silu(gate) * up with `[gate, up]` in one tensor;  d silu(x) = s (1 + x (1 - s)), s = sigmoid(x)."""

    @staticmethod
    def forward(ctx: AutogradContext, gate_up: Tensor, steady: bool) -> Tensor:  # noqa: FBT001 - autograd takes no keywords
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        if steady:
            return torch.mul(gate, up).div_(torch.neg(gate).exp_().add_(1))
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        d_gate, d_up = out.chunk(2, dim=-1)
        torch.mul(grads[0], functional.silu(gate), out=d_up)
        torch.ops.aten.silu_backward.grad_input(grads[0] * up, gate, grad_input=d_gate)
        return out, None


class _SteadyGatedSilu(_GatedSilu):
    """`_GatedSilu` whose gradients, too, are computed in a form whose bits do not depend on an element's place."""

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        s = torch.neg(gate).exp_().add_(1).reciprocal_()
        out = torch.empty_like(gate_up)
        d_gate, d_up = out.chunk(2, dim=-1)
        torch.mul(grads[0], gate * s, out=d_up)
        torch.mul(grads[0] * up * s, (1 - s).mul_(gate).add_(1), out=d_gate)
        return out, None


class _GatedGelu(torch.autograd.Function):
    """y = gelu(a) b of the halves a and b;  da = g b gelu'(a),  db = g gelu(a)."""

    @staticmethod
    def forward(ctx: AutogradContext, gate_up: Tensor, steady: bool) -> Tensor:  # noqa: FBT001 - autograd takes no keywords
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        if steady:
            inner = (gate * gate * gate).mul_(0.044715).add_(gate).mul_(-2 * math.sqrt(2 / math.pi))
            return torch.mul(gate, up).div_(inner.exp_().add_(1))
        return functional.gelu(gate, approximate="tanh").mul_(up)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, None]:
        (gate_up,), g = ctx.saved_tensors, grads[0]
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        to_gate, to_up = out.chunk(2, dim=-1)
        to_up.copy_(functional.gelu(gate, approximate="tanh").mul_(g))
        to_gate.copy_(torch.ops.aten.gelu_backward(g * up, gate, approximate="tanh"))
        return out, None


def rms_norm(x: Tensor, weight: Tensor, eps: float, kind: torch.dtype | None = None) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension, in float32 at least (Zhang and Sennrich, 2019).

    The result has dtype `kind`; by default as `x`.
    """
    kind = x.dtype if kind is None else kind
    if torch.compiler.is_compiling():  # which fuses this by itself, and does not see into a Function
        wide = at_least_float32(x)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * at_least_float32(weight)).to(kind)
    return _RmsNorm.apply(x, weight, eps, kind)


def any_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` in the dtype of both, by the products of the processor. No gradients."""
    return tiled_matmul(left, right) if left.dtype == torch.float32 else rounded_matmul(left, right)


def mixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x [N, in] @ weight [out, in]^T + bias [out]` -> `[N, out]` bfloat16, for float32 master weights.

    Products are of bfloat16 numbers, sums in float32; the weight's gradient has the weight's own dtype, so that it adds
    up over micro-batches without rounding (Micikevicius et al., "Mixed Precision Training", 2018).
    """
    return _MixedLinear.apply(x, weight, bias)


def rounding_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`mixed_linear` that rounds the weight again in the backward pass in place of keeping its copy: the same bits."""
    return _RoundingLinear.apply(x, weight, bias)


def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x [N, in] @ weight [out, in]^T + bias [out]` -> `[N, out]`; in float32 by AMX tiles of the processor, where it
    has them, as accurate as torch's own (see native/library.py).
    """
    return _TiledLinear.apply(x, weight, bias)


def apply_rotary(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary positions: `x` `[T, heads, head_dim]` rotated by the unit complex `turns` `[T, 1, head_dim / 2]`."""
    return _RotaryFunction.apply(x, turns)


def gated_silu(gate_up: Tensor, *, steady: bool = False, steady_gradient: bool = False) -> Tensor:
    """`[..., 2 n]` -> silu of the first half times the second, `[..., n]` (Shazeer, 2020).

    `steady`: in a form whose bits do not depend on an element's place. torch's sigmoid uses another algorithm for the
    elements that do not fill a vector register, and which ones these are depends on the threads. `steady_gradient`: so
    is the gradient.
    """
    if torch.compiler.is_compiling():
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up
    return (_SteadyGatedSilu if steady_gradient else _GatedSilu).apply(gate_up, steady)


def gated_gelu(gate_up: Tensor, *, steady: bool = False) -> Tensor:
    """`[..., 2 n]` -> GELU, in its form with tanh, of the first half times the second, `[..., n]` (Shazeer, 2020).

    `steady`: as in `gated_silu`; there `x (1 + tanh u) / 2 = x / (1 + exp(-2 u))`.
    """
    if torch.compiler.is_compiling():
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.gelu(gate, approximate="tanh") * up
    return _GatedGelu.apply(gate_up, steady)
