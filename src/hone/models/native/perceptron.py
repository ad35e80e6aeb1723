"""Both passes of a small network of rectified units by compiled kernels, where the processor has tiles (AMX).

Belongs here: the C interface of perceptron/perceptron.h, and which networks it serves. The same passes in plain torch
are in `models.by_hand`, which asks here first. Numbers are rounded to 24 bits of the greatest one of their row, which
on networks is as exact as float32 (perceptron/digits.h).
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hone.core.errors import ResourceError
from hone.native.build import AVX512, BuildInfo, InstructionSet, Source, on_x86, switched_off
from hone.native.build import build as build_source
from hone.native.open import Functions, functions_of

WHAT: Final = "the compiled perceptron"
FOLDER: Final = Path(__file__).parent / "perceptron"
LAYERS: Final = range(3, 9)
"""Of weights: with two, there is no product that a tile would serve."""
MOST_INPUTS: Final = 128
MOST_OUTPUTS: Final = 32
UNITS: Final = range(32, 1025)
"""Of a hidden layer."""
FEWEST_ROWS: Final = 32
"""Below, laying out the weights costs more than the products."""

_At, _Long = ctypes.c_void_p, ctypes.c_int64
_MOST: Final = LAYERS.stop - 1
_SIGNATURES: Final = {
    "hone_runs": (ctypes.c_int32, []),
    "hone_forward": (None, [_At, _Long, _At, _At, _At, ctypes.c_int32]),
    "hone_backward": (None, [_At, _Long, _At, _At, _At, _At, ctypes.c_int32, ctypes.c_int32]),
}


def build(*, force: bool = False, checked: bool = False) -> BuildInfo:
    """The library, as `hone.native.build.build` makes it."""
    amx = InstructionSet(
        name="amx", file="perceptron_amx.cpp", flags=(*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8")
    )
    plain = InstructionSet(name="plain", file="memory.cpp", flags=())
    sets = (plain, amx) if on_x86() else (plain,)
    return build_source(
        Source(name="perceptron", what=WHAT, folder=FOLDER, parts=(), sets=sets), force=force, checked=checked
    )


def open_functions(path: Path) -> Functions:
    """Of the library at `path`; none where the processor has no tiles. Raises ResourceError where it cannot be read."""
    found = functions_of(path, WHAT, _SIGNATURES)
    return found if found["hone_runs"]() else {}


@cache
def _loaded() -> Functions:
    try:
        return open_functions(build().path)
    except ResourceError:  # no compiler: torch does the same
        return {}


def functions() -> Functions:
    """Built and loaded at the first call, which may take seconds; empty where nothing is gained by it."""
    return {} if switched_off() else _loaded()


def fits(sizes: Sequence[int]) -> bool:
    """Whether the kernels are for rectified networks of these sizes: inputs, hidden layers, outputs."""
    few = sizes[0] <= MOST_INPUTS and sizes[-1] <= MOST_OUTPUTS
    return few and len(sizes) - 1 in LAYERS and all(size in UNITS for size in sizes[1:-1])


class Passes:
    """Both passes of one network, whose numbers are looked up where they lie at each call.

    `numbers`: weight `[out, in]` and bias `[out]` of each layer, whose sizes fit.
    """

    def __init__(self, numbers: Sequence[tuple[Tensor, Tensor]]) -> None:
        weights = [weight for weight, _ in numbers]
        self.numbers = [*weights, *(bias for _, bias in numbers)]
        sizes = [weights[0].shape[1], *(weight.shape[0] for weight in weights)]
        self.outputs = sizes[-1]
        self.units = sum(-(-size // 32) * 32 for size in sizes[1:-1])
        self.known: tuple[int, ...] = ()
        """Addresses of weights and biases that `places` holds."""
        self.known_gradients: tuple[int, ...] = ()
        """And of their gradients."""
        self.places = np.zeros(2 + 5 * _MOST, np.int64)
        """The C struct: layers, sizes, then the addresses of weights, biases and of their gradients."""
        self.places[0], self.places[1 : 1 + len(sizes)] = len(numbers), sizes
        self.at = 0
        """Where `places` lies, of the network that `owner` names: a copy of this has its own."""
        self.owner = 0

    def serves(self, x: Tensor) -> bool:
        """Whether it takes rows `[n, in]` like these, here and now."""
        kind = torch.float32
        fits = x.shape[0] >= FEWEST_ROWS and x.dtype == kind == self.numbers[0].dtype and x.is_cpu
        return fits and bool(functions())

    def forward(self, x: Tensor, tape: Tensor | None = None, *, again: bool = False) -> Tensor:
        """`[n, in]` -> `[n, out]`; fills `tape` for the way back, if there is one.

        `again`: no weight has moved since the last call, and they need not be laid out anew.
        """
        x = x.contiguous()
        y = torch.empty(x.shape[0], self.outputs)
        kept = 0 if tape is None else tape.data_ptr()
        _loaded()["hone_forward"](self._place(), x.shape[0], x.data_ptr(), kept, y.data_ptr(), again)
        return y

    def tape(self, rows: int) -> Tensor:
        """Room for what the hidden layers put out, `[panels, units, 32]` in one."""
        return torch.empty(-(-rows // 32) * 32 * self.units)

    def backward(
        self, x: Tensor, tape: Tensor, slope: Tensor, *, weights: bool, inputs: bool, again: bool = False
    ) -> Tensor | None:
        """`slope` `[n, out]`, the derivative by the outputs -> that by the inputs `[n, in]` where `inputs` is set; adds
        to the gradients where `weights` is set. `again`: as of `forward`, since the last call of this."""
        x, slope = x.contiguous(), slope.contiguous()
        below = torch.empty_like(x) if inputs else None
        at = 0 if below is None else below.data_ptr()
        network = self._place(gradients=weights)
        ends = x.data_ptr(), tape.data_ptr(), slope.data_ptr(), at
        _loaded()["hone_backward"](network, x.shape[0], *ends, weights, again)
        return below

    def _place(self, *, gradients: bool = False) -> int:
        """Address of the C struct."""
        now = tuple(number.data_ptr() for number in self.numbers)
        if now != self.known:
            self.known = now
            self._note(0, now)
        if gradients:
            then = tuple(_gradient(number) for number in self.numbers)
            if then != self.known_gradients:
                self.known_gradients = then
                self._note(2, then)
        if self.owner != id(self):
            self.owner, self.at = id(self), self.places.ctypes.data
        return self.at

    def _note(self, row: int, addresses: tuple[int, ...]) -> None:
        count = len(addresses) // 2
        self.places[2 + _MOST :].reshape(4, _MOST)[row : row + 2, :count] = np.array(addresses).reshape(2, count)


def _gradient(number: Tensor) -> int:
    assert number.grad is not None
    return number.grad.data_ptr()
