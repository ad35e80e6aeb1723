"""A model's weights as one flat array of bytes, and back into the memory that a model has."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.errors import DivergedError
from hone.core.fleet import ALIGNMENT_BYTES, WeightLayout


def layout_of(tensors: Mapping[str, Tensor]) -> WeightLayout:
    """Places of `tensors`, in their order."""
    offsets, end = list[int](), 0
    for tensor in tensors.values():
        offsets.append(end)
        end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return WeightLayout(
        names=tuple(tensors),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors.values()),
        dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()),
        offsets=tuple(offsets),
        nbytes=end,
    )


def pack_weights(tensors: Mapping[str, Tensor], layout: WeightLayout, out: NDArray[np.uint8]) -> None:
    """Copy the tensors into `out` `[layout.nbytes]`; the gaps between them are left alone."""
    for place, name in enumerate(layout.names):
        tensor = tensors[name].detach().contiguous()
        start = layout.offsets[place]
        target = torch.from_numpy(out[start : start + tensor.numel() * tensor.element_size()])
        target.copy_(tensor.reshape(-1).view(torch.uint8))


@torch.no_grad()
def unpack_weights(flat: NDArray[np.uint8], layout: WeightLayout, tensors: Mapping[str, Tensor]) -> None:
    """Copy the bytes `[layout.nbytes]` into the memory of `tensors`. `flat` may be read-only.

    Raises DivergedError, before anything is copied, for tensors of other names, shapes or types.
    """
    own = layout_of(tensors)
    if own != layout or len(flat) != layout.nbytes:
        other = [name for name in layout.names if name not in own.names] or ["sizes or types"]
        raise DivergedError(f"published weights do not fit this replica's model: {', '.join(other[:5])} differ")
    for place, name in enumerate(layout.names):
        tensor, start = tensors[name], layout.offsets[place]
        source = flat[start : start + tensor.numel() * tensor.element_size()]
        target = tensor.reshape(-1).view(torch.uint8)
        if tensor.device.type == "cpu":
            np.copyto(target.numpy(), source)
        else:
            target.copy_(torch.from_numpy(source.copy()))
