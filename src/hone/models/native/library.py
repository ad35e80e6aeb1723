"""The C interface of source/kernels.h in ctypes: the same structs, field by field, and the library that has them."""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch  # noqa: F401 - brings the OpenMP library with it that `_torch_threads` finds

from hone.core.errors import ConfigError, ResourceError
from hone.native.build import AVX2, AVX512, SWITCH, BuildInfo, InstructionSet, Source, on_x86, switched_off
from hone.native.build import build as build_source
from hone.native.open import Functions, functions_of

ISA_NAMES: Final = ("portable", "avx2", "avx512", "amx")
WHAT: Final = "the compiled training kernels"
FOLDER: Final = Path(__file__).parent / "source"

_FLAGS: Final = {
    "portable": (),
    "avx2": AVX2,
    "avx512": AVX512,
    "amx": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
_FILES: Final = {"amx": "amx.cpp"}
"""Sets that have kernels of their own, and for the rest those of the set before them."""
_Int, _Long, _At, _Real = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


class Norm(ctypes.Structure):
    """HoneNorm."""

    _fields_ = [
        *((name, _Long) for name in ("rows", "width")),
        *((name, _Int) for name in ("stream_type", "delta_type", "out_type", "threads")),
        ("eps", _Real),
        *((name, _At) for name in ("x", "weight", "delta", "stream", "out", "r")),
    ]


class NormBack(ctypes.Structure):
    """HoneNormBack."""

    _fields_ = [
        *((name, _Long) for name in ("rows", "width")),
        *((name, _Int) for name in ("stream_type", "delta_type", "out_type", "threads")),
        *((name, _At) for name in ("stream", "weight", "g", "r", "d_above")),
        *((name, _At) for name in ("d_stream", "d_delta", "partial", "d_weight")),
    ]


class Gate(ctypes.Structure):
    """HoneGate."""

    _fields_ = [
        *((name, _Long) for name in ("rows", "width")),
        *((name, _Int) for name in ("type", "threads")),
        *((name, _At) for name in ("gate_up", "g", "out")),
    ]


class Attention(ctypes.Structure):
    """HoneAttention."""

    _fields_ = [
        *((name, _Int) for name in ("heads", "kv_heads", "head_dim", "type", "threads", "tasks")),
        *((name, _At) for name in ("first", "at", "len", "qkv", "turns", "q_norm", "k_norm")),
        ("norm_type", _Int),
        ("eps", _Real),
        *((name, _At) for name in ("mixed", "shares", "d_qkv", "partial", "d_norms")),
    ]


class Slope(ctypes.Structure):
    """HoneSlope."""

    _fields_ = [
        *((name, _Long) for name in ("tokens", "outs", "ins")),
        ("threads", _Int),
        *((name, _At) for name in ("g", "x", "room", "out")),
    ]


class Product(ctypes.Structure):
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
    "hone_norm": (None, [ctypes.POINTER(Norm)]),
    "hone_norm_back": (None, [ctypes.POINTER(NormBack)]),
    "hone_gate": (None, [ctypes.POINTER(Gate)]),
    "hone_gate_back": (None, [ctypes.POINTER(Gate)]),
    "hone_attend": (None, [ctypes.POINTER(Attention)]),
    "hone_attend_back": (None, [ctypes.POINTER(Attention)]),
    "hone_has_tiles": (_Int, []),
    "hone_slope": (None, [ctypes.POINTER(Slope)]),
    "hone_product": (None, [ctypes.POINTER(Product)]),
}


@dataclass(frozen=True, slots=True)
class Kernels:
    """What is loaded, and which of its instruction sets is in use."""

    functions: Functions
    isa: str
    block: int
    """Rows of one partial sum of a norm's weight gradient."""


def build(*, force: bool = False, checked: bool = False) -> BuildInfo:
    """The library, as `hone.native.build.build` makes it."""
    names = ISA_NAMES if on_x86() else ISA_NAMES[:1]
    sets = tuple(
        InstructionSet(name=name, file=_FILES.get(name, "isa.cpp"), flags=(f"-DHONE_ISA={name}", *_FLAGS[name]))
        for name in names
    )
    source = Source(name="train", what=WHAT, folder=FOLDER, parts=(), sets=sets)
    return build_source(source, force=force, checked=checked)


def open_kernels(path: Path, isa: str | None = None) -> Kernels:
    """The library at `path`, set to `isa` or the most capable set that runs here. One set at a time is in use.

    Raises ResourceError where it cannot be loaded, or where torch's threads are not to be found; ConfigError for an
    instruction set that does not run here.
    """
    functions = functions_of(path, WHAT, _SIGNATURES)
    bits = int(functions["hone_instruction_sets"]())
    runs = [name for number, name in enumerate(ISA_NAMES) if bits >> number & 1]
    if isa is not None and isa not in runs:
        raise ConfigError(f"instruction set {isa!r} does not run here; what does: {', '.join(runs)}")
    chosen = isa or runs[-1]
    functions["hone_use"](ISA_NAMES.index(chosen), _torch_threads())
    return Kernels(functions, chosen, int(functions["hone_block"]()))


@cache
def _loaded() -> Kernels | ResourceError:
    """Or why there are none: a compiler that failed is not asked again."""
    try:
        return open_kernels(build().path)
    except ResourceError as error:
        return error


def kernels() -> Kernels | None:
    """Built and loaded at the first call, which may take seconds; None where that fails or is switched off."""
    found = None if switched_off() else _loaded()
    return found if isinstance(found, Kernels) else None


def why_not() -> str | None:
    """Why there are no kernels, or None."""
    if switched_off():
        return f"{WHAT} are switched off ({SWITCH}=0)"
    found = _loaded()
    return str(found) if isinstance(found, ResourceError) else None


def _torch_threads() -> int:
    """Address of the function by which torch's own kernels are spread over threads."""
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except AttributeError as error:
        raise ResourceError(f"{WHAT} share torch's threads, and this torch has no GOMP_parallel") from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0
