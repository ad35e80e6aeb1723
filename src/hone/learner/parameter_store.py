"""Parameters as an optimizer sees them: whole on one process, or the shards of one rank."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from hone.learner.share import BatchShare


class ParameterStore(Protocol):
    """Parameters of a network, the part of them that this process steps, and the gradient of that part.

    Loss weights are fixed over the whole batch, so gradients of several ranks are summed, not averaged.
    """

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """Trained parameters of the network, for forward and backward passes."""
        ...

    @property
    def owned(self) -> Sequence[Tensor]:
        """Tensors that this process steps, in place."""
        ...

    @property
    def gradients(self) -> Sequence[Tensor]:
        """Gradient of each tensor of `owned`, summed over all ranks."""
        ...

    def collect_gradients(self) -> AbstractContextManager[None]:
        """Context of the backward passes of one step; afterwards `gradients` is the sum of theirs, and no other."""
        ...

    def reduce(self, share: BatchShare) -> None:
        """Sum `gradients` over the ranks of `share`, unless the backward passes did."""
        ...

    def gradient_norm(self) -> Tensor:
        """L2 norm `[]` of the whole gradient, the same on all ranks."""
        ...

    def dot(self, one: Tensor, other: Tensor) -> Tensor:
        """Product `[]` of two vectors, each shaped like all of `owned` one after another, over the whole network."""
        ...

    @property
    def step_multiple(self) -> int:
        """Elements of a tensor, or more: an optimizer's kernel is given multiples of it."""
        ...

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Shape of each whole parameter by name, in the order of the network."""
        ...

    def by_name(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        """Values shaped like `owned` (moments) -> those of whole parameters by name, in the order of the network. All
        ranks call it; those that save nothing get empty values."""
        ...

    def shards(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        """Inverse of `by_name`: the part of this process, shaped like `owned`."""
        ...
