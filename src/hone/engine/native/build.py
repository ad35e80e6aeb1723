"""Sources of the compiled runner; native/build.py compiles them."""

from pathlib import Path
from typing import Final

from hone.core.clock import Clock
from hone.native.build import AVX2, AVX512, InstructionSet, NativeSource, on_x86
from hone.native.build import LIMIT as LIMIT
from hone.native.build import SWITCH as SWITCH
from hone.native.build import BuiltLibrary as BuiltLibrary
from hone.native.build import build as build_source
from hone.native.build import find_compiler as find_compiler
from hone.native.build import instruction_set_limit as instruction_set_limit
from hone.native.build import is_disabled as is_disabled
from hone.native.build import within_limit as within_limit

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
