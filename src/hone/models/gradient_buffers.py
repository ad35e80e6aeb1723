"""Gradient buffers: layers write gradients of weights directly into the optimizer's memory.

For a large weight, a separate gradient tensor and its addition to zeros cost as much as the optimizer step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from torch import Tensor

AutogradContext: TypeAlias = Any
"""What torch passes to both passes of an autograd function; a function keeps attributes of its own on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBuffers:
    """Gradient buffers of parameters, with flags of those that are filled."""

    buffers: Mapping[int, Tensor]
    """`[...]` by the identity of their parameters."""
    filled: set[int]
    """Parameters whose buffer holds a gradient or zeros; the others hold old contents."""
    written: set[int] = field(default_factory=set[int])
    """Parameters that a layer has written to."""

    def add(self, key: int, gradient: Tensor) -> None:
        """Add a gradient of another part of the loss."""
        _ = self.buffers[key].add_(gradient) if key in self.filled else self.buffers[key].copy_(gradient)
        self.filled.add(key)


_CURRENT: Final[ContextVar[GradientBuffers | None]] = ContextVar("_OPEN", default=None)
_ACCUMULATING: Final[ContextVar[Mapping[int, Tensor] | None]] = ContextVar("_ACCUMULATING", default=None)


@contextmanager
def receiving_gradients(received: GradientBuffers) -> Iterator[None]:
    """Context in which layers write gradients to their buffers and give None to autograd. CPU only: there a backward
    pass runs on the calling thread.
    """
    token = _CURRENT.set(received)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def write_gradient(weight: Tensor, write: Callable[[Tensor], bool], compute: Callable[[], Tensor]) -> Tensor | None:
    """The gradient of `weight`, or None where it was written to its buffer.

    `write` writes it into a tensor, or returns False where it cannot; `compute` makes a new one.
    """
    received, key = _CURRENT.get(), id(weight)
    if received is None or key not in received.buffers:
        return compute()
    received.written.add(key)
    if key in received.filled or not write(received.buffers[key]):
        received.add(key, compute())
    received.filled.add(key)
    return None


@contextmanager
def accumulating_gradients(buffers: Mapping[int, Tensor]) -> Iterator[None]:
    """Context in which compiled small networks add gradients to `buffers` and give None to autograd. The buffers hold
    sums or zeros, by the identity of their parameters. Networks on other devices do not look here."""
    token = _ACCUMULATING.set(buffers)
    try:
        yield
    finally:
        _ACCUMULATING.reset(token)


def accumulation_buffers(parameters: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """Buffers of all `parameters` in the context of `accumulating_gradients`, else None."""
    buffers = _ACCUMULATING.get()
    if buffers is None:
        return None
    own = [buffers[id(parameter)] for parameter in parameters if id(parameter) in buffers]
    return own if len(own) == len(parameters) else None
