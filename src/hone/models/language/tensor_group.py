"""Sums over the ranks that hold one model together, as functions with gradients (tensor_parallel.py cuts the model).

A stream of states is the same on every rank; a layer's heads and MLP columns are not. A product enters the part of a
rank with the whole stream as its input, so its backward pass sums the gradients of all parts; the product that leaves
it gives a part of the output, so the forward pass sums (Shoeybi et al., "Megatron-LM", 2019).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, distributed


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


class _SharedInputFunction(torch.autograd.Function):
    """y = x on every rank;  dx = the sum of every rank's dy."""

    @staticmethod
    def forward(ctx: _SharedContext, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: _SharedContext, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum(grads[0]), None


class _SharedWeightsFunction(torch.autograd.Function):
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


class _SummedOutputFunction(torch.autograd.Function):
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


def shared_input(x: Tensor, group: TensorGroup) -> Tensor:
    """`x`, the same on all ranks, as the input of a product of which each rank computes a part of the outputs."""
    return _SharedInputFunction.apply(x, group)


def shared_weights(weights: Sequence[Tensor], group: TensorGroup) -> tuple[Tensor, ...]:
    """`weights`, the same on all ranks, each of which applies them to features that the others do not have."""
    return _SharedWeightsFunction.apply(group, *weights)


def summed_output(part: Tensor, bias: Tensor | None, group: TensorGroup) -> Tensor:
    """`[T, out]`: the sum of every rank's `part` of a product, and the bias `[out]`, which all ranks have."""
    return _SummedOutputFunction.apply(part, bias, group)
