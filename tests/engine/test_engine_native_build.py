"""Building at first use: once, by whoever comes first, into the user's cache, with one clear line when it fails."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import engine_native_cases as cases
import pytest

from hone.core.errors import ConfigError, ResourceError
from hone.engine.native import build as building
from hone.engine.native import library
from hone.engine.native.build import build, find_compiler

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def small_source(tmp_path, monkeypatch):
    """A source of a few lines, so that the test does not wait for the compiler; and an empty cache."""
    if find_compiler() is None:
        pytest.skip("no compiler")
    source = tmp_path / "source"
    source.mkdir()
    for name in (*building._PARTS, "isa.cpp", "tile_bf16.cpp", "tile_amx.cpp", "api.cpp"):
        (source / name).write_text("", encoding="utf-8")
    monkeypatch.setattr(building, "SOURCE", source)
    monkeypatch.setenv("HONE_CACHE", str(tmp_path / "cache"))
    return source


def test_the_second_time_it_lies_in_the_cache(small_source):
    first, second = build(), build()
    assert first.path == second.path
    assert first.seconds_s > 0 == second.seconds_s
    assert first.instruction_sets == second.instruction_sets
    assert first.instruction_sets[0] == "portable"
    assert build(force=True).seconds_s > 0
    assert {file.suffix for file in first.path.parent.iterdir()} == {".so", ".sets", ".lock"}


def test_another_source_is_another_library(small_source):
    first = build().path
    (small_source / "pool.cpp").write_text("// changed\n", encoding="utf-8")
    assert build().path != first


def test_many_at_once_build_once(small_source):
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: build(), range(4)))
    assert len({info.path for info in told}) == 1
    assert sum(info.seconds_s > 0 for info in told) == 1


def test_a_compiler_that_fails_is_quoted(small_source):
    (small_source / "pool.cpp").write_text("this is no C++;\n", encoding="utf-8")
    with pytest.raises(ResourceError, match=r"could not compile the runner: .*pool\.cpp") as told:
        build()
    assert "\n" not in str(told.value)
    assert not list((small_source.parent / "cache").rglob("*.so"))


def test_a_set_that_the_compiler_does_not_know_is_left_out(small_source):
    (small_source / "tile_amx.cpp").write_text("#error unknown\n", encoding="utf-8")
    sets = build().instruction_sets
    assert "portable" in sets
    assert "amx" not in sets


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ResourceError, match="no C\\+\\+ compiler found"):
        build()


def test_a_cache_that_cannot_be_written(small_source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HONE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="HONE_CACHE"):
        build()


def test_the_switch(monkeypatch):
    monkeypatch.setenv("HONE_NATIVE", "0")
    assert library.available() == "the compiled runner is switched off (HONE_NATIVE=0)"


def test_names_and_refusals():
    sets = cases.sets(bfloat16=True)
    runner = cases.runner_of(cases.model_of())
    assert runner.name == f"native float32 ({cases.sets(bfloat16=False)[-1]})"
    assert runner.exact
    assert runner.page_tokens == 16
    assert runner.page_bytes == 16 * 2 * 2 * 2 * 32 * 4  # tokens, layers, key heads, k and v, features (10, padded)
    assert set(sets) <= set(library.ISA_NAMES)
    with pytest.raises(ConfigError, match="unheard"):
        cases.runner_of(cases.model_of(), isa="unheard")
    with pytest.raises(ResourceError, match="1000 threads"):
        cases.runner_of(cases.model_of(), threads=1000)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers are preloaded by ld.so")
def test_sanitizers_and_bounds_checks_find_nothing():
    """Random shapes, passes and threads, in a build with the address and undefined-behaviour sanitizers."""
    cases.sets(bfloat16=False)
    compiler = find_compiler()
    assert compiler is not None
    said = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    sanitizer = said.stdout.strip()
    if not Path(sanitizer).is_absolute():
        pytest.skip("no address sanitizer beside the compiler")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "LD_PRELOAD": str(Path(sanitizer).resolve()),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    driver = Path(__file__).with_name("engine_native_checked.py")
    answer = subprocess.run(
        [sys.executable, str(driver)], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert answer.stdout.split()[-1] == "ok"
