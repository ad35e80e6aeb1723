"""A small network over many rows, in pieces that stay in a core's cache; its gradient is written by hand.

Belongs here: asking a critic about tens of actions for every state of a batch (CQL). Activations of thousands of rows
do not fit in a cache, and autograd goes through memory several times a layer for them. Values and gradients are those
of `Mlp`, to rounding.
"""

from typing import Any

import torch
from torch import Tensor, nn

from hone.models.control.mlp import Mlp

PIECE = 1024
"""Rows at a time: activations of 256 float32 numbers are then 1 MiB."""


def wide(network: Mlp, x: Tensor) -> Tensor:
    """`[n, inputs]` -> `[n, outputs]`, with gradients for the weights; `x` is data, and gets none."""
    numbers = [number for layer in network.layers if isinstance(layer, nn.Linear) for number in layer.parameters()]
    return _Wide.apply(x.detach(), network.relu, *numbers)  # pyright: ignore[reportReturnType] - torch has no types for it


class _Wide(torch.autograd.Function):
    """h_k = f(h_{k-1} W_k' + b_k);  dW_k = dz_k' h_{k-1}, db_k = sum of dz_k, dz_{k-1} = (dz_k W_k) f'(h_{k-1})."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, relu: bool, *numbers: Tensor) -> Tensor:  # noqa: ANN401, FBT001 - torch's own
        weights, offsets = numbers[0::2], numbers[1::2]
        hidden = [x.new_empty(len(x), len(weight)) for weight in weights]
        for start in range(0, len(x), PIECE):
            part = x[start : start + PIECE]
            for weight, offset, place in zip(weights, offsets, hidden, strict=True):
                there = place[start : start + PIECE]
                torch.addmm(offset, part, weight.t(), out=there)
                if place is not hidden[-1]:
                    _ = there.relu_() if relu else there.tanh_()
                part = there
        ctx.save_for_backward(x, *hidden[:-1], *weights)
        ctx.relu = relu
        return hidden[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's own
        depth = len(ctx.saved_tensors) // 2
        seen, weights = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        found = [(torch.zeros_like(weight), weight.new_zeros(len(weight))) for weight in weights]
        for start in range(0, len(grads[0]), PIECE):
            slope = grads[0][start : start + PIECE]
            for layer in range(depth - 1, -1, -1):
                before = seen[layer][start : start + PIECE]
                found[layer][0].addmm_(slope.t(), before)
                found[layer][1].add_(slope.sum(dim=0))
                if layer:
                    slope = _through(slope @ weights[layer], before, relu=ctx.relu)
        return None, None, *(number for pair in found for number in pair)


def _through(slope: Tensor, after: Tensor, *, relu: bool) -> Tensor:
    """The gradient before an activation, from the one after it and from what it gave."""
    if relu:
        return torch.ops.aten.threshold_backward(slope, after, 0.0)
    return slope.mul_(1.0 - after.square())
