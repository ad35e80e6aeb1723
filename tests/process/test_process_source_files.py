"""Fingerprints of user code: every file that an import of it would run, and no file of anybody else."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.process.user_files import code_references, fingerprint_code, source_files

FILES = {
    "rewards.py": "import json, numpy, helper\nfrom tools import text as words\n\ndef f(): import late\n",
    "helper.py": "from tools.deep.inner import thing\nVALUE = 1\n",
    "late.py": "import importlib\nimportlib.import_module('named')\n",
    "named.py": "",
    "unused.py": "",
    "json.py": "raise ImportError('never in place of the library')\n",
    "tools/__init__.py": "from . import again\n",
    "tools/again.py": "from .. import rewards\n",
    "tools/text.py": "from .deep import inner\n",
    "tools/unused.py": "",
    "tools/deep/__init__.py": "",
    "tools/deep/inner.py": "from ..sibling import thing\n",
    "tools/sibling.py": "thing = 1\n",
    "own_worlds/__init__.py": (
        "from gymnasium import register\nregister(id='W-v0', entry_point='own_worlds.grid:Grid')\n"
    ),
    "own_worlds/grid.py": "import helper\n",
    "broken.py": "import helper\ndef f(:\n",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not {"helper", "tools", "own_worlds", "late"} & set(sys.modules), "nothing may be imported"


def names(folder: Path, *references: str) -> list[str]:
    return sorted(path.relative_to(folder.resolve()).as_posix() for path in source_files(references))


def test_imports_are_followed_through_files_packages_and_functions(place: Path) -> None:
    expected = {"rewards.py", "helper.py", "late.py", "named.py", "tools/__init__.py", "tools/again.py"}
    expected |= {"tools/text.py", "tools/deep/__init__.py", "tools/deep/inner.py", "tools/sibling.py"}
    assert names(place, "rewards.py:f") == sorted(expected)
    assert names(place, str(place / "rewards.py") + ":f") == sorted(expected)


def test_modules_and_registered_environments_are_found_without_an_import(place: Path) -> None:
    found = names(place, "own_worlds:W-v0")
    assert {"own_worlds/__init__.py", "own_worlds/grid.py", "helper.py"} <= set(found)
    assert "unused.py" not in found
    assert names(place, "tools.sibling:thing")[:2] == ["helper.py", "late.py"]


def test_a_file_that_cannot_be_parsed_is_fingerprinted_alone(place: Path) -> None:
    assert names(place, "broken.py:f") == ["broken.py"]


def test_libraries_and_hone_are_nobodys_own_code(place: Path) -> None:
    assert names(place, "hone.rewards.functions:check_reference", "numpy.linalg:norm", "os.path:join", "absent:f") == []


def test_the_files_are_those_that_python_itself_runs(place: Path) -> None:
    """The independent slow version: import the file in a process and ask which modules lie in the folder."""
    program = (
        "import sys, pathlib, runpy; sys.path.append(sys.argv[1]); runpy.run_path(sys.argv[1] + '/helper.py');"
        "print(*sorted(pathlib.Path(m.__file__).relative_to(sys.argv[1]).as_posix() for m in list(sys.modules.values())"
        " if getattr(m, '__file__', None) and m.__file__.startswith(sys.argv[1] + '/')))"
    )
    (place / "tools" / "again.py").write_text("", encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-P", "-c", program, str(place)], capture_output=True, text=True, check=True, cwd="/"
    )
    assert [*sorted([*run.stdout.split(), "helper.py"])] == names(place, "helper.py:VALUE")


@pytest.mark.parametrize("file", ["rewards.py", "helper.py", "named.py", "tools/deep/inner.py"])
def test_one_changed_byte_of_any_of_them_changes_its_fingerprint_only(place: Path, file: str) -> None:
    before = fingerprint_code(["rewards.py:f"])
    with (place / file).open("a", encoding="utf-8") as opened:
        opened.write("\n")
    after = fingerprint_code(["rewards.py:f"])
    assert [name for name in before if before[name] != after[name]] == [file]
    assert list(before) == sorted(before)


def test_references_are_found_in_nested_values(place: Path) -> None:
    values: list[object] = [
        "rewards.py:f", "absent.py:f", "a prompt: with words", 3, None, ["helper.py", {"x": "tools.text:f"}], "cuda:0",
        "{prompt}", "http://host:1", "pkg:Env-v0",
    ]  # fmt: skip
    assert code_references(values) == ["rewards.py:f", "helper.py", "tools.text:f", "pkg:Env-v0"]
