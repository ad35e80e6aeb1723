"""Sums whose bits do not depend on the number of ranks: one binary tree of neighbours over a fixed number of shares.

The lower levels of the tree are sums over ranks, the upper ones over a rank's own shares. Additions of whole tensors
have the same bits on any device and with any number of threads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist


def tree_sum(values: Tensor) -> Tensor:
    """Sum `[...]` of `values` `[n, ...]` over the first dimension: neighbours are added until one is left."""
    if not len(values):
        return values.new_zeros(values.shape[1:])
    while len(values) > 1:
        odd = values[-1:] if len(values) % 2 else values[:0]
        even = values[: len(values) - len(odd)]
        values = torch.cat([even[0::2] + even[1::2], odd])
    return values[0]


class TreeReduceScatter:
    """Reduce-scatter for FSDP2 that adds the ranks' gradients as a tree: every rank gets all parts of its piece."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,  # noqa: FBT001, FBT002 - as FSDP2 calls it
    ) -> None:
        del op, async_op
        parts = torch.empty_like(input_tensor)
        dist.all_to_all_single(parts, input_tensor, group=group)
        output_tensor.copy_(tree_sum(parts.view(group.size(), -1)))


class ShareSum:
    """Sum over a rank's own shares, one backward pass each: partial sums of complete subtrees, as a binary counter.

    FSDP2 calls it with what a pass adds to a gradient. It takes that away and gives the sum in the last pass.
    """

    def __init__(self, shares: int) -> None:
        self.shares = shares
        self.passes = 0
        self.partial: list[tuple[int, Tensor]] = []
        """Levels and sums of complete subtrees, the highest first."""

    def __call__(self, added: Tensor) -> None:
        self.passes += 1
        if self.shares == 1:
            return
        level, value = 0, added.clone()
        while self.partial and self.partial[-1][0] == level:
            value, level = self.partial.pop()[1] + value, level + 1
        self.partial.append((level, value))
        if self.passes % self.shares:
            added.zero_()
            return
        added.copy_(value)
        self.partial.clear()

    def clear(self) -> None:
        """Begin an optimizer step."""
        self.passes = 0
        self.partial.clear()
