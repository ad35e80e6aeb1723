"""Values that JSON and parquet hide: repeated keys and columns, half surrogates, endless numbers, text that is none."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_runs import hone, lay_out

from hone.core.errors import DataError
from hone.text.tasks.dataset import read_examples

GOOD = '{"prompt": "1+1=", "answer": "2"}'
BAD = {
    "repeated": ('{"prompt": "1+1=", "answer": "2", "answer": "3"}', "key 'answer' occurs more than once"),
    "nested": ('{"prompt": [{"role": "user", "role": "x", "content": "1"}], "answer": ""}', "prompt.0: key 'role'"),
    "surrogate": (r'{"prompt": "1+1=\ud800", "answer": "2"}', r"prompt: text with half of a surrogate pair (\ud800)"),
    "message": (r'{"prompt": [{"role": "user", "content": "\udc12"}], "answer": ""}', "prompt.0.content: text with"),
    "digits": ('{"prompt": "1+1=", "answer": ' + "7" * 6000 + "}", "answer: a whole number of 6000 digits"),
    "float": ('{"prompt": "1+1=", "metadata": {"x": [1e999]}}', "metadata.x.0: a number beyond the range"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("command", ["plan", "train"])
def test_jsonl_rows_are_refused_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    row, message = BAD[name]
    (tmp_path / "sums.jsonl").write_text(f"{GOOD}\n{row}\n{GOOD}\n")
    assert hone(command, "grpo.toml") == 3
    said = " ".join(capsys.readouterr().err.split())
    assert f"sums.jsonl:2:{len(GOOD) + 1}: {message}" in said
    assert not (tmp_path / "runs").exists()


def test_numbers_of_thousands_of_digits_in_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert hone("plan", "grpo.toml", f"steps={'1' * 5000}") == 2
    (tmp_path / "long.toml").write_text(f'recipe = "grpo"\nsteps = {"1" * 5000}\n')
    assert hone("plan", "long.toml") == 2
    assert "long.toml:2: a whole number of more than 4300 digits" in capsys.readouterr().err


def test_all_faults_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    rows = [row for row, _ in BAD.values()][:5]
    (tmp_path / "all.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(DataError) as caught:
        read_examples(tmp_path / "all.jsonl", need="prompt")
    assert [message.split(":")[1] for message in caught.value.messages] == ["1", "2", "3", "4", "5"]
    (tmp_path / "all.json").write_text(f"[{', '.join(rows)}]")
    with pytest.raises(DataError) as caught:
        read_examples(tmp_path / "all.json", need="prompt")
    assert [message.split(": ")[1].split(",")[0] for message in caught.value.messages] == [
        f"row {number}" for number in range(1, 6)
    ]
    (tmp_path / "one.json").write_text('{"rows": 1, "rows": 2}')
    with pytest.raises(DataError, match=r"one\.json: key 'rows' occurs more than once"):
        read_examples(tmp_path / "one.json", need="prompt")


def test_parquet_columns_and_fields_of_one_name(tmp_path: Path) -> None:
    text = pa.array(["a", "b"])
    pq.write_table(pa.Table.from_arrays([text, text, text], ["prompt", "answer", "answer"]), tmp_path / "twice.parquet")
    with pytest.raises(DataError, match=r"twice\.parquet: column 'answer' occurs more than once"):
        read_examples(tmp_path / "twice.parquet", need="prompt")
    turns = pa.ListArray.from_arrays([0, 1, 2], pa.StructArray.from_arrays([text, text], ["role", "role"]))
    pq.write_table(pa.Table.from_arrays([turns], ["prompt"]), tmp_path / "deep.parquet")
    with pytest.raises(DataError, match=r"deep\.parquet: field 'prompt\..*role' occurs more than once"):
        read_examples(tmp_path / "deep.parquet", need="prompt")


@pytest.mark.parametrize("damaged", [b"\xed\xa0\x80", b"\xff"])
def test_parquet_text_that_is_not_utf8(tmp_path: Path, damaged: bytes) -> None:
    binary = pa.array([b"1", b"2", damaged, b"4"], pa.binary())
    text = pa.StringArray.from_buffers(4, binary.buffers()[1], binary.buffers()[2])
    pq.write_table(pa.Table.from_arrays([text], ["prompt"]), tmp_path / "damaged.parquet")
    with pytest.raises(DataError, match=r"damaged\.parquet: row 3 holds text that is not UTF-8: byte 0x"):
        read_examples(tmp_path / "damaged.parquet", need="prompt")


def test_rows_that_are_only_unusual_are_read(tmp_path: Path) -> None:
    rows = [
        {"prompt": "1", "answer": 10**4000, "note": "\U0001f600"},
        {"prompt": "2", "answer": 1e300, "note": "\\ud800"},
    ]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row.columns["answer"] for row in read_examples(tmp_path / "odd.jsonl", need="prompt")] == [10**4000, 1e300]
