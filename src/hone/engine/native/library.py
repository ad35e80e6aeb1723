"""The C interface of source/abi.h in ctypes: the same structs, field by field.

Loads and calls the library, without the model's types.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock
from hone.core.episodes import routing_dtype
from hone.core.errors import ConfigError, ResourceError
from hone.engine.work import ForwardBatch, SamplerOutput
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

# ---------------------------------------------------------------------------------------------------------------- build


SOURCE: Final = Path(__file__).parent / "source"
WHAT: Final = "the compiled runner"

_PARTS: Final = ("pool.cpp", "sample.cpp", "engine.cpp", "publish.cpp")
_PORTABLE: Final = InstructionSet(name="portable", file="isa.cpp", flags=("-DHONE_ISA=portable",))
_X86: Final = (
    InstructionSet(name="avx2", file="isa.cpp", flags=("-DHONE_ISA=avx2", *AVX2)),
    InstructionSet(name="avx_vnni", file="code_isa.cpp", flags=("-DHONE_ISA=avx_vnni", *AVX2, "-mavxvnni")),
    InstructionSet(name="avx512", file="isa.cpp", flags=("-DHONE_ISA=avx512", *AVX512)),
    InstructionSet(name="avx512_vnni", file="code_isa.cpp", flags=("-DHONE_ISA=avx512_vnni", *AVX512, "-mavx512vnni")),
    InstructionSet(name="avx512_bf16", file="tile_bf16.cpp", flags=(*AVX512, "-mavx512bf16")),
    InstructionSet(name="amx", file="tile_amx.cpp", flags=(*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8")),
)


def build(*, force: bool = False, checked: bool = False, clock: Clock | None = None) -> BuiltLibrary:
    """The library of `SOURCE`, as `hone.native.build.build` makes it."""
    sets = (_PORTABLE, *(_X86 if on_x86() else ()))
    source = NativeSource(name="hone", description=WHAT, folder=SOURCE, files=_PARTS, instruction_sets=sets)
    return build_source(source, force=force, checked=checked, clock=clock)


# -------------------------------------------------------------------------------------------------------------- library
# Loads and calls the library, without torch and without the model's types.


ISA_NAMES: Final = ("portable", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx")
"""Each more capable than the one before; a CPU runs a selection of them."""
NumberKind = Literal["float32", "bfloat16", "int8"]
"""What the compiled runner multiplies; `int8`: weights and activations in codes of 8 bits."""
CacheKind = Literal["float32", "bfloat16", "int8"]
"""What keys and values are kept in."""
CACHES: Final[tuple[CacheKind, ...]] = ("float32", "bfloat16", "int8")
_OF_KIND: Final[dict[str, frozenset[str]]] = {
    "avx_vnni": frozenset({"int8"}),
    "avx512_vnni": frozenset({"int8"}),
    "avx512_bf16": frozenset({"bfloat16"}),
    "amx": frozenset({"bfloat16", "int8"}),
}
"""Instruction sets with something to offer to some kinds alone."""
_Int = ctypes.c_int32
_At = ctypes.c_void_p


class NativeShape(ctypes.Structure):
    """HoneShape."""

    _fields_ = [
        *((name, _Int) for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim")),
        *((name, _Int) for name in ("vocab", "vocab_used", "bfloat16", "int8", "bits", "cache")),
        ("norm_eps", ctypes.c_float),
        *((name, _Int) for name in ("norm_whole", "experts", "per_token", "normalise_gates")),
        *((name, _Int) for name in ("centred", "parallel", "gelu", "query_original")),
        *((name, ctypes.c_float) for name in ("query_beta", "embedding_factor", "residual_factor")),
        *((name, ctypes.c_float) for name in ("score_cap", "logit_cap")),
    ]


class NativeTensor(ctypes.Structure):
    """HoneTensor."""

    _fields_ = [("data", _At), ("size", ctypes.c_int64), ("bfloat16", _Int)]


class _NativePass(ctypes.Structure):
    _fields_ = [
        *((name, _Int) for name in ("tokens_count", "sequences", "most_pages", "draws", "top_width")),
        *((name, _At) for name in ("tokens", "positions", "sequence", "pages", "at", "given", "uniform")),
        *((name, _At) for name in ("temperature", "top_k", "top_p", "min_p", "greedy", "top_logprobs", "allowed")),
        *((name, _At) for name in ("token", "logp", "sampled_logp", "kept", "top_token", "top_logp", "routing")),
        ("adapter", _At),
    ]


_SIGNATURES: Final = {
    "hone_instruction_sets": (ctypes.c_uint32, []),
    "hone_slow_sets": (ctypes.c_uint32, []),
    "hone_page_tokens": (_Int, []),
    "hone_new": (_At, [ctypes.POINTER(NativeShape), _Int, _Int]),
    "hone_free": (None, [_At]),
    "hone_publish": (_Int, [_At, ctypes.POINTER(NativeTensor), _Int]),
    "hone_reserve": (_Int, [_At, ctypes.c_int64]),
    "hone_run": (_Int, [_At, ctypes.POINTER(_NativePass)]),
    "hone_copy": (_Int, [_At, _At, _At, _Int]),
    "hone_adapt": (_Int, [_At, _Int, ctypes.POINTER(NativeTensor), _Int]),
    "hone_error": (ctypes.c_char_p, [_At]),
    "hone_page_bytes": (ctypes.c_int64, [_At]),
}


@cache
def _open(path: Path) -> LibraryFunctions:
    return load_functions(path, WHAT, _SIGNATURES)


@cache
def _built() -> Path | ResourceError:
    """Path of the library, or the error; a failed compilation is not repeated."""
    try:
        return build().path
    except ResourceError as error:
        return error


def load_library(path: Path | None = None) -> "RunnerLibrary":
    """The library of this source, built if need be. Raises ResourceError where that fails or is switched off."""
    if path is None and is_disabled():
        raise ResourceError(f"{WHAT} is switched off ({SWITCH}=0)")
    result = path or _built()
    if isinstance(result, ResourceError):
        raise result
    return RunnerLibrary(_open(result))


def unavailable_reason() -> str | None:
    """Why the compiled runner cannot be used, or None: then it is built. The first call may take seconds."""
    try:
        load_library()
    except ResourceError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class RunnerLibrary:
    """A loaded library, with the instruction sets that this CPU supports."""

    functions: LibraryFunctions

    @property
    def page_tokens(self) -> int:
        """Tokens per page."""
        return int(self.functions["hone_page_tokens"]())

    def instruction_sets(self) -> tuple[str, ...]:
        """Least capable first; none above `$HONE_NATIVE_ISA`."""
        bits = int(self.functions["hone_instruction_sets"]())
        return within_limit(name for number, name in enumerate(ISA_NAMES) if bits >> number & 1)

    def useful_sets(self, kind: NumberKind) -> tuple[str, ...]:
        """Instruction sets that run here and have something to offer to products of `kind`, least capable first."""
        return tuple(name for name in self.instruction_sets() if kind in _OF_KIND.get(name, (kind,)))

    def choose(self, isa: str | None, *, kind: NumberKind) -> str:
        """`isa`, or the fastest that has something to offer. Raises ConfigError for one that cannot run here.

        The fastest is the most capable, but for products of bfloat16 pairs where the processor is slow at them.
        """
        runs = self.instruction_sets()
        if isa is not None and isa not in runs:
            raise ConfigError(f"instruction set {isa!r} does not run here; what does: {', '.join(runs)}")
        slow = int(self.functions["hone_slow_sets"]())
        return isa or next(n for n in reversed(self.useful_sets(kind)) if not slow >> ISA_NAMES.index(n) & 1)

    def open(self, shape: NativeShape, *, isa: str, threads: int) -> "NativeEngine":
        """Raises ResourceError without enough memory, or unless `threads` is within 1 .. 256."""
        engine = self.functions["hone_new"](ctypes.byref(shape), ISA_NAMES.index(isa), threads)
        if not engine:
            raise ResourceError(f"the compiled runner does not start with {threads} threads ({isa})")
        routes = (int(shape.layers), int(shape.per_token)) if shape.experts else None
        return NativeEngine(
            self.functions, engine, vocab=int(shape.vocab_used), routes=routes, experts=int(shape.experts)
        )


class NativeEngine:
    """One engine of the library. Free it by `close`; a forked child may use it, on one thread."""

    def __init__(
        self,
        functions: LibraryFunctions,
        engine: int,
        *,
        vocab: int,
        routes: tuple[int, int] | None = None,
        experts: int = 0,
    ) -> None:
        """`routes`: layers and experts per token of a mixture of `experts`; None: dense."""
        self._functions, self._engine, self._vocab = functions, engine, vocab
        self._routes, self._experts = routes, experts
        self._run = functions["hone_run"]

    def close(self) -> None:
        """Free the runner."""
        engine, self._engine = self._engine, 0
        if engine:
            self._functions["hone_free"](engine)

    def publish(self, tensors: Sequence[NativeTensor]) -> None:
        """Weights in the order of abi.h. The data are read before this returns, and not afterwards."""
        self._check(
            self._functions["hone_publish"](self._engine, (NativeTensor * len(tensors))(*tensors), len(tensors))
        )

    def adapt(self, slot: int, factors: Sequence[NativeTensor]) -> None:
        """Pack an adapter into a slot, its factors in the order of abi.h; without any the slot is freed."""
        self._check(
            self._functions["hone_adapt"](self._engine, slot, (NativeTensor * len(factors))(*factors), len(factors))
        )

    def reserve(self, pages: int) -> None:
        """Allocate pages; old contents are lost."""
        self._check(self._functions["hone_reserve"](self._engine, pages))

    def page_bytes(self) -> int:
        """Bytes of a page."""
        return int(self._functions["hone_page_bytes"](self._engine))

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy pages."""
        source, target = (np.ascontiguousarray(pages, np.int32) for pages in (source, target))
        if source.shape != target.shape or source.ndim != 1:
            raise ValueError(f"copy takes as many target pages as source pages, got {source.shape} and {target.shape}")
        self._check(self._functions["hone_copy"](self._engine, source.ctypes.data, target.ctypes.data, len(source)))

    def run(self, work: ForwardBatch, slots: NDArray[np.int32] | None = None) -> SamplerOutput:
        """`slots` `[B]`: of each sequence's adapter, -1 for none. Raises ValueError for a pass that does not hold
        together; nothing was run then."""
        draws, count = work.draws, len(work.draws.token_index)
        cut = (draws.top_k > 0) | (draws.top_p < 1) | (draws.min_p > 0) | (draws.allowed is not None)
        truncates = bool((cut & ~draws.greedy).any())
        token, logp, sampled = np.empty(count, np.int32), np.empty(count, np.float32), np.empty(count, np.float32)
        kept = np.zeros((count, (self._vocab + 7) // 8), np.uint8) if truncates else None
        tokens = len(work.tokens)
        routes = None if self._routes is None else np.zeros((tokens, *self._routes), routing_dtype(self._experts))
        held = (
            _flat(work.tokens, np.int32, tokens, "tokens"),
            _flat(work.positions, np.int32, tokens, "positions"),
            _flat(work.sequence, np.int32, tokens, "sequence"),
            _flat(work.pages, np.int32, work.pages.size, "pages"),
            _flat(draws.token_index, np.int32, count, "at"),
            _flat(draws.forced_token, np.int32, count, "given"),
            _flat(draws.uniform, np.float64, count, "uniform"),
            _flat(draws.temperature, np.float32, count, "temperature"),
            _flat(draws.top_k, np.int32, count, "top_k"),
            _flat(draws.top_p, np.float32, count, "top_p"),
            _flat(draws.min_p, np.float32, count, "min_p"),
            _flat(draws.greedy, np.bool_, count, "greedy"),
            token,
            logp,
            sampled,
        )
        pointers: list[int | None] = [array.__array_interface__["data"][0] for array in held]
        pages = work.pages.shape
        asked, width = self._top_logprobs(draws.top_logprobs, count)
        top_tokens = None if asked is None else np.zeros((count, width), np.int32)
        top_logp = None if asked is None else np.zeros((count, width), np.float32)
        allowed = draws.allowed
        if allowed is not None:
            allowed = _flat(allowed, np.uint8, count * ((self._vocab + 7) // 8), "allowed")
        optional = (asked, allowed, kept, top_tokens, top_logp, routes, slots)
        behind = [None if array is None else array.__array_interface__["data"][0] for array in optional]
        question = _NativePass(
            tokens, pages[0], pages[1], count, width, *pointers[:-3], *behind[:2], *pointers[-3:], *behind[2:]
        )
        self._check(self._run(self._engine, ctypes.byref(question)))
        return SamplerOutput(
            token=token,
            logp=logp,
            sampled_logp=sampled,
            sampling_mask_bits=kept,
            routing=routes,
            top_tokens=top_tokens,
            top_logp=top_logp,
        )

    def _top_logprobs(self, asked: NDArray[np.int32] | None, count: int) -> tuple[NDArray[np.int32] | None, int]:
        """How many likeliest tokens each draw reports, at most the vocabulary, and the largest of these numbers."""
        if asked is None:
            return None, 0
        if asked.size != count:
            raise ValueError(f"top_logprobs has {asked.size} elements where the pass has {count}")
        least = np.minimum(asked, self._vocab).astype(np.int32)
        return least, int(least.max(initial=0))

    def _check(self, status: int) -> None:
        if status == 0:
            return
        reason = self._functions["hone_error"](self._engine).decode(errors="replace")
        raise ResourceError(reason) if reason.startswith("out of memory") else ValueError(reason)


def _flat(array: NDArray[np.generic], kind: type[np.generic], count: int, name: str) -> NDArray[np.generic]:
    """The array itself when it can be read in place, else a copy."""
    if array.size != count:
        raise ValueError(f"{name} has {array.size} elements where the pass has {count}")
    if array.dtype == kind and array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array, kind)
