"""Flat buffers of a module's parameters and gradients.

The optimizer then works on a single tensor: zeroing, norm, clipping and Adam are one kernel each instead of one per
parameter, which is most of a small network's step, and the optimizer's state is a few flat arrays on disk.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final

import torch
from torch import Tensor, nn

from hone.learner.share import BatchShare
from hone.models.gradient_buffers import GradientBuffers, accumulating_gradients, receiving_gradients

MIN_PARAMETERS_TO_RECEIVE: Final = 1 << 20
"""Number of parameters above which zeroing the buffer costs more than some Python for each tensor."""


class FlatParameters:
    """Parameter store of one process: one contiguous buffer `data` `[P]`, of which each parameter becomes a view;
    gradients likewise."""

    def __init__(self, parameters: Iterable[nn.Parameter], names: Iterable[str] | None = None) -> None:
        """`names` of all `parameters`; without them they are numbered. Frozen parameters are left out."""
        pairs = zip(count(), parameters) if names is None else zip(names, parameters, strict=True)
        trained = [(str(name), parameter) for name, parameter in pairs if parameter.requires_grad]
        self.names, self.parameters = [name for name, _ in trained], [parameter for _, parameter in trained]
        first = self.parameters[0]
        total = sum(parameter.numel() for parameter in self.parameters)
        self.data = nn.Parameter(torch.empty(total, dtype=first.dtype, device=first.device))
        self.gradient = torch.zeros_like(self.data.detach())
        self.data.grad = self.gradient
        self.views: list[Tensor] = []
        """Views of `gradient`, one for each parameter."""
        self._views_by_parameter: dict[int, Tensor] = {}
        """The same by the identity of the parameter."""
        self._frozen: list[Tensor] = []
        """Views of `gradient` that stay 0."""
        self._handed: set[int] = set()
        """Parameters whose gradients were written here by layers directly, in the last step."""
        start = 0
        with torch.no_grad():
            for parameter in self.parameters:
                stop = start + parameter.numel()
                self.data[start:stop] = parameter.flatten()
                parameter.data = self.data.detach()[start:stop].view(parameter.shape)
                self.views.append(self.gradient[start:stop].view(parameter.shape))
                parameter.grad = self._views_by_parameter[id(parameter)] = self.views[-1]
                start = stop

    @property
    def owned(self) -> Sequence[Tensor]:
        return (self.data.detach(),)

    @property
    def gradients(self) -> Sequence[Tensor]:
        return (self.gradient,)

    @property
    def step_multiple(self) -> int:
        return 1

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        return {name: parameter.shape for name, parameter in zip(self.names, self.parameters, strict=True)}

    def zero_grad(self) -> None:
        storage = self.gradient.untyped_storage()
        if not storage.nbytes():  # of `drop_gradients`
            storage.resize_(self.gradient.nbytes)
        self.gradient.zero_()

    def drop_gradients(self) -> None:
        """Give back the memory of the gradient, and of its views, none of which may be read before `zero_grad`."""
        self.gradient.untyped_storage().resize_(0)

    def freeze(self, parameters: Collection[nn.Parameter]) -> None:
        """Keep the gradient of these parameters at 0 from now on: without weight decay they never move."""
        frozen = {id(parameter) for parameter in parameters}
        pairs = zip(self.parameters, self.views, strict=True)
        self._frozen = [view for parameter, view in pairs if id(parameter) in frozen]

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        """Context of the backward passes of one step; afterwards `gradient` is the sum of theirs, and no other."""
        if self.gradient.device.type != "cpu" or len(self.gradient) < MIN_PARAMETERS_TO_RECEIVE:
            self.zero_grad()
            with accumulating_gradients(self._views_by_parameter):
                yield
        else:
            with self._receive_gradients():
                yield
        for view in self._frozen:
            view.zero_()

    @contextmanager
    def _receive_gradients(self) -> Iterator[None]:
        """`collect_gradients` with the gradients of frozen parameters, for networks of many parameters.

        Gradients that layers write here directly need no zeros first; one that autograd brings as well is added.
        """
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

    def reduce(self, share: BatchShare) -> None:
        share.add(self.gradient)

    def gradient_norm(self) -> Tensor:
        """L2 norm of the whole gradient, `[]`."""
        return torch.linalg.vector_norm(self.gradient)

    def dot(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.dot(one, other)

    def by_name(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        (whole,) = values
        pieces = whole.split([parameter.numel() for parameter in self.parameters])
        shapes = (parameter.shape for parameter in self.parameters)
        return {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, shapes, strict=True)}

    def shards(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        return [torch.cat([named[name].flatten() for name in self.names])]


def contiguous_view(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """One `[P]` that shares the memory of `parameters`, or None where they do not lie next to each other."""
    at, first = parameters[0].data_ptr(), parameters[0].detach()
    storage = first.untyped_storage().data_ptr()
    for parameter in parameters:
        fits = parameter.is_contiguous() and parameter.dtype == first.dtype and parameter.device == first.device
        if not fits or parameter.data_ptr() != at or parameter.untyped_storage().data_ptr() != storage:
            return None
        at += parameter.numel() * parameter.element_size()
    return first.as_strided((sum(parameter.numel() for parameter in parameters),), (1,))


def make_contiguous(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Moves `parameters`, of one type and device, into one `[P]` and returns it; each becomes a view of it."""
    whole = torch.cat([parameter.detach().flatten() for parameter in parameters])
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = whole[start:stop].view(parameter.shape)
        start = stop
    return whole
