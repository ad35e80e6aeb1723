"""A module's parameters in one buffer and their gradients in another.

The optimizer then works on a single tensor: zeroing, norm, clipping and Adam are one kernel each instead of one per
parameter, which is most of a small network's step, and the optimizer's state is a few flat arrays on disk.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatParameters:
    """Moves `parameters` into one contiguous buffer `data` `[P]`; each becomes a view of it, gradients likewise."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        first = self.parameters[0]
        total = sum(parameter.numel() for parameter in self.parameters)
        self.data = nn.Parameter(torch.empty(total, dtype=first.dtype, device=first.device))
        self.gradient = torch.zeros_like(self.data.detach())
        self.data.grad = self.gradient
        start = 0
        with torch.no_grad():
            for parameter in self.parameters:
                stop = start + parameter.numel()
                self.data[start:stop] = parameter.flatten()
                parameter.data = self.data.detach()[start:stop].view(parameter.shape)
                parameter.grad = self.gradient[start:stop].view(parameter.shape)
                start = stop

    def zero_grad(self) -> None:
        self.gradient.zero_()

    def norm(self) -> Tensor:
        """L2 norm of the whole gradient, `[]`."""
        return torch.linalg.vector_norm(self.gradient)
