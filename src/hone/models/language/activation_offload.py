"""Activations that wait for the backward pass in the host's memory: copies there and back, so that the bits stay."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


@dataclass(slots=True)
class OffloadedActivations:
    """What was moved."""

    moved_bytes: int = 0
    """Bytes that wait in the host's memory, or waited."""


@dataclass(frozen=True, slots=True)
class _OffloadedTensor:
    copy: Tensor
    device: torch.device


@contextmanager
def offloading_activations(network: nn.Module, *, from_host: bool = False) -> Iterator[OffloadedActivations]:
    """Context of a forward pass: tensors that it keeps for the backward pass are copied to pinned memory of the host,
    and back when they are needed. Weights stay where they are.

    `from_host`: also those that are in the host's memory already, to try it without a GPU.
    """
    own = {_address(tensor) for tensor in (*network.parameters(), *network.buffers())}
    found = OffloadedActivations()

    def pack(x: Tensor) -> Tensor | _OffloadedTensor:
        if _address(x) in own or (x.device.type == "cpu" and not from_host):
            return x
        copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        copy.copy_(x)
        found.moved_bytes += copy.nbytes
        return _OffloadedTensor(copy, x.device)

    def unpack(kept: Tensor | _OffloadedTensor) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return kept.copy.to(kept.device, non_blocking=True)

    with saved_tensors_hooks(pack, unpack):
        yield found


def _address(x: Tensor) -> int:
    return x.untyped_storage()._cdata
