"""Gradients that are written where they belong by the layer that computes them, with no tensor between.

Belongs here: the place that a weight's gradient has in the memory of whoever steps the weights, for as long as they are
being received. For a large weight a tensor of its own, and the addition of it to zeros, cost as much as the optimizer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBuffers:
    """Where gradients belong, and which of them are there."""

    buffers: Mapping[int, Tensor]
    """`[...]` by the identity of their parameters."""
    filled: set[int]
    """Those that hold a gradient, or zeros; in the others is what was left there."""
    written: set[int] = field(default_factory=set[int])
    """Those that a layer has written to."""

    def add(self, key: int, gradient: Tensor) -> None:
        """Of one more part of the loss."""
        _ = self.buffers[key].add_(gradient) if key in self.filled else self.buffers[key].copy_(gradient)
        self.filled.add(key)


_CURRENT: Final[ContextVar[GradientBuffers | None]] = ContextVar("_OPEN", default=None)


@contextmanager
def receiving_gradients(received: GradientBuffers) -> Iterator[None]:
    """In here layers hand gradients to their places, and None to autograd. On a CPU only: there a backward pass runs on
    the thread that asked for it."""
    token = _CURRENT.set(received)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def write_gradient(weight: Tensor, write: Callable[[Tensor], bool], compute: Callable[[], Tensor]) -> Tensor | None:
    """The gradient of `weight`, or None where it went to its place.

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
