"""The tracker of tensors against the allocator's own events, of passes that nobody watches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from hone.models.tensor_memory import TensorMemory, without_numbers

SIDE = 64
SIZE = 4 * SIDE * SIDE
"""Bytes of a square of float32 numbers."""


class Doubled(torch.autograd.Function):
    """2 x, whose gradient is added up in Python."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        del ctx
        return 2 * x

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        del ctx
        total = grads[0] + grads[0]
        total = total + total  # beside the one before it
        return total + total


def once(weight: Tensor) -> None:
    """One gradient."""
    (2 * weight).sum().backward()


def twice(weight: Tensor) -> None:
    """Two gradients of one tensor, as of an embedding that is the output projection."""
    ((2 * weight).sum() + (3 * weight).sum()).backward()


def thrice(weight: Tensor) -> None:
    ((2 * weight).sum() + (3 * weight).sum() + (4 * weight).sum()).backward()


def held(weight: Tensor) -> None:
    """Every gradient is held by a hook, so that nothing may be added to it in place."""
    kept: list[Tensor] = []
    results = []
    for factor in (2, 3):
        inner = weight.view(SIZE // 4)
        inner.register_hook(kept.append)
        results.append((factor * inner).sum())
    (results[0] + results[1]).backward()


def added_in_python(weight: Tensor) -> None:
    Doubled.apply(weight).sum().backward()  # type: ignore[attr-defined]


def allocated(work: Callable[[], object]) -> int:
    """Most bytes that the allocator gave out at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    assert found.profiler is not None and found.profiler.kineto_results is not None
    events: list[Any] = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize("work", [once, twice, thrice, held, added_in_python])
def test_a_pass_takes_what_it_does_when_nobody_watches(work: Callable[[Tensor], None]) -> None:
    weight = torch.ones(SIDE, SIDE, requires_grad=True)
    taken = allocated(lambda: work(weight))
    weight.grad = None
    with TensorMemory() as memory:
        memory.add([weight])
        work(weight)
    assert memory.peak_bytes - SIZE == pytest.approx(taken, abs=1024)


def test_two_gradients_of_one_tensor_are_added_in_place() -> None:
    """Of fake tensors as well: the sum is no third one."""
    with without_numbers():
        weight = torch.ones(SIDE, SIDE, requires_grad=True)
        with TensorMemory() as memory:
            twice(weight)
    assert memory.peak_bytes == pytest.approx(2 * SIZE, abs=1024)
