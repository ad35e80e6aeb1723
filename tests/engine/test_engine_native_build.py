"""The compiled runner's library: what it can be told, and that it keeps to its bounds."""

import sys
from pathlib import Path

import engine_native_cases as cases
import pytest
from sanitizers import check_with_sanitizers

from hone.core.errors import ConfigError, ResourceError
from hone.engine.native import library

ROOT = Path(__file__).resolve().parents[2]


def test_the_switch(monkeypatch):
    monkeypatch.setenv("HONE_NATIVE", "0")
    assert library.unavailable_reason() == "the compiled runner is switched off (HONE_NATIVE=0)"


def test_names_and_refusals():
    sets = cases.sets("bfloat16")
    runner = cases.runner_of(cases.model_of())
    assert runner.name == f"native float32 ({cases.sets()[-1]})"
    assert runner.exact
    assert runner.page_tokens == 16
    assert runner.page_bytes == 16 * 2 * 2 * 2 * 32 * 4  # tokens, layers, key heads, k and v, features (10, padded)
    assert set(sets) <= set(library.ISA_NAMES)
    with pytest.raises(ConfigError, match="unheard"):
        cases.runner_of(cases.model_of(), isa="unheard")
    with pytest.raises(ResourceError, match="1000 threads"):
        cases.runner_of(cases.model_of(), threads=1000)


def test_a_set_that_a_lesser_one_outdoes_here_is_run_only_when_asked_for(monkeypatch):
    monkeypatch.delenv("HONE_NATIVE_ISA", raising=False)
    number = {name: bit for bit, name in enumerate(library.ISA_NAMES)}

    def chosen(*slow: str, asked: str | None = None) -> str:
        functions = {
            "hone_instruction_sets": lambda: (1 << number["amx"]) - 1,
            "hone_slow_sets": lambda: sum(1 << number[name] for name in slow),
        }
        return library.RunnerLibrary(functions).choose(asked, kind="bfloat16")

    assert chosen() == "avx512_bf16"
    assert chosen("avx512_bf16") == "avx512"
    assert chosen("avx512_bf16", asked="avx512_bf16") == "avx512_bf16"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers are preloaded by ld.so")
def test_sanitizers_and_bounds_checks_find_nothing():
    """Random shapes, passes and threads, in a build with the address and undefined-behaviour sanitizers."""
    cases.sets()
    check_with_sanitizers(Path(__file__).with_name("engine_native_checked.py"))
