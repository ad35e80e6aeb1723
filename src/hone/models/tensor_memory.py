"""Bytes of the tensors that are alive: what an allocator would count, seen from torch's own operations.

A storage is counted once, from the operation that made it until it is freed. Compiled kernels get their memory from
torch, so that theirs is counted too; scratch inside one operation of a library is not. Of a tensor that is cut over
ranks its part is counted, and gathered parameters, whose storages FSDP empties and fills, by their size at the time.

What is counted is a pass that nobody watches. Where two gradients of one tensor meet (those of an embedding that is the
output projection as well), autograd adds the second to the first in place if nobody else holds that; but it makes a
third tensor wherever a mode such as this one sees its operations.
"""

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd import graph
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from hone.models.native.library import available_kernels, leaving_kernels_out


class TensorMemory(TorchDispatchMode):
    """Context that counts the storages made in it, and those of `add`."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        """Bytes alive now."""
        self.peak_bytes = 0
        """Most bytes at once since the beginning, or since `reset_peak`."""
        self.peak_operation = ""
        """Operation that made the last tensor of the peak."""
        self._sizes: dict[int, int] = {}
        self._awaited: tuple[int, int, str] | None = None
        """Sum of two gradients by autograd, to be decided on: storage of the first, live bytes, and operation."""
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> "TensorMemory":
        """Begin to count. A change of a storage's size is no operation, and is seen by a function in its place."""
        original = self._resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            result = original(storage, size)
            self._recount(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End counting."""
        self._settle()
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(kind, fault, trace)

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that were made before."""
        for tensor in tensors:
            self._count(tensor)

    def reset_peak(self) -> None:
        """Begin a new peak at the bytes that are alive now."""
        self._settle()
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run an operation, and count its results; one on cut tensors comes again as those on their parts."""
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        self._settle()
        result = func(*args, **(kwargs or {}))
        before = self.peak_bytes
        if func is torch.ops.aten.add.Tensor and _is_autograd_s_own(sys._getframe()):
            self._await_addition(args[0], result, str(func))
            return result
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        if self.peak_bytes > before:
            self.peak_operation = str(func)
        return result

    def _await_addition(self, first: torch.Tensor, result: torch.Tensor, operation: str) -> None:
        """Count the sum of two gradients; it has a place of its own if the first is still there afterwards."""
        before, held = self.peak_bytes, first.untyped_storage()
        self._count(result)
        if held.nbytes() == result.untyped_storage().nbytes():
            self.peak_bytes, self._awaited = before, (held._cdata, self.live_bytes, operation)

    def _settle(self) -> None:
        """Decide on an addition that waits, before anything else is made."""
        if self._awaited is not None:
            storage, size, operation = self._awaited
            self._awaited = None
            if storage in self._sizes and size > self.peak_bytes:
                self.peak_bytes, self.peak_operation = size, operation

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._forget, key)

    def _recount(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._sizes:
            self.live_bytes += storage.nbytes() - self._sizes[key]
            self._sizes[key] = storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _forget(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key, 0)


def _is_autograd_s_own(frame: FrameType | None) -> bool:
    """True of an operation, by the frame of its dispatch, that a backward pass itself asked for, and no function in
    Python."""
    while frame is not None and frame.f_globals["__name__"] in _DISPATCH:
        frame = frame.f_back
    return frame is not None and frame.f_code is graph._engine_run_backward.__code__


_DISPATCH = (__name__, "torch._compile", "torch._dynamo.eval_frame")
"""Modules between an operation and the code that asked for it: this one, and the wrappers that torch puts around it."""


# ------------------------------------------------------------------------------------------------------ without numbers
# Tensors that have sizes and no numbers: code that reads one gets 0, and goes on.
#
# torch's fake tensors refuse to be read. What a training step reads of its own results are figures to report, and the
# number of tokens of each expert. What follows from tensors with numbers alone (positions, offsets, labels) has
# numbers.


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
            with unset_fake_temporarily():
                kind = (
                    torch.empty(0, dtype=torch.float32 if first.dtype == torch.bfloat16 else first.dtype).numpy().dtype
                )
            zeros = np.zeros(tuple(first.shape), kind)
            if func is Tensor.numpy:
                return zeros
            return zeros.item() if func is Tensor.item else zeros.tolist()
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
