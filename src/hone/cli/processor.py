"""The processor of this machine, by what its system says of it; no library is loaded."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hone.native.build import find_compiler, instruction_set_limit, is_disabled
from hone.planner.run_settings import ProcessorTraits

CPUINFO: Final = Path("/proc/cpuinfo")
_AVX512: Final = frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq"})
"""Flags that torch asks for before it multiplies bfloat16 by kernels of its own."""


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """Name of the processor, or of its architecture where the system has no other."""
    return next(_values(cpuinfo, ("model name",)), platform.processor() or platform.machine())


def processor_traits(cpuinfo: Path = CPUINFO) -> ProcessorTraits:
    """What this machine's processor can do, by the flags that its system names."""
    flags = set(next(_values(cpuinfo, ("flags", "Features")), "").split())
    compiled = not is_disabled() and find_compiler() is not None
    return ProcessorTraits(
        compiled=compiled,
        bfloat16=bool(flags & {"amx_bf16", "avx512_bf16", "bf16"}),
        tiles=compiled and "amx_bf16" in flags and instruction_set_limit() in (None, "amx"),
        widens=platform.machine().lower() in {"x86_64", "amd64"} and not flags >= _AVX512,
    )


def _values(cpuinfo: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Values of the lines that begin with one of these names."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    yield from (line.partition(":")[2].strip() for line in lines if line.startswith(names))
