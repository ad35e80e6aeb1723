"""Building at first use: once, by whoever comes first, into the user's cache, with one clear line when it fails."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hone.core.errors import NativeBuildWarning, ResourceError
from hone.native.build import BuiltLibrary, InstructionSet, NativeSource, find_compiler, load_functions
from hone.native.build import build as build_source

SETS = (
    InstructionSet(name="portable", file="isa.cpp", flags=()),
    InstructionSet(name="wide", file="wide.cpp", flags=("-DWIDE",)),
)


def source_in(folder: Path) -> NativeSource:
    return NativeSource(
        name="small",
        description="the small library",
        folder=folder / "source",
        files=("pool.cpp",),
        instruction_sets=SETS,
    )


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source of a few lines, so that the test does not wait for the compiler; and an empty cache."""
    if find_compiler() is None:
        pytest.skip("no compiler")
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("pool.cpp", "isa.cpp", "wide.cpp"):
        (folder / name).write_text("", encoding="utf-8")
    door = 'extern "C" __attribute__((visibility("default")))'
    answer = f'#include "basics.h"\n{door} int up() {{ return hone::round_up(5, 4); }}'
    (folder / "api.cpp").write_text(answer + "\n", encoding="utf-8")
    monkeypatch.setenv("HONE_CACHE", str(tmp_path / "cache"))
    return folder


def build(small_source: Path, *, force: bool = False) -> BuiltLibrary:
    return build_source(source_in(small_source.parent), force=force)


def test_the_second_time_it_lies_in_the_cache(small_source: Path) -> None:
    first, second = build(small_source), build(small_source)
    assert first.path == second.path
    assert first.seconds_s > 0 == second.seconds_s
    assert first.instruction_sets == second.instruction_sets == ("portable", "wide")
    assert build(small_source, force=True).seconds_s > 0
    assert {file.suffix for file in first.path.parent.iterdir()} == {".so", ".sets", ".lock"}


def test_what_was_built_answers(small_source: Path) -> None:
    assert load_functions(build(small_source).path, "the small library", {"up": (int, [])})["up"]() == 8
    nothing = small_source / "pool.cpp"
    with pytest.raises(ResourceError, match=r"the small library .*pool\.cpp cannot be loaded"):
        load_functions(nothing, "the small library", {})


def test_another_source_is_another_library(small_source: Path) -> None:
    first = build(small_source).path
    (small_source / "pool.cpp").write_text("// changed\n", encoding="utf-8")
    assert build(small_source).path != first


def test_many_at_once_build_once(small_source: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: build(small_source), range(4)))
    assert len({info.path for info in told}) == 1
    assert sum(info.seconds_s > 0 for info in told) == 1


def test_a_compiler_that_fails_is_quoted(small_source: Path) -> None:
    (small_source / "pool.cpp").write_text("this is no C++;\n", encoding="utf-8")
    with pytest.raises(ResourceError, match=r"failed on the small library: .*pool\.cpp") as told:
        build(small_source)
    assert "\n" not in str(told.value)
    assert not list((small_source.parent / "cache").rglob("*.so"))


def test_a_set_that_does_not_compile_is_left_out_and_told_once(small_source: Path) -> None:
    """Its file, the compiler's first error among many, and what is used instead; the next process finds the library."""
    faults = "".join(f"#error fault {number} of amx\n" for number in range(1, 20))
    (small_source / "wide.cpp").write_text(faults, encoding="utf-8")
    with pytest.warns(NativeBuildWarning) as told:
        built = build(small_source)
    assert built.instruction_sets == ("portable",)
    (note,) = [str(one.message) for one in told]
    assert note.startswith(f"the small library: {small_source / 'wide.cpp'} does not compile for wide with ")
    assert "fault 1 of amx" in note and "fault 2 of amx" not in note
    assert note.endswith("processors that have it run code for portable at most, more slowly")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build(small_source).instruction_sets == ("portable",)


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ResourceError, match="no C\\+\\+ compiler found"):
        build_source(source_in(tmp_path))


def test_a_cache_that_cannot_be_written(small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HONE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match=r"the small library cannot be written to .* HONE_CACHE"):
        build(small_source)
