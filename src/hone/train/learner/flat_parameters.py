"""A module's parameters in one buffer and their gradients in another.

The optimizer then works on a single tensor: zeroing, norm, clipping and Adam are one kernel each instead of one per
parameter, which is most of a small network's step, and the optimizer's state is a few flat arrays on disk.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from hone.models.gradient_buffers import GradientBuffers, receiving_gradients

MIN_PARAMETERS_TO_RECEIVE: Final = 1 << 20
"""Parameters from which a pass over them costs more than a few words of Python for each tensor."""


class FlatParameters:
    """Moves `parameters` into one contiguous buffer `data` `[P]`; each becomes a view of it, gradients likewise."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        first = self.parameters[0]
        total = sum(parameter.numel() for parameter in self.parameters)
        self.data = nn.Parameter(torch.empty(total, dtype=first.dtype, device=first.device))
        self.gradient = torch.zeros_like(self.data.detach())
        self.data.grad = self.gradient
        self.views: list[Tensor] = []
        """Of `gradient`, one for each parameter."""
        self._handed: set[int] = set()
        """Parameters whose gradients layers wrote here themselves, the last time."""
        start = 0
        with torch.no_grad():
            for parameter in self.parameters:
                stop = start + parameter.numel()
                self.data[start:stop] = parameter.flatten()
                parameter.data = self.data.detach()[start:stop].view(parameter.shape)
                self.views.append(self.gradient[start:stop].view(parameter.shape))
                parameter.grad = self.views[-1]
                start = stop

    def zero_grad(self) -> None:
        self.gradient.zero_()

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        """In here backward passes take place; afterwards `gradient` is the sum of theirs, and nothing of before.

        Gradients that layers write here themselves need no zeros first; should autograd bring one all the same, it is
        added.
        """
        if self.gradient.device.type != "cpu" or len(self.gradient) < MIN_PARAMETERS_TO_RECEIVE:
            self.zero_grad()
            yield
            return
        pairs = [(id(parameter), parameter, view) for parameter, view in zip(self.parameters, self.views, strict=True)]
        for key, parameter, view in pairs:
            if key in self._handed:
                parameter.grad = None
            else:
                view.zero_()
        places = {key: view for key, _, view in pairs}
        received = GradientBuffers(buffers=places, filled=set(places) - self._handed)
        try:
            with receiving_gradients(received):
                yield
        finally:
            for key, parameter, view in pairs:
                if parameter.grad is not None and key in self._handed:
                    received.add(key, parameter.grad)
                elif key not in received.filled:
                    view.zero_()
                parameter.grad = view
            self._handed = received.written

    def gradient_norm(self) -> Tensor:
        """L2 norm of the whole gradient, `[]`."""
        return torch.linalg.vector_norm(self.gradient)


def contiguous_view(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """All of them as one `[P]` that shares their memory, or None where something lies between them."""
    at, first = parameters[0].data_ptr(), parameters[0].detach()
    for parameter in parameters:
        fits = parameter.is_contiguous() and parameter.dtype == first.dtype and parameter.device == first.device
        if not fits or parameter.data_ptr() != at or parameter.untyped_storage().data_ptr() != _storage_address(first):
            return None
        at += parameter.numel() * parameter.element_size()
    return first.as_strided((sum(parameter.numel() for parameter in parameters),), (1,))


def make_contiguous(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Moves `parameters`, of one type and device, into one `[P]`, which is returned; each becomes a view of it."""
    whole = torch.cat([parameter.detach().flatten() for parameter in parameters])
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = whole[start:stop].view(parameter.shape)
        start = stop
    return whole


def _storage_address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
