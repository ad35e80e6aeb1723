"""`HONE_NATIVE_ISA` lowers the instruction set of all compiled code, so that one processor can stand in for another."""

import os
import subprocess
import sys

import pytest

from hone.core.errors import ConfigError
from hone.engine.native import library as engine_library
from hone.evaluate import engine_check
from hone.models.native import perceptron
from hone.native.build import LEVELS, LIMIT, find_compiler, is_disabled, within_limit

compiled = pytest.mark.skipif(find_compiler() is None or is_disabled(), reason="no compiler, or not wanted")


@pytest.mark.parametrize("level", LEVELS)
def test_sets_above_the_limit_are_left_out(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, level.upper())
    assert within_limit(LEVELS) == LEVELS[: LEVELS.index(level) + 1]
    assert within_limit(("portable", "amx")) == (("portable", "amx") if level == "amx" else ("portable",))


def test_without_a_limit_every_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT, raising=False)
    assert within_limit(LEVELS) == LEVELS
    monkeypatch.setenv(LIMIT, "")
    assert within_limit(LEVELS) == LEVELS


def test_an_unknown_set_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "sse9")
    with pytest.raises(ConfigError, match="HONE_NATIVE_ISA=sse9 is not an instruction set; known: portable, avx2"):
        within_limit(LEVELS)


@compiled
@pytest.mark.parametrize("level", ["portable", "avx2"])
def test_the_runner_and_small_networks_keep_the_limit(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, level)
    allowed = LEVELS[: LEVELS.index(level) + 1]
    runner = engine_library.load_library()
    assert set(runner.instruction_sets()) <= set(allowed)
    assert {runner.choose(None, kind=kind) for kind in ("float32", "bfloat16", "int8")} <= set(allowed)
    path = perceptron.build().path
    for isa in perceptron.ISA_NAMES:
        if isa not in allowed:
            with pytest.raises(ConfigError, match=f"instruction set '{isa}' is not supported here"):
                perceptron.open_functions(path, isa)
    assert level != "portable" or perceptron.open_functions(path) == {}


@compiled
def test_the_training_kernels_keep_the_limit() -> None:
    code = (
        "from hone.models.native import library as l; print(l.available_kernels().isa)"  # it is chosen once a process
    )
    environment = {**os.environ, LIMIT: "portable"}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "portable"


@compiled
def test_the_self_check_tells_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "portable")
    note = engine_check.kernel_report().runner_note
    assert note.startswith("native, portable in float32: ") and "HONE_NATIVE_ISA=portable rules out, avx2" in note
