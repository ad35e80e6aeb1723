"""Gradients of linear layers' weights in bfloat16, by compiled kernels."""

from typing import Final

import torch
from torch import Tensor

from hone.models.native.layers import call, place
from hone.models.native.library import Slope, kernels

_WIDTH: Final = 32
"""Widths are multiples of it."""
_ROOM: Final = 512
"""Tokens that are laid out at once: SLOPE_ROOM."""


def weight_gradient(g: Tensor, x: Tensor) -> Tensor | None:
    """`g^T x` for bfloat16 `g` `[T, out]` and `x` `[T, in]` -> `[out, in]` float32, which is not rounded on the way.

    None where there is no kernel for it: it takes a processor with AMX.
    """
    fits = g.shape[1] % _WIDTH == 0 and x.shape[1] % _WIDTH == 0 and len(x) > 0 and x.device.type == "cpu"
    found = kernels() if fits else None
    if found is None or not found.functions["hone_has_slope"]():
        return None
    g, x = g.contiguous(), x.contiguous()
    out = torch.empty(g.shape[1], x.shape[1])
    room = torch.empty(_ROOM, x.shape[1], dtype=torch.bfloat16)
    pointers = (place(tensor) for tensor in (g, x, room, out))
    call("hone_slope", Slope(*g.shape, x.shape[1], torch.get_num_threads(), *pointers))
    return out
