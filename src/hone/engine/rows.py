"""Linear layers whose rows do not depend on how many rows there are.

A matrix product may add in another order when it has another number of rows, so that a text's log-probabilities would
depend, in the last bits, on what else is in the batch. Here a row's value is, by definition, what a product of
`TILE` rows gives; larger products are used up to the size at which this machine was seen to give the same bits.
"""

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

TILE: Final = 16
"""Batches are padded to multiples of it. MKL switches kernels below 11 to 16 rows, depending on the shape."""
_MOST: Final = 256
"""Rows of the largest product that is tried."""
_PROBE_ELEMENTS: Final = 1 << 24
"""Weights up to this size are replaced by random numbers for the measurement."""


def padded(rows: int) -> int:
    """The next multiple of TILE."""
    return -(-rows // TILE) * TILE


@dataclass
class RowLinear:
    """`F.linear` for a number of rows that is a multiple of TILE; on CUDA it is `F.linear` itself."""

    exact: bool = True
    """Whether every shape so far gave the same bits in each place of a tile; always False on CUDA."""
    _limits: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        # The way a product is split over threads is part of how it adds.
        kind = (weight.shape, weight.dtype, bias is None, torch.get_num_threads())
        limit = self._limits.get(kind)
        if limit is None:
            limit = self._limits[kind] = self._measure(weight, bias)
        if x.shape[0] <= limit:
            return functional.linear(x, weight, bias)
        return torch.cat([functional.linear(part, weight, bias) for part in x.contiguous().split(limit)])

    def _measure(self, weight: Tensor, bias: Tensor | None) -> int:
        """Largest row count up to which every multiple of TILE gives the bits of TILE rows."""
        if weight.is_cuda:
            self.exact = False
            return 1 << 62
        draws = torch.Generator().manual_seed(0)
        x = torch.randn(_MOST, weight.shape[1], generator=draws).to(weight.dtype)
        if weight.numel() <= _PROBE_ELEMENTS:
            weight = torch.randn(weight.shape, generator=draws).to(weight.dtype)
        tiles = torch.cat([functional.linear(part, weight, bias) for part in x.split(TILE)])
        turned = functional.linear(x[:TILE].flip(0).contiguous(), weight, bias).flip(0)
        if not torch.equal(turned, tiles[:TILE]):
            self.exact = False
        for rows in range(2 * TILE, _MOST + 1, TILE):
            if not torch.equal(functional.linear(x[:rows], weight, bias), tiles[:rows]):
                return rows - TILE
        return _MOST
