"""Both passes of a small ReLU or tanh network by compiled kernels, on processors with AVX2, AVX-512 or AMX: a torch
function with gradients; and PPO's loss of two such networks with its gradient, in one call.

The C interface of perceptron/perceptron.h, and the networks that it serves. `Mlp` asks here first and runs in plain
torch everywhere else. Products are those of float32 numbers in vector registers. With AMX, numbers of a ReLU network
are rounded to 24 bits of the greatest one of their row and multiplied as three bytes each, which on networks is as
exact as float32 (perceptron/digits.h). Where `use_bfloat16` asked for it, hidden layers of a ReLU network multiply
numbers rounded to bfloat16 (perceptron/rounded.h). benchmarks/RESULTS.md has what they are worth in whole recipes.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hone.core.errors import ConfigError, ResourceError
from hone.models.gradient_buffers import AutogradContext, accumulation_buffers
from hone.native.build import (
    AVX2,
    AVX512,
    BuiltLibrary,
    InstructionSet,
    LibraryFunctions,
    NativeSource,
    is_disabled,
    load_functions,
    on_x86,
    within_limit,
)
from hone.native.build import build as build_source

LIBRARY_LABEL: Final = "the compiled perceptron"
ISA_NAMES: Final = ("avx2", "avx512", "avx512_bf16", "amx")
"""Instruction sets, in the order of perceptron/api.cpp; float32 passes of the third are those of the second."""
FOLDER: Final = Path(__file__).parent / "perceptron"
LAYERS: Final = range(3, 9)
"""Number of weight matrices; with two, no product is large enough for a tile."""
MAX_INPUTS: Final = 128
MAX_OUTPUTS: Final = 32
UNITS: Final = range(32, 1025)
"""Units of a hidden layer."""
MAX_SMALL: Final = 128
"""Units of the hidden layers of a small network."""
MIN_ROWS: Final = 32
"""With fewer rows, packing the weights costs more than the products."""

_At, _Long = ctypes.c_void_p, ctypes.c_int64
_MAX_LAYERS: Final = LAYERS.stop - 1
_BFLOAT16: Final = (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8")
_SOURCES: Final = {
    "avx2": ("perceptron_vector.cpp", ("-DHONE_ISA=avx2", *AVX2)),
    "avx512": ("perceptron_vector.cpp", ("-DHONE_ISA=avx512", *AVX512)),
    "avx512_bf16": ("perceptron_bf16.cpp", _BFLOAT16),  # shares headers with tiles, and runs none
    "amx": ("perceptron_amx.cpp", _BFLOAT16),
}
"""File and flags of each instruction set."""
_SIGNATURES: Final = {
    "hone_instruction_sets": (ctypes.c_uint32, []),
    "hone_rounds": (ctypes.c_int32, [ctypes.c_int32]),
    "hone_forward": (None, [ctypes.c_int32, _At, _Long, _At, _At, _At]),
    "hone_backward": (None, [ctypes.c_int32, _At, _Long, _At, _At, _At, _At, ctypes.c_int32]),
    "hone_clipped": (None, [ctypes.c_int32, _At, _At, _At]),
}


def build(*, force: bool = False, checked: bool = False) -> BuiltLibrary:
    """The library, as `hone.native.build.build` makes it."""
    plain = InstructionSet(name="plain", file="memory.cpp", flags=())
    sets = tuple(InstructionSet(name=name, file=file, flags=flags) for name, (file, flags) in _SOURCES.items())
    source = NativeSource(
        name="perceptron",
        description=LIBRARY_LABEL,
        folder=FOLDER,
        files=(),
        instruction_sets=(plain, *sets) if on_x86() else (plain,),
    )
    return build_source(source, force=force, checked=checked)


def open_functions(path: Path, isa: str | None = None, *, relu: bool = True) -> LibraryFunctions:
    """Both passes of the library at `path` by `isa`, or by the most capable instruction set of this processor within
    `$HONE_NATIVE_ISA`; none where there is none. Those of a tanh network (not `relu`) are by vectors at most.

    Raises ResourceError for a bad library, and ConfigError for an unsupported instruction set.
    """
    functions = load_functions(path, LIBRARY_LABEL, _SIGNATURES)
    bits = int(functions["hone_instruction_sets"]())
    here = (name for number, name in enumerate(ISA_NAMES) if bits >> number & 1)
    runs = within_limit(name for name in here if relu or name != "amx")
    if isa is not None and isa not in runs:
        raise ConfigError(f"instruction set {isa!r} is not supported here; supported: {', '.join(runs) or 'none'}")
    if not runs:
        return {}
    number = ISA_NAMES.index(isa or runs[-1])
    return {name: partial(functions[name], number) for name in _SIGNATURES if name != "hone_instruction_sets"}


@cache
def _loaded(*, relu: bool = True) -> LibraryFunctions:
    try:
        return open_functions(build().path, relu=relu)
    except ResourceError:  # no compiler: torch does the same
        return {}


def available_functions() -> LibraryFunctions:
    """Functions, built and loaded at the first call, which may take seconds; empty where the kernels cannot run."""
    return {} if is_disabled() else _loaded()


def supports_bfloat16() -> bool:
    """True if this processor multiplies bfloat16 numbers: AVX-512 BF16 or AMX, within `$HONE_NATIVE_ISA`."""
    functions = available_functions()
    return bool(functions) and bool(functions["hone_rounds"]())


def supports_sizes(sizes: Sequence[int]) -> bool:
    """True if the kernels support a network of these sizes: inputs, hidden layers, outputs."""
    small_ends = sizes[0] <= MAX_INPUTS and sizes[-1] <= MAX_OUTPUTS
    return small_ends and len(sizes) - 1 in LAYERS and all(size in UNITS for size in sizes[1:-1])


class PerceptronKernels:
    """Both passes of one network. Addresses of its parameters are looked up at each call, as they may have moved.

    `layer_parameters`: weight `[out, in]` and bias `[out]` of each layer, of sizes that `supports_sizes`; hidden units
    are rectified (`relu`) or tanh.
    """

    def __init__(self, layer_parameters: Sequence[tuple[Tensor, Tensor]], *, relu: bool = True) -> None:
        self.relu = relu
        weights = [weight for weight, _ in layer_parameters]
        self.parameters = [*weights, *(bias for _, bias in layer_parameters)]
        """Weights, then biases."""
        self.sizes = [weights[0].shape[1], *(weight.shape[0] for weight in weights)]
        self._tape_units = sum(-(-size // 32) * 32 for size in self.sizes[1:-1])
        self._counts = [parameter.numel() for parameter in self.parameters]
        self._addresses: tuple[int, ...] = ()
        """Addresses of the parameters that `_struct` holds."""
        self._gradient_addresses: tuple[int, ...] = ()
        """Addresses of their gradients that it holds."""
        self._struct = np.zeros(4 + 5 * _MAX_LAYERS, np.int64)
        """The C struct: layers, sizes, then addresses of weights, biases and of their gradients, the kind of units, and
        whether products are of rounded numbers."""
        self._struct[-2] = not relu
        self._struct[0], self._struct[1 : 1 + len(self.sizes)] = len(self.sizes) - 1, self.sizes

    def supports(self, x: Tensor) -> bool:
        """True if the kernels accept rows `[n, in]` like these on this machine."""
        weight = self.parameters[0]
        fits = x.dim() == 2 and x.shape[0] >= MIN_ROWS and x.dtype == weight.dtype == torch.float32
        return fits and x.is_cpu and weight.is_cpu and bool(available_functions())

    def use_bfloat16(self) -> None:
        """Multiply numbers rounded to bfloat16 in the hidden layers of a ReLU network, on a machine that
        `supports_bfloat16`."""
        assert self.relu
        self._struct[-1] = 1

    def __call__(self, x: Tensor, *, frozen: bool = False) -> Tensor:
        """`[n, in]` -> `[n, out]`, with gradients for `x` and, unless `frozen`, for the parameters."""
        if not torch.is_grad_enabled():
            return self.forward(x.contiguous())
        parameters = [parameter.detach() for parameter in self.parameters] if frozen else self.parameters
        return _PerceptronFunction.apply(self, x.contiguous(), *parameters)  # pyright: ignore[reportReturnType] - untyped

    def forward(self, x: Tensor, tape: Tensor | None = None) -> Tensor:
        """`[n, in]` -> `[n, out]`, without a graph; writes the hidden outputs to `tape`."""
        rows = x.shape[0]
        y = torch.empty(rows, self.sizes[-1])
        kept = 0 if tape is None else tape.data_ptr()
        _loaded(relu=self.relu)["hone_forward"](self._network(), rows, x.data_ptr(), kept, y.data_ptr())
        return y

    @property
    def is_small(self) -> bool:
        """True if one call of PPO's whole minibatch is the fastest: products of wider ReLU layers are, by AMX, faster
        one by one."""
        return not self.relu or max(self.sizes[1:-1]) <= MAX_SMALL

    def new_tape(self, rows: int) -> Tensor:
        """Memory for the outputs of the hidden layers: panels of 32 rows, `[panels, units, 32]` flattened."""
        return torch.empty(-(-rows // 32) * 32 * self._tape_units)

    def backward(
        self, x: Tensor, tape: Tensor, slope: Tensor, *, weights: bool, inputs: bool
    ) -> tuple[Tensor | None, Sequence[Tensor]]:
        """Derivatives of a loss by `x` `[n, in]`, if `inputs`, and by the parameters, if `weights`, from `slope`
        `[n, out]`, its derivative by the outputs. Those by the parameters are added to their accumulation buffers where
        there are some, and not returned."""
        by_inputs = torch.empty_like(x) if inputs else None
        gradients, returned = accumulation_buffers(self.parameters) if weights else (), False
        if gradients is None:
            parts, returned = torch.zeros(sum(self._counts)).split(self._counts), True
            gradients = [part.view_as(owner) for part, owner in zip(parts, self.parameters, strict=True)]
        _loaded(relu=self.relu)["hone_backward"](
            self._network(gradients),
            x.shape[0],
            x.data_ptr(),
            tape.data_ptr(),
            slope.data_ptr(),
            0 if by_inputs is None else by_inputs.data_ptr(),
            weights,
        )
        return by_inputs, gradients if returned else ()

    def with_gradients(self) -> int:
        """Address of the C struct, whose gradients are those of the parameters, which must be allocated."""
        gradients = [parameter.grad for parameter in self.parameters]
        return self._network([gradient for gradient in gradients if gradient is not None])

    def _network(self, gradients: Sequence[Tensor] = ()) -> int:
        """Address of the C struct, with the parameters and their `gradients`, if any, where they lie now."""
        addresses = tuple(map(Tensor.data_ptr, self.parameters))
        if addresses != self._addresses:
            self._addresses = addresses
            self._write_addresses(0, addresses)
        if gradients and (places := tuple(map(Tensor.data_ptr, gradients))) != self._gradient_addresses:
            self._gradient_addresses = places
            self._write_addresses(1, places)
        return self._struct.ctypes.data

    def _write_addresses(self, part: int, addresses: tuple[int, ...]) -> None:
        """Write addresses of weights and biases into part 0 of the C struct, of their gradients into part 1."""
        layers = len(self.sizes) - 1
        parts = self._struct[2 + _MAX_LAYERS : -2].reshape(2, 2, _MAX_LAYERS)
        parts[part, :, :layers] = np.array(addresses).reshape(2, layers)


class _Clipped(ctypes.Structure):
    """`Clipped` in perceptron/perceptron.h."""

    _fields_ = (
        ("rows", _Long),
        *((name, _At) for name in ("x", "choice", "legal", "sample", "log_std", "precision", "d_log_std", "logp")),
        *((name, _At) for name in ("advantage", "target", "weight", "loss", "now", "nats", "value")),
        ("start", _Long),
        *((name, ctypes.c_float) for name in ("low", "high", "value_weight", "entropy_weight", "volume")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedWeights:
    """Constants of PPO's loss."""

    low: float
    """The ratio is clipped at 1 - low."""
    high: float
    """And at 1 + high."""
    value: float
    """Weight of the critic's squared error."""
    entropy: float
    """Weight of the entropy bonus."""


@dataclass(frozen=True, slots=True)
class ChosenNumbers:
    """Actions of a categorical policy."""

    chosen: Tensor
    """`[n]` int64."""
    start: int
    """Number of the first choice."""
    mask: Tensor | None
    """`[n, choices]` legal choices; None: all."""


@dataclass(frozen=True, slots=True)
class GaussianSamples:
    """Actions of a Gaussian policy."""

    samples: Tensor
    """`[n, a]`"""
    log_std: Tensor
    """`[a]`, with an allocated gradient."""
    log_volume: float
    """log |d action / d sample|."""


@dataclass(frozen=True, slots=True)
class _ClippedOutput:
    """Parts of PPO's loss by row, each `[n]`."""

    loss: Tensor
    logp: Tensor
    """Log-probability now, nats."""
    entropy: Tensor
    """Nats."""
    value: Tensor


def clipped_with_backward(
    actor: PerceptronKernels,
    critic: PerceptronKernels,
    x: Tensor,
    actions: ChosenNumbers | GaussianSamples,
    columns: tuple[Tensor, Tensor, Tensor, Tensor],
    weights: ClippedWeights,
) -> _ClippedOutput:
    """PPO's loss of rows `x` `[n, in]`, and its gradient, added to those of both networks' parameters.

    `columns` `[n]`: log-probabilities under the behaviour policy, advantages, targets of the critic, and weights of the
    rows, which are equal.
    """
    a, parts, held = _Clipped(), torch.empty(4, len(x)), [x.contiguous(), *columns]
    a.rows, (a.x, a.logp, a.advantage, a.target, a.weight) = len(x), map(Tensor.data_ptr, held)
    a.loss, a.now, a.nats, a.value = map(Tensor.data_ptr, parts)
    a.low, a.high, a.value_weight, a.entropy_weight = weights.low, weights.high, weights.value, weights.entropy
    if isinstance(actions, GaussianSamples):
        gradient = actions.log_std.grad
        assert gradient is not None
        held += [actions.samples.contiguous(), actions.log_std, torch.exp(-actions.log_std.detach()), gradient]
        a.sample, a.log_std, a.precision, a.d_log_std = map(Tensor.data_ptr, held[-4:])
        a.volume = actions.log_volume
    else:
        a.choice, a.start = actions.chosen.data_ptr(), actions.start
        if actions.mask is not None:
            held.append(actions.mask.contiguous())
            a.legal = held[-1].data_ptr()
    _loaded(relu=actor.relu)["hone_clipped"](actor.with_gradients(), critic.with_gradients(), ctypes.byref(a))
    return _ClippedOutput(*parts)


class _PerceptronFunction(torch.autograd.Function):
    """h_k = f(h_{k-1} W_k' + b_k); dz_{k-1} = (dz_k W_k) f', dW_k = dz_k' h_{k-1}, db_k = sum of dz_k.

    f is relu, f' = [h_{k-1} > 0], or tanh, f' = 1 - h_{k-1}^2.
    """

    @staticmethod
    def forward(ctx: AutogradContext, kernels: PerceptronKernels, x: Tensor, *parameters: Tensor) -> Tensor:
        tape = kernels.new_tape(x.shape[0]) if any(ctx.needs_input_grad) else None
        ctx.kernels, ctx.tape = kernels, tape
        ctx.save_for_backward(x, *parameters)
        return kernels.forward(x, tape)

    @staticmethod
    def backward(ctx: AutogradContext, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        _, inputs, *wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():  # a gradient of the gradient is asked for, which torch alone computes
            asked = [part for part, wants in zip((x, *parameters), (inputs, *wanted), strict=True) if wants]
            # The forward pass in plain torch.
            layers = len(parameters) // 2
            for number, (weight, bias) in enumerate(zip(parameters[:layers], parameters[layers:], strict=True)):
                x = F.linear((torch.relu(x) if ctx.kernels.relu else torch.tanh(x)) if number else x, weight, bias)
            gradients = iter(torch.autograd.grad(x, asked, slopes, create_graph=True))
            return None, *(next(gradients) if wants else None for wants in (inputs, *wanted))
        by_inputs, by_parameters = ctx.kernels.backward(
            x, ctx.tape, slopes[0].contiguous(), weights=any(wanted), inputs=inputs
        )
        return None, by_inputs, *(by_parameters or (None,) * len(wanted))
