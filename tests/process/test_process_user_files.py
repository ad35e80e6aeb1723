"""References to user code: their form is checked without an import, and errors name the reference and its fault."""

import bz2
import gzip
import lzma
import os
from pathlib import Path

import pytest

from hone.core.errors import ConfigError, UserCodeError
from hone.process.user_files import check_reference, file_fault, load_module, load_reference


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


# ------------------------------------------------------------------------------------------------------ kinds of files


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rows.jsonl", gzip.compress(b"{}", mtime=0), "rows.jsonl is compressed by gzip: decompress it (gunzip)"),
        ("rows.parquet", gzip.compress(b"{}", mtime=0), "is compressed by gzip"),
        ("rows.jsonl", bz2.compress(b"{}"), "is compressed by bzip2"),
        ("rows.jsonl", lzma.compress(b"{}"), "is compressed by xz"),
        ("rows.json", b"PK\x03\x04rest", "is a zip archive"),
        ("rows.jsonl", b"PAR1rest", "is a parquet file: name it .parquet"),
        ("rows.jsonl", b"SQLite format 3\x00", "is a SQLite database"),
        ("rows.jsonl", "{}".encode("utf-16"), "is text in UTF-16: save it as UTF-8"),
        ("rows.jsonl", b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        ("rows.jsonl", b'{"prompt": "PAR1"}', ""),
        ("rows.jsonl", b"", ""),
        ("rows.parquet", b"PAR1rest", ""),
        ("log.db", b"SQLite format 3\x00", ""),
        ("log", b"SQLite format 3\x00", ""),
    ],
)
def test_content_of_another_kind(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    fault = file_fault(tmp_path / name)
    assert says in fault
    assert bool(says) == bool(fault)


def test_links_pipes_and_devices(tmp_path: Path) -> None:
    link, loop, pipe, sound = (tmp_path / name for name in ("link", "loop", "pipe.jsonl", "sound"))
    link.symlink_to("gone.jsonl")
    loop.symlink_to("loop")
    os.mkfifo(pipe)
    (tmp_path / "rows.jsonl").write_text("{}")
    sound.symlink_to("rows.jsonl")
    assert "link is a link to gone.jsonl, which does not exist; fix the link" in file_fault(link)
    assert "loop is a link to loop" in file_fault(loop)
    assert "pipe.jsonl is a pipe, which can be read only once" in file_fault(pipe)
    assert file_fault(Path("/dev/null")) == "/dev/null is a device; name a file"
    assert file_fault(sound) == file_fault(tmp_path) == file_fault(tmp_path / "absent") == ""
