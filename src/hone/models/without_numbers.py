"""Tensors that have sizes and no numbers: code that reads one gets 0, and goes on.

torch's fake tensors refuse to be read. What a training step reads of its own results are figures to report, and the
number of tokens of each expert. What follows from tensors with numbers alone (positions, offsets, labels) has numbers.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hone.models.native.layers import leaving_kernels_out
from hone.models.native.library import available_kernels

_ZEROS: Final[Mapping[Any, Callable[[], object]]] = {
    Tensor.__bool__: bool, Tensor.__int__: int, Tensor.__float__: float, Tensor.__index__: int,
}  # fmt: skip
_READS: Final = (Tensor.item, Tensor.tolist, Tensor.numpy)


class _ZeroReads(TorchFunctionMode):
    """Context in which fake tensors read as 0, and others are computed with."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run a function of torch, or answer it."""
        del types
        first, named = (args[0] if args else None), kwargs or {}
        if isinstance(first, FakeTensor) and func in _ZEROS:
            return _ZEROS[func]()
        if isinstance(first, FakeTensor) and func in _READS:
            return _zeros(first, func)
        tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        fake = any(isinstance(tensor, FakeTensor) for tensor in tensors)
        if (tensors and not fake) or func is torch.arange:
            with unset_fake_temporarily():
                return func(*args, **named)
        if func is Tensor.__getitem__ and _is_known_mask(args[1]):
            with unset_fake_temporarily():
                args = (first, args[1].nonzero()[:, 0])
        return func(*args, **named)


class _CountsOfExperts(TorchDispatchMode):
    """Context in which two experts get all tokens that a router sends, half of them each.

    The memory of a layer of experts depends on the number of tokens in all: every expert's product is made by itself,
    and its results stand one after another.
    """

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run an operation; a count of fake numbers is answered."""
        del types
        if func is torch.ops.aten.bincount.default and isinstance(args[0], FakeTensor):
            total, count = len(args[0]), args[2] if len(args) > 2 else (kwargs or {}).get("minlength", 0)
            with unset_fake_temporarily():
                return torch.tensor([total // 2, total - total // 2, *[0] * (count - 2)])
        return func(*args, **(kwargs or {}))


def _zeros(tensor: Tensor, read: object) -> object:
    found = np.zeros(tuple(tensor.shape), _numpy_type(tensor.dtype))
    if read is Tensor.numpy:
        return found
    return found.item() if read is Tensor.item else found.tolist()


def _numpy_type(kind: torch.dtype) -> np.dtype[Any]:
    with unset_fake_temporarily():
        return torch.empty(0, dtype=torch.float32 if kind == torch.bfloat16 else kind).numpy().dtype


def _is_known_mask(index: object) -> bool:
    """True for flags `[n]` that have numbers."""
    return isinstance(index, Tensor) and not isinstance(index, FakeTensor) and index.dtype == torch.bool


def forget_operations() -> None:
    """Drop what torch remembers of operations on fake tensors: storages that were copied are part of it."""
    FakeTensorMode.cache_clear()


@contextmanager
def without_numbers() -> Iterator[None]:
    """Context in which tensors have sizes and no numbers: nothing is computed, and memory is as in a real pass."""
    available_kernels()  # compiled and read before tensors have no numbers
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with warnings.catch_warnings(), leaving_kernels_out(), fake, _CountsOfExperts(), _ZeroReads():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")  # a copy asks for it
        yield
