"""The C interface of source/kernels.h in ctypes: the same structs, field by field, and the library that has them."""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch  # noqa: F401 - brings the OpenMP library with it that `_torch_threads` finds

from hone.core.errors import ConfigError, ResourceError
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

ISA_NAMES: Final = ("portable", "avx2", "avx512", "amx")
LIBRARY_LABEL: Final = "the compiled training kernels"
FOLDER: Final = Path(__file__).parent / "source"

_FLAGS: Final = {
    "portable": (),
    "avx2": AVX2,
    "avx512": AVX512,
    "amx": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
_FILES: Final = {"amx": "amx.cpp"}
"""Instruction sets with kernels of their own; missing kernels are those of the set before."""
_Int, _Long, _At, _Real = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


class HoneNorm(ctypes.Structure):
    """HoneNorm."""

    _fields_ = [
        *((name, _Long) for name in ("rows", "width")),
        *((name, _Int) for name in ("stream_type", "delta_type", "out_type", "threads")),
        ("eps", _Real),
        *((name, _At) for name in ("x", "weight", "delta", "stream", "out", "r")),
    ]


class HoneNormBack(ctypes.Structure):
    """HoneNormBack."""

    _fields_ = [
        *((name, _Long) for name in ("rows", "width")),
        *((name, _Int) for name in ("stream_type", "delta_type", "out_type", "threads")),
        *((name, _At) for name in ("stream", "weight", "g", "r", "d_above")),
        *((name, _At) for name in ("d_stream", "d_delta", "partial", "d_weight")),
    ]


class HoneGate(ctypes.Structure):
    """HoneGate."""

    _fields_ = [
        *((name, _Long) for name in ("rows", "width")),
        *((name, _Int) for name in ("type", "threads")),
        *((name, _At) for name in ("gate_up", "g", "out")),
    ]


class HoneAttention(ctypes.Structure):
    """HoneAttention."""

    _fields_ = [
        *((name, _Int) for name in ("heads", "kv_heads", "head_dim", "type", "threads", "tasks")),
        *((name, _At) for name in ("first", "at", "len", "qkv", "turns", "q_norm", "k_norm")),
        ("norm_type", _Int),
        ("eps", _Real),
        *((name, _At) for name in ("mixed", "shares", "d_qkv", "partial", "d_norms")),
    ]


class HoneSlope(ctypes.Structure):
    """HoneSlope."""

    _fields_ = [
        *((name, _Long) for name in ("tokens", "outs", "ins")),
        ("threads", _Int),
        *((name, _At) for name in ("g", "x", "room", "out")),
    ]


class HoneProduct(ctypes.Structure):
    """HoneProduct."""

    _fields_ = [
        *((name, _Long) for name in ("rows", "columns", "depth", "left_stride", "right_stride", "out_stride")),
        *((name, _Int) for name in ("left_depth_first", "right_depth_first", "add", "threads")),
        *((name, _At) for name in ("left", "right", "bias", "out")),
    ]


_SIGNATURES: Final = {
    "hone_instruction_sets": (ctypes.c_uint32, []),
    "hone_use": (None, [_Int, _At]),
    "hone_block": (_Int, []),
    "hone_norm": (None, [ctypes.POINTER(HoneNorm)]),
    "hone_norm_back": (None, [ctypes.POINTER(HoneNormBack)]),
    "hone_gate": (None, [ctypes.POINTER(HoneGate)]),
    "hone_gate_back": (None, [ctypes.POINTER(HoneGate)]),
    "hone_attend": (None, [ctypes.POINTER(HoneAttention)]),
    "hone_attend_back": (None, [ctypes.POINTER(HoneAttention)]),
    "hone_has_tiles": (_Int, []),
    "hone_slope": (None, [ctypes.POINTER(HoneSlope)]),
    "hone_product": (None, [ctypes.POINTER(HoneProduct)]),
}


@dataclass(frozen=True, slots=True)
class TrainingKernels:
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


def open_kernels(path: Path, isa: str | None = None) -> TrainingKernels:
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
    functions["hone_use"](ISA_NAMES.index(chosen), _torch_threads())
    return TrainingKernels(functions, chosen, int(functions["hone_block"]()))


@cache
def _loaded() -> TrainingKernels | ResourceError:
    """The loaded kernels, or the error; a failed compilation is not repeated."""
    try:
        return open_kernels(build().path)
    except ResourceError as error:
        return error


def available_kernels() -> TrainingKernels | None:
    """Kernels, built and loaded at the first call, which may take seconds; None where that fails or is switched off."""
    result = None if is_disabled() else _loaded()
    return result if isinstance(result, TrainingKernels) else None


def why_unavailable() -> str | None:
    """Reason for missing kernels, or None."""
    if is_disabled():
        return f"{LIBRARY_LABEL} are switched off ({SWITCH}=0)"
    result = _loaded()
    return str(result) if isinstance(result, ResourceError) else None


def _torch_threads() -> int:
    """Address of the function that runs torch's own kernels in parallel."""
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except AttributeError as error:
        raise ResourceError(f"{LIBRARY_LABEL} share torch's threads, and this torch has no GOMP_parallel") from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0
