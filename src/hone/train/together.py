"""Parameters that lie one behind the other in memory, taken as one: a pass over many small tensors is mostly overhead.

Belongs here: finding out that they do, and seeing to it. With gradients beside them: `flat.py`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def lying_together(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """All of them as one `[P]` that shares their memory, or None where something lies between them."""
    at, first = parameters[0].data_ptr(), parameters[0].detach()
    for parameter in parameters:
        fits = parameter.is_contiguous() and parameter.dtype == first.dtype and parameter.device == first.device
        if not fits or parameter.data_ptr() != at or parameter.untyped_storage().data_ptr() != _begin(first):
            return None
        at += parameter.numel() * parameter.element_size()
    return first.as_strided((sum(parameter.numel() for parameter in parameters),), (1,))


def laid_together(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Moves `parameters`, of one type and device, into one `[P]`, which is returned; each becomes a view of it."""
    whole = torch.cat([parameter.detach().flatten() for parameter in parameters])
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = whole[start:stop].view(parameter.shape)
        start = stop
    return whole


def _begin(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
