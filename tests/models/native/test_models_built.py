"""Where there is a compiler the kernels are built: their own tests skip where they are not, and would say nothing."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from hone.engine.native.library import build as build_runner
from hone.models.native import library, perceptron
from hone.native.build import AVX2, AVX512, BuiltLibrary, find_compiler, is_disabled, on_x86

pytestmark = pytest.mark.skipif(find_compiler() is None or is_disabled(), reason="no compiler, or not wanted")

AMX = (*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8")
RUNNER = {
    "avx2": AVX2,
    "avx_vnni": ("-mavxvnni",),
    "avx512": AVX512,
    "avx512_vnni": ("-mavx512vnni",),
    "avx512_bf16": ("-mavx512bf16",),
    "amx": AMX,
}
TRAINING = {"avx2": AVX2, "avx512": AVX512, "avx512_bf16": ("-mavx512bf16",), "amx": (*AMX, "-mavx512bf16")}
PERCEPTRON = {"avx2": AVX2, "avx512": AVX512, "avx512_bf16": ("-mavx512bf16",), "amx": AMX}


@cache
def compiler_knows(flags: tuple[str, ...]) -> bool:
    """True if the compiler takes the flags for a source without a line in it."""
    command = [str(find_compiler()), *flags, "-fsyntax-only", "-x", "c++", "-"]
    return on_x86() and subprocess.run(command, input=b"", capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("built", "least", "sets"),
    [
        pytest.param(build_runner, "portable", RUNNER, id="runner"),
        pytest.param(library.build, "portable", TRAINING, id="training"),
        pytest.param(perceptron.build, "plain", PERCEPTRON, id="perceptron"),
    ],
)
def test_every_instruction_set_that_the_compiler_knows_is_built(built, least, sets) -> None:
    """A fault in the source of one set leaves that set out, and nothing else would fail."""
    found: BuiltLibrary = built()
    assert found.instruction_sets == (least, *(name for name, flags in sets.items() if compiler_knows(flags)))
    assert Path(found.path).exists()


def test_the_kernels_of_layers_are_built() -> None:
    assert library.why_unavailable() is None
