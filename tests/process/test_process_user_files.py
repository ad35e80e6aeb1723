"""References to user code: their form is checked without an import, and errors name the reference and its fault."""

from pathlib import Path

import pytest

from hone.core.errors import ConfigError, UserCodeError
from hone.process.user_files import check_reference, load_module, load_reference


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    (tmp_path / "process_user_good.py").write_text("from process_user_near import x\ndef double(): return 2 * x\n")
    (tmp_path / "process_user_near.py").write_text("x = 21\n")
    (tmp_path / "process_user_bad.py").write_text("import sys\nsys.exit(5)\n")
    return tmp_path


@pytest.mark.parametrize("reference", ["name", ":name", "file.py:", "file.py:two words"])
def test_references_have_a_form(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"thing .*: write path/to/file.py:name or package.module:name"):
        check_reference(reference, kind="thing")


def test_a_module_is_refused_where_a_file_is_needed() -> None:
    check_reference("package.module:name", kind="thing")
    with pytest.raises(ConfigError, match=r"write path/to/file.py:name$"):
        check_reference("package.module:name", kind="thing", modules=False)


def test_a_missing_file_is_named_with_its_neighbour(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file .*; did you mean process_user_good.py"):
        check_reference(f"{folder}/process_user_god.py:double", kind="thing")


def test_a_file_sees_its_neighbours_and_runs_anew(folder: Path) -> None:
    reference = f"{folder}/process_user_good.py:double"
    function = load_reference(reference, kind="thing")
    assert callable(function) and function() == 42
    assert load_reference(reference, kind="thing") is not function
    assert load_module(reference, kind="thing", prefix="own_").__name__ == "own_process_user_good"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("process_user_good.py:duble", "has no 'duble'; did you mean double"),
        ("process_user_bad.py:any", r"failed with sys.exit\(5\)"),
    ],
)
def test_faults_of_user_code_are_told(folder: Path, reference: str, message: str) -> None:
    with pytest.raises(UserCodeError, match=message):
        load_reference(f"{folder}/{reference}", kind="thing")


def test_an_unknown_module_is_told() -> None:
    with pytest.raises(UserCodeError, match="importing no_such_package failed with ModuleNotFoundError"):
        load_reference("no_such_package:f", kind="thing")
