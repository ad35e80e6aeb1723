"""The C interface of source/kernels.h in ctypes: the same structs, field by field, and the library that has them."""

import ctypes
import functools
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hone.core.errors import ConfigError, ResourceError
from hone.core.ragged import Ints
from hone.models.gradient_buffers import AutogradContext
from hone.models.packing import PackedBatch, index_numbers
from hone.native.build import (
    AVX2,
    AVX512,
    SWITCH,
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

ISA_NAMES: Final = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
LIBRARY_LABEL: Final = "the compiled training kernels"
FOLDER: Final = Path(__file__).parent / "source"

_FLAGS: Final = {
    "portable": (),
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512_bf16": (*AVX512, "-mavx512bf16"),
    "amx": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
_FILES: Final = {"avx512_bf16": "bf16.cpp", "amx": "amx.cpp"}
"""Instruction sets with kernels of their own; missing kernels are those of the set before."""
_Int, _Long, _At, _Real = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


class _HoneNorm(ctypes.Structure):
    _fields_ = [
        *((name, _Long) for name in ("rows", "width")),
        *((name, _Int) for name in ("stream_type", "delta_type", "out_type", "threads")),
        ("eps", _Real),
        *((name, _At) for name in ("x", "weight", "delta", "stream", "out", "r")),
    ]


class _HoneNormBack(ctypes.Structure):
    _fields_ = [
        *((name, _Long) for name in ("rows", "width")),
        *((name, _Int) for name in ("stream_type", "delta_type", "out_type", "threads")),
        *((name, _At) for name in ("stream", "weight", "g", "r", "d_above")),
        *((name, _At) for name in ("d_stream", "d_delta", "partial", "d_weight")),
    ]


class _HoneGate(ctypes.Structure):
    _fields_ = [
        *((name, _Long) for name in ("rows", "width")),
        *((name, _Int) for name in ("type", "threads")),
        *((name, _At) for name in ("gate_up", "g", "out")),
    ]


class _HoneAttention(ctypes.Structure):
    _fields_ = [
        *((name, _Int) for name in ("heads", "kv_heads", "head_dim", "type", "threads", "tasks")),
        *((name, _At) for name in ("first", "at", "len", "qkv", "turns", "q_norm", "k_norm")),
        ("norm_type", _Int),
        ("eps", _Real),
        *((name, _At) for name in ("mixed", "shares", "d_qkv", "partial", "d_norms")),
    ]


class _HoneSlope(ctypes.Structure):
    _fields_ = [
        *((name, _Long) for name in ("tokens", "outs", "ins")),
        ("threads", _Int),
        *((name, _At) for name in ("g", "x", "room", "out")),
    ]


class _HoneProduct(ctypes.Structure):
    _fields_ = [
        *((name, _Long) for name in ("rows", "columns", "depth", "left_stride", "right_stride", "out_stride")),
        *((name, _Int) for name in ("left_depth_first", "right_depth_first", "add", "threads")),
        *((name, _Int) for name in ("rounded", "left_half", "right_half")),
        *((name, _At) for name in ("left", "right", "bias", "out")),
    ]


class _HoneBlocks(ctypes.Structure):
    _fields_ = [
        *((name, _Long) for name in ("rows", "groups")),
        *((name, _Int) for name in ("bits", "type", "threads")),
        *((name, _At) for name in ("blocks", "place", "out")),
    ]


_SIGNATURES: Final = {
    "hone_instruction_sets": (ctypes.c_uint32, []),
    "hone_use": (None, [_Int, _At]),
    "hone_block": (_Int, []),
    "hone_norm": (None, [ctypes.POINTER(_HoneNorm)]),
    "hone_norm_back": (None, [ctypes.POINTER(_HoneNormBack)]),
    "hone_gate": (None, [ctypes.POINTER(_HoneGate)]),
    "hone_gate_back": (None, [ctypes.POINTER(_HoneGate)]),
    "hone_attend": (None, [ctypes.POINTER(_HoneAttention)]),
    "hone_attend_back": (None, [ctypes.POINTER(_HoneAttention)]),
    "hone_decode": (None, [ctypes.POINTER(_HoneBlocks)]),
    "hone_has_tiles": (_Int, []),
    "hone_has_product": (_Int, []),
    "hone_slope": (None, [ctypes.POINTER(_HoneSlope)]),
    "hone_product": (None, [ctypes.POINTER(_HoneProduct)]),
}


@dataclass(frozen=True, slots=True)
class _TrainingKernels:
    """A loaded library and its active instruction set."""

    functions: LibraryFunctions
    isa: str
    block: int
    """Rows per partial sum of a norm's weight gradient."""


def build(*, force: bool = False, checked: bool = False) -> BuiltLibrary:
    """The library, as `hone.native.build.build` makes it."""
    names = ISA_NAMES if on_x86() else ISA_NAMES[:1]
    sets = tuple(
        InstructionSet(name=name, file=_FILES.get(name, "isa.cpp"), flags=(f"-DHONE_ISA={name}", *_FLAGS[name]))
        for name in names
    )
    source = NativeSource(name="train", description=LIBRARY_LABEL, folder=FOLDER, files=(), instruction_sets=sets)
    return build_source(source, force=force, checked=checked)


def open_kernels(path: Path, isa: str | None = None) -> _TrainingKernels:
    """The library at `path`, set to `isa` or the most capable supported set. One set at a time is active.

    Raises ResourceError where it cannot be loaded, or where torch's threads are not found; ConfigError for an
    unsupported instruction set.
    """
    functions = load_functions(path, LIBRARY_LABEL, _SIGNATURES)
    bits = int(functions["hone_instruction_sets"]())
    runs = within_limit(name for number, name in enumerate(ISA_NAMES) if bits >> number & 1)
    if isa is not None and isa not in runs:
        raise ConfigError(f"instruction set {isa!r} is not supported here; supported: {', '.join(runs)}")
    chosen = isa or runs[-1]
    try:
        torch_threads = ctypes.CDLL(None).GOMP_parallel
    except AttributeError as error:
        raise ResourceError(f"{LIBRARY_LABEL} share torch's threads, and this torch has no GOMP_parallel") from error
    functions["hone_use"](ISA_NAMES.index(chosen), ctypes.cast(torch_threads, ctypes.c_void_p).value or 0)
    return _TrainingKernels(functions, chosen, int(functions["hone_block"]()))


@cache
def _loaded() -> _TrainingKernels | ResourceError:
    """The loaded kernels, or the error; a failed compilation is not repeated."""
    try:
        return open_kernels(build().path)
    except ResourceError as error:
        return error


def available_kernels() -> _TrainingKernels | None:
    """Kernels, built and loaded at the first call, which may take seconds; None where that fails or is switched off."""
    result = None if is_disabled() else _loaded()
    return result if isinstance(result, _TrainingKernels) else None


def why_unavailable() -> str | None:
    """Reason for missing kernels, or None."""
    if is_disabled():
        return f"{LIBRARY_LABEL} are switched off ({SWITCH}=0)"
    result = _loaded()
    return str(result) if isinstance(result, ResourceError) else None


# --------------------------------------------------------------------------------------------------------------- layers


DTYPE_CODES: Final = {torch.float32: 0, torch.bfloat16: 1}


def _require_kernels() -> _TrainingKernels:
    """The loaded kernels, which the caller has checked to exist."""
    result = available_kernels()
    assert result is not None
    return result


@dataclass(slots=True)
class _KernelSwitch:
    is_off: bool = False


_SWITCH = _KernelSwitch()


@contextmanager
def leaving_kernels_out() -> Iterator[None]:
    """Context in which compiled functions make their results and compute nothing: a pass of fake tensors then takes the
    memory of a real one."""
    _SWITCH.is_off = True
    try:
        yield
    finally:
        _SWITCH.is_off = False


def computes_nothing() -> bool:
    """True in `leaving_kernels_out`: only the sizes of tensors are asked for."""
    return _SWITCH.is_off


def _call_kernel(name: str, question: ctypes.Structure) -> None:
    """Call a kernel of the loaded library with its argument struct."""
    function: Callable[..., Any] = _require_kernels().functions[name]
    if not _SWITCH.is_off:
        function(ctypes.byref(question))


def _address_of(x: Tensor | None) -> int | None:
    """Address of a tensor's data; None stays None, and a fake tensor has none."""
    return None if x is None or _SWITCH.is_off else x.data_ptr()


class _AddNormFunction(torch.autograd.Function):
    """s = x + delta, out = s r w;  dx = d delta = ds + r (g w - s r^2 mean(g w s)),  dw = sum(g s r)."""

    @staticmethod
    def forward(
        ctx: AutogradContext, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, kind: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        x, weight = x.contiguous(), weight.contiguous()
        delta = None if delta is None else delta.contiguous()
        stream = x if delta is None else torch.empty_like(x)
        out = torch.empty(x.shape, dtype=kind)
        r = torch.empty(len(x), dtype=torch.float32)
        ctx.delta_type = x.dtype if delta is None else delta.dtype
        types = DTYPE_CODES[x.dtype], DTYPE_CODES[ctx.delta_type], DTYPE_CODES[kind], torch.get_num_threads()
        pointers = (_address_of(tensor) for tensor in (x, weight, delta, stream, out, r))
        _call_kernel("hone_norm", _HoneNorm(*x.shape, *types, eps, *pointers))
        ctx.save_for_backward(stream, weight, r)
        ctx.set_materialize_grads(False)
        return stream.view_as(stream), out

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        stream, weight, r = ctx.saved_tensors
        above, g = grads
        if g is None:  # nobody read the norm
            to_delta = None if above is None or not ctx.needs_input_grad[1] else above.to(ctx.delta_type)
            return above, to_delta, None, None, None
        g, above = g.contiguous(), None if above is None else above.contiguous()
        d_stream, d_weight, d_delta, partial = torch.empty_like(stream), None, None, None
        if ctx.needs_input_grad[1] and ctx.delta_type != stream.dtype:
            d_delta = torch.empty(stream.shape, dtype=ctx.delta_type)
        if ctx.needs_input_grad[2]:
            blocks = -(-len(stream) // _require_kernels().block)
            partial, d_weight = torch.empty(blocks, len(weight)), torch.empty(len(weight))
        types = DTYPE_CODES[stream.dtype], DTYPE_CODES[ctx.delta_type], DTYPE_CODES[g.dtype], torch.get_num_threads()
        read = (_address_of(tensor) for tensor in (stream, weight, g, r, above))
        written = (_address_of(tensor) for tensor in (d_stream, d_delta, partial, d_weight))
        _call_kernel("hone_norm_back", _HoneNormBack(*stream.shape, *types, *read, *written))
        to_weight = None if d_weight is None else d_weight.to(weight.dtype)
        to_delta = (d_stream if d_delta is None else d_delta) if ctx.needs_input_grad[1] else None
        return d_stream, to_delta, to_weight, None, None


class _NativeGateFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: AutogradContext, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        kind = DTYPE_CODES[gate_up.dtype], torch.get_num_threads()
        _call_kernel("hone_gate", _HoneGate(rows, width // 2, *kind, _address_of(gate_up), None, _address_of(out)))
        return out

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        g, out = grads[0].contiguous(), torch.empty_like(gate_up)
        kind = DTYPE_CODES[gate_up.dtype], torch.get_num_threads()
        _call_kernel(
            "hone_gate_back", _HoneGate(*g.shape, *kind, _address_of(gate_up), _address_of(g), _address_of(out))
        )
        return out


def native_add_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`x + delta` `[T, D]`, and its RMSNorm `[T, D]` of dtype `kind` (Zhang and Sennrich, 2019).

    `x` and `weight` `[D]` have one dtype; without `delta` the sum is `x`. Sums are in float32.
    """
    return _AddNormFunction.apply(x, delta, weight, eps, kind)


def native_gated_silu(gate_up: Tensor) -> Tensor:
    """`[T, 2 n]` -> silu of the first half times the second, `[T, n]` (Shazeer, 2020)."""
    return _NativeGateFunction.apply(gate_up)


def decode_blocks(blocks: Tensor, place: Tensor, bits: int, dtype: torch.dtype) -> Tensor | None:
    """Rows `[n, in]` of a quantised weight (models/language/quantised_linear.py) at `place` `[n]` int64 of its `blocks`
    `[out / 32, in / 32, bytes]`; None without kernels, and for a dtype that they do not write."""
    if dtype not in DTYPE_CODES or blocks.device.type != "cpu" or available_kernels() is None:
        return None
    out = torch.empty(len(place), 32 * blocks.shape[1], dtype=dtype)
    sizes = len(place), blocks.shape[1], bits, DTYPE_CODES[dtype], torch.get_num_threads()
    pointers = (_address_of(tensor) for tensor in (blocks, place.contiguous(), out))
    _call_kernel("hone_decode", _HoneBlocks(*sizes, *pointers))
    return out


# ------------------------------------------------------------------------------------------------------------ attention
# Attention over packed rows by a compiled kernel: from the output of one linear layer to the input of the next.
#
# The split of packed rows into the kernel's tasks, and the torch function. The kernel applies norms and rotary
# embeddings on input, keeps the scores of a tile of queries in the CPU cache, and recomputes them in the backward pass.


MAX_POSITIONS: Final = 2048
"""Positions; longer texts exceed the CPU cache, and leave too few tasks for the threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTexts:
    """Rows of texts, the costliest first; each begins with its trunk, which may be empty."""

    first: Ints
    """`[rows + 1]` offsets of each row's texts."""
    at: Ints
    """`[texts]` where a text's own tokens begin."""
    length: Ints
    """`[texts]` their number of tokens."""

    @classmethod
    def from_packed(cls, packed: PackedBatch) -> Self | None:
        """Texts of packed rows; None where the kernel does not support them: longer than LONGEST, or with split
        branches.
        """
        positions, count = index_numbers(packed.positions), len(packed.positions)
        lengths = np.diff(packed.offsets)
        row = np.repeat(np.arange(len(lengths)), lengths)
        branch = np.zeros(count, np.int64) if packed.branch is None else index_numbers(packed.branch)
        step = np.flatnonzero((np.diff(row) != 0) | (np.diff(branch) != 0)) + 1
        at = np.append(0, step) if count else step
        length = np.diff(np.append(at, count))
        is_trunk = branch[at] == 0
        trunks = np.zeros(len(lengths), np.int64)
        trunks[row[at[is_trunk]]] = length[is_trunk]
        begin = np.where(is_trunk, 0, trunks[row[at]])
        known = (
            len(np.unique(row[at] * (int(branch.max(initial=0)) + 1) + branch[at])) == len(at)
            and bool((at[is_trunk] == packed.offsets[row[at[is_trunk]]]).all())
            and np.array_equal(positions, np.arange(count) + np.repeat(begin - at, length))
            and int(positions.max(initial=0)) < MAX_POSITIONS
        )
        if not known:
            return None
        return cls._sorted(row[at], at, length, begin, trunks, packed.offsets[:-1])

    @classmethod
    def _sorted(cls, row: Ints, at: Ints, length: Ints, begin: Ints, trunks: Ints, starts: Ints) -> Self:
        """Rows sorted by cost; a text without tokens stands for the missing trunk of a row."""
        rows = len(trunks)
        cost = np.bincount(row, weights=length * (2 * begin + length), minlength=rows)
        rank = np.empty(rows, np.int64)
        rank[np.argsort(-cost, kind="stable")] = np.arange(rows)
        missing = np.flatnonzero(trunks == 0)
        row, begin = np.append(row, missing), np.append(begin, np.full(len(missing), -1))
        at, length = np.append(at, starts[missing]), np.append(length, np.zeros(len(missing), np.int64))
        order = np.lexsort((at, begin, rank[row]))
        counts = np.bincount(rank[row], minlength=rows)
        return cls(
            first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            at=np.ascontiguousarray(at[order], np.int64),
            length=np.ascontiguousarray(length[order], np.int64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeAttention:
    """Causal attention of one Packed batch, at head_dim^-1/2."""

    texts: KernelTexts
    turns: Tensor
    """`[T, head_dim / 2, 2]` float32: cosine and sine of each pair of features."""
    heads: int
    kv_heads: int
    head_dim: int

    def __call__(self, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, eps: float) -> Tensor:
        """`[T, (heads + 2 kv_heads) head_dim]` -> `[T, heads head_dim]`; the norms `[head_dim]`, both or none."""
        return _NativeAttentionFunction.apply(qkv, q_norm, k_norm, eps, self)

    def kernel_arguments(self, qkv: Tensor, norms: tuple[Tensor | None, Tensor | None], eps: float) -> _HoneAttention:
        """Arguments of the C kernel, as pointers and sizes."""
        texts, kind = self.texts, DTYPE_CODES[qkv.dtype if norms[0] is None else norms[0].dtype]
        arrays = (array.ctypes.data for array in (texts.first, texts.at, texts.length))
        sizes = self.heads, self.kv_heads, self.head_dim, DTYPE_CODES[qkv.dtype], torch.get_num_threads()
        pointers = (_address_of(tensor) for tensor in (qkv, self.turns, *norms))
        return _HoneAttention(*sizes, len(texts.first) - 1, *arrays, *pointers, kind, eps)


class _NativeAttentionFunction(torch.autograd.Function):
    """Saves its input and two numbers per query; scores are recomputed (Dao et al., "FlashAttention", 2022)."""

    @staticmethod
    def forward(
        ctx: AutogradContext,
        qkv: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        plan: NativeAttention,
    ) -> Tensor:
        qkv = qkv.contiguous()
        out, shares = qkv.new_empty(len(qkv), plan.heads * plan.head_dim), torch.empty(len(qkv), plan.heads, 2)
        ctx.save_for_backward(qkv, q_norm, k_norm, shares)
        ctx.plan, ctx.eps = plan, eps
        question = plan.kernel_arguments(qkv, (q_norm, k_norm), eps)
        question.mixed, question.shares = _address_of(out), _address_of(shares)
        _call_kernel("hone_attend", question)
        return out

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (qkv, q_norm, k_norm, shares), plan, g = ctx.saved_tensors, ctx.plan, grads[0].contiguous()
        question, out = plan.kernel_arguments(qkv, (q_norm, k_norm), ctx.eps), torch.empty_like(qkv)
        question.mixed, question.shares, question.d_qkv = _address_of(g), _address_of(shares), _address_of(out)
        if not any(ctx.needs_input_grad[1:3]):
            _call_kernel("hone_attend_back", question)
            return out, None, None, None, None
        partial = torch.empty(question.tasks, plan.kv_heads, 2, plan.head_dim)
        norms = torch.empty(2, plan.head_dim)
        question.partial, question.d_norms = _address_of(partial), _address_of(norms)
        _call_kernel("hone_attend_back", question)
        to_query, to_key = norms.to(q_norm.dtype)
        return out, to_query, to_key, None, None


# ------------------------------------------------------------------------------------------------------------- products
# Matrix products of linear layers by AMX tiles: of float32 numbers in three bfloat16 pieces, and of bfloat16 numbers;
# the latter of the vocabulary head by AVX-512 BF16 too.
#
# With the conditions for their use; torch computes the rest. float32 takes six products of pieces, so that a result is
# at least as close to the true one as torch's (source/product.h).
#
# torch multiplies bfloat16 matrices by oneDNN where the processor has AVX-512, and by plain loops where it has not: 10
# to 80 times slower than float32. There they are widened.


_WIDTH: Final = 32
"""Widths are multiples of it."""
_SCRATCH_ROWS: Final = 512
"""Tokens laid out at once: SLOPE_ROOM."""
_MIN_MULTIPLICATIONS: Final = 6 << 20
"""Multiplications below which torch is faster, because of the layout and the call."""
_MIN_SIZE: Final = 32
"""Minimum of a product's three sizes; they are padded to multiples of 32."""


WIDENED_ROWS: Final = 1024
"""Rows of bfloat16 numbers that are widened at a time."""


@functools.cache
def widens_half_products() -> bool:
    """True if products of bfloat16 matrices take float32 matrices: on x86 processors without AVX-512."""
    known = platform.machine().lower() in {"x86_64", "amd64"}
    return known and torch.backends.cpu.get_cpu_capability() in {"DEFAULT", "AVX2"}


def is_widened(dtype: torch.dtype, device: torch.device) -> bool:
    """True if products of such numbers there take float32 matrices: bfloat16 on such a processor."""
    return dtype == torch.bfloat16 and device.type == "cpu" and widens_half_products()


def uses_amx_tiles() -> bool:
    """True if float32 products use tiles here. The first call may compile the kernels (seconds)."""
    result = available_kernels()
    return result is not None and bool(result.functions["hone_has_tiles"]())


def tiled_matmul(
    left: Tensor, right: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None, add: bool = False
) -> Tensor:
    """`left [M, K] @ right [K, N] + bias [N]` -> `[M, N]`; into `out` where given, and with `add` added to it.

    By tiles for float32 on a processor with AMX where that is faster, else by torch. Either factor may be the
    transposed view of a matrix. By tiles an element depends only on its row of `left` and its column of `right`: not on
    threads, `M` or `N`. Infinite inputs give NaN, and pieces of a number below 2^-126 count as zero. There are no
    gradients; `add` takes no bias.
    """
    rows, depth, columns = *left.shape, right.shape[1]
    if (
        min(rows, columns, depth) < _MIN_SIZE
        or rows * columns * depth < _MIN_MULTIPLICATIONS
        or left.dtype != torch.float32
        or right.dtype != torch.float32
        or None in (_memory_order(left), _memory_order(right))
        or left.device.type != "cpu"
        or not uses_amx_tiles()
    ):
        return _by_torch(left, right, bias, out, add=add)
    return _product(left, right, bias, out, add=add, rounded=False)


def _product(
    left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor | None, *, add: bool, rounded: bool
) -> Tensor:  # fmt: skip
    """The kernel's product of matrices that each lie in one memory order."""
    rows, depth, columns = *left.shape, right.shape[1]
    if out is None:
        out = torch.empty(rows, columns)
    assert out.shape == (rows, columns) and out.stride(1) == 1 and out.dtype == torch.float32
    bias = None if bias is None else bias.contiguous()
    (left_first, left_stride), (right_first, right_stride) = (
        _memory_order(left) or (0, 0),
        _memory_order(right) or (0, 0),
    )
    strides = left_stride, right_stride, out.stride(0)
    settings = left_first, 1 - right_first, add, torch.get_num_threads()
    kinds = rounded, *(one.dtype == torch.bfloat16 for one in (left, right))
    pointers = (_address_of(tensor) for tensor in (left, right, bias, out))
    _call_kernel("hone_product", _HoneProduct(rows, columns, depth, *strides, *settings, *kinds, *pointers))
    return out


def _memory_order(x: Tensor) -> tuple[int, int] | None:
    """Detect the contiguous dimension (True: the first) and the stride of the other; None: neither is contiguous."""
    along, across = x.stride()
    if across == 1 and along >= x.shape[1]:
        return 0, along
    return (1, across) if along == 1 and across >= x.shape[0] else None


def _by_torch(left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor | None, *, add: bool) -> Tensor:
    if is_widened(left.dtype, left.device) and bias is None:
        out = left.new_empty(len(left), right.shape[1]) if out is None else out
        return _widened_into(left, right, out, add=add)
    if add:
        assert out is not None and bias is None
        return out.addmm_(left, right)
    result = torch.mm(left, right, out=out) if out is not None else left @ right
    return result if bias is None else result.add_(bias)


def _widened_into(left: Tensor, right: Tensor, out: Tensor, *, add: bool) -> Tensor:
    """Write the product of bfloat16 matrices to `out`, or add it, rounded once. Of the largest size WIDENED_ROWS are
    widened at a time: such a factor is often the whole vocabulary's."""
    rows, depth, columns = *left.shape, right.shape[1]
    if rows > columns:
        _widened_into(right.t(), left.t(), out.t(), add=add)
    elif depth > columns:
        total = out.float() if add else torch.zeros(out.shape)
        for some, others in zip(left.split(WIDENED_ROWS, 1), right.split(WIDENED_ROWS), strict=True):
            total.addmm_(some.float(), others.float())
        out.copy_(total)
    else:
        wide = left.float()
        for some, to in zip(right.split(WIDENED_ROWS, 1), out.split(WIDENED_ROWS, 1), strict=True):
            to.copy_((wide @ some.float()).add_(to) if add else wide @ some.float())
    return out


def weight_gradient(g: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor | None:
    """`g^T x` for bfloat16 `g` `[T, out]` and `x` `[T, in]` -> `[out, in]` float32, which is not rounded on the way.

    Written into `out` where that is given. None where torch's own product, which is rounded, is the only one.
    """
    if x.device.type != "cpu":
        return None
    if widens_half_products():
        # By float32 matrices, some rows at a time.
        out = torch.empty(g.shape[1], x.shape[1]) if out is None else out
        parts = zip(g.split(WIDENED_ROWS), x.split(WIDENED_ROWS), strict=True)
        for number, (above, rows) in enumerate(parts):
            out.addmm_(above.float().t(), rows.float(), beta=min(number, 1))
        return out
    fits = g.shape[1] % _WIDTH == 0 and x.shape[1] % _WIDTH == 0 and len(x) > 0
    if not (fits and uses_amx_tiles()):
        return None
    g, x = g.contiguous(), x.contiguous()
    out = torch.empty(g.shape[1], x.shape[1]) if out is None else out
    room = torch.empty(_SCRATCH_ROWS, x.shape[1], dtype=torch.bfloat16)
    pointers = (_address_of(tensor) for tensor in (g, x, room, out))
    _call_kernel("hone_slope", _HoneSlope(*g.shape, x.shape[1], torch.get_num_threads(), *pointers))
    return out


# -------------------------------------------------------------------------------------------------------- half products


def multiplies_half() -> bool:
    """True if the kernels multiply numbers that are rounded to bfloat16, with float32 sums, and faster than torch
    multiplies float32 numbers. The first call may compile them (seconds)."""
    result = available_kernels()
    return result is not None and bool(result.functions["hone_has_product"]())


def half_matmul(left: Tensor, right: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
    """`left [M, K] @ right [K, N]` of numbers rounded to bfloat16 -> `[M, N]` float32; into `out` where given, and with
    `add` added to it. No gradients.

    On a CPU whose kernels have it an element depends only on its row of `left` and its column of `right`.
    """
    if left.device.type == "cpu" and multiplies_half() and min(*left.shape, right.shape[1]):
        left, right = (one if _memory_order(one) is not None else one.contiguous() for one in (left, right))
        return _product(left, right, None, out, add=add, rounded=True)
    left, right = left.to(torch.bfloat16), right.to(torch.bfloat16)
    result = torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda else left.float() @ right.float()
    if out is None:
        return result
    return out.add_(result) if add else out.copy_(result)


def rounded_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left [M, K] @ right [K, N]` of bfloat16 numbers -> `[M, N]` bfloat16. No gradients."""
    return _widened_matmul(left, right) if is_widened(left.dtype, left.device) else left @ right


def rounded_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x [N, in] @ weight [out, in]^T + bias [out]` of bfloat16 numbers -> `[N, out]` bfloat16. No gradients."""
    if not is_widened(x.dtype, x.device):
        return functional.linear(x, weight, bias)
    return _widened_matmul(x, weight.t(), None if bias is None else bias.float())


def _widened_matmul(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same by float32 matrices, some rows at a time: a product of two bfloat16 numbers is exact in float32."""
    wide, out = right.float(), left.new_empty(len(left), right.shape[1])
    for rows, to in zip(left.split(WIDENED_ROWS), out.split(WIDENED_ROWS), strict=True):
        to.copy_(rows.float() @ wide if bias is None else torch.addmm(bias, rows.float(), wide))
    return out


def uses_half_products(device: torch.device, compute: torch.dtype) -> bool:
    """True where the logits of a model that computes in bfloat16 are products of bfloat16 numbers, too: on a GPU, whose
    float32 products are an order of magnitude slower, and on a CPU with AMX or AVX-512 BF16. Other CPUs compute them in
    float32.
    """
    return compute == torch.bfloat16 and (device.type == "cuda" or (device.type == "cpu" and multiplies_half()))
