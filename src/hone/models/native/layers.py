"""Norms of a stream and gates, by compiled kernels: torch functions with gradients."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from hone.models.native.library import HoneGate, HoneNorm, HoneNormBack, TrainingKernels, available_kernels

DTYPE_CODES: Final = {torch.float32: 0, torch.bfloat16: 1}


class _KernelLayerContext(Protocol):
    """Autograd context of both passes."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    delta_type: torch.dtype

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...  # noqa: FBT001 - torch's own signature


def _require_kernels() -> TrainingKernels:
    """The loaded kernels, which the caller has checked to exist."""
    result = available_kernels()
    assert result is not None
    return result


@dataclass(slots=True)
class _KernelSwitch:
    is_off: bool = False


_SWITCH = _KernelSwitch()


@contextmanager
def leaving_kernels_out() -> Iterator[None]:
    """Context in which compiled functions make their results and compute nothing: a pass of fake tensors then takes the
    memory of a real one."""
    _SWITCH.is_off = True
    try:
        yield
    finally:
        _SWITCH.is_off = False


def computes_nothing() -> bool:
    """True in `leaving_kernels_out`: only the sizes of tensors are asked for."""
    return _SWITCH.is_off


def call_kernel(name: str, question: ctypes.Structure) -> None:
    """Call a kernel of the loaded library with its argument struct."""
    function: Callable[..., Any] = _require_kernels().functions[name]
    if not _SWITCH.is_off:
        function(ctypes.byref(question))


def address_of(x: Tensor | None) -> int | None:
    """Address of a tensor's data; None stays None, and a fake tensor has none."""
    return None if x is None or _SWITCH.is_off else x.data_ptr()


class _AddNormFunction(torch.autograd.Function):
    """s = x + delta, out = s r w;  dx = d delta = ds + r (g w - s r^2 mean(g w s)),  dw = sum(g s r)."""

    @staticmethod
    def forward(
        ctx: _KernelLayerContext, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, kind: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        x, weight = x.contiguous(), weight.contiguous()
        delta = None if delta is None else delta.contiguous()
        stream = x if delta is None else torch.empty_like(x)
        out = torch.empty(x.shape, dtype=kind)
        r = torch.empty(len(x), dtype=torch.float32)
        ctx.delta_type = x.dtype if delta is None else delta.dtype
        types = DTYPE_CODES[x.dtype], DTYPE_CODES[ctx.delta_type], DTYPE_CODES[kind], torch.get_num_threads()
        pointers = (address_of(tensor) for tensor in (x, weight, delta, stream, out, r))
        call_kernel("hone_norm", HoneNorm(*x.shape, *types, eps, *pointers))
        ctx.save_for_backward(stream, weight, r)
        ctx.set_materialize_grads(False)
        return stream.view_as(stream), out

    @staticmethod
    def backward(ctx: _KernelLayerContext, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        stream, weight, r = ctx.saved_tensors
        above, g = grads
        if g is None:  # nobody read the norm
            to_delta = None if above is None or not ctx.needs_input_grad[1] else above.to(ctx.delta_type)
            return above, to_delta, None, None, None
        g, above = g.contiguous(), None if above is None else above.contiguous()
        d_stream, d_weight, d_delta, partial = torch.empty_like(stream), None, None, None
        if ctx.needs_input_grad[1] and ctx.delta_type != stream.dtype:
            d_delta = torch.empty(stream.shape, dtype=ctx.delta_type)
        if ctx.needs_input_grad[2]:
            blocks = -(-len(stream) // _require_kernels().block)
            partial, d_weight = torch.empty(blocks, len(weight)), torch.empty(len(weight))
        types = DTYPE_CODES[stream.dtype], DTYPE_CODES[ctx.delta_type], DTYPE_CODES[g.dtype], torch.get_num_threads()
        read = (address_of(tensor) for tensor in (stream, weight, g, r, above))
        written = (address_of(tensor) for tensor in (d_stream, d_delta, partial, d_weight))
        call_kernel("hone_norm_back", HoneNormBack(*stream.shape, *types, *read, *written))
        to_weight = None if d_weight is None else d_weight.to(weight.dtype)
        to_delta = (d_stream if d_delta is None else d_delta) if ctx.needs_input_grad[1] else None
        return d_stream, to_delta, to_weight, None, None


class _NativeGateFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _KernelLayerContext, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        kind = DTYPE_CODES[gate_up.dtype], torch.get_num_threads()
        call_kernel("hone_gate", HoneGate(rows, width // 2, *kind, address_of(gate_up), None, address_of(out)))
        return out

    @staticmethod
    def backward(ctx: _KernelLayerContext, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        g, out = grads[0].contiguous(), torch.empty_like(gate_up)
        kind = DTYPE_CODES[gate_up.dtype], torch.get_num_threads()
        call_kernel("hone_gate_back", HoneGate(*g.shape, *kind, address_of(gate_up), address_of(g), address_of(out)))
        return out


def native_add_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`x + delta` `[T, D]`, and its RMSNorm `[T, D]` of dtype `kind` (Zhang and Sennrich, 2019).

    `x` and `weight` `[D]` have one dtype; without `delta` the sum is `x`. Sums are in float32.
    """
    return _AddNormFunction.apply(x, delta, weight, eps, kind)


def native_gated_silu(gate_up: Tensor) -> Tensor:
    """`[T, 2 n]` -> silu of the first half times the second, `[T, n]` (Shazeer, 2020)."""
    return _NativeGateFunction.apply(gate_up)
