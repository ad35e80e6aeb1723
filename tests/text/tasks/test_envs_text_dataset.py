"""Datasets of every known form, and every way in which a file can be bad: the message places the fault."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.text.tasks.dataset import ExampleDataset, find_overlap, read_examples

USER = {"role": "user", "content": "2+2?"}
REPLY = {"role": "assistant", "content": "4"}


def jsonl(folder: Path, *rows: object, name: str = "data.jsonl", end: str = "\n") -> Path:
    path = folder / name
    path.write_text(end.join(json.dumps(row) for row in rows) + end, newline="")
    return path


def parquet(folder: Path, *rows: dict[str, object], name: str = "data.parquet") -> Path:
    path = folder / name
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def fault(path: Path, need: str = "prompt", **settings: object) -> str:
    with pytest.raises(DataError) as caught:
        read_examples(path, need=need, **settings)
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "need", "prompt", "completion"),
    [
        ({"prompt": "a"}, "prompt", "a", None),
        ({"prompt": [USER]}, "prompt", [USER], None),
        ({"prompt": "a", "completion": "b"}, "prompt", "a", "b"),
        ({"prompt": "a", "completion": "b"}, "prompt-completion", "a", "b"),
        ({"prompt": [USER], "completion": [REPLY]}, "prompt-completion", [USER], [REPLY]),
        ({"messages": [USER, REPLY]}, "prompt-completion", [USER], [REPLY]),
        ({"messages": [USER, REPLY]}, "prompt", [USER], [REPLY]),
        ({"messages": [USER, REPLY, USER]}, "prompt", [USER, REPLY, USER], None),
        ({"text": "once"}, "prompt-completion", "", "once"),
    ],
)
def test_formats(tmp_path: Path, row: dict[str, object], need: str, prompt: object, completion: object) -> None:
    for path in (jsonl(tmp_path, row), parquet(tmp_path, row)):
        example = read_examples(path, need=need)[0]
        assert (example.prompt, example.completion) == (prompt, completion)
        assert example.columns == {}
        assert (example.row, example.source) == (1, str(path))


def test_verls_parquet(tmp_path: Path) -> None:
    row = {
        "data_source": "gsm8k",
        "prompt": [USER],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"split": "train", "index": 0},
    }
    example = read_examples(parquet(tmp_path, row), need="prompt")[0]
    assert example.prompt == [USER]
    assert example.columns["ground_truth"] == "4"
    assert example.columns["extra_info"] == {"split": "train", "index": 0}
    assert example.columns["data_source"] == "gsm8k"
    broken = {**row, "reward_model": {"style": "rule", "ground_truth": None}}
    assert "`reward_model.ground_truth` is null" in fault(jsonl(tmp_path, row, broken))


def test_other_columns_are_the_same_in_every_row(tmp_path: Path) -> None:
    examples = read_examples(jsonl(tmp_path, {"prompt": "a", "x": 1}, {"prompt": "b", "y": [2]}), need="prompt")
    assert [example.columns for example in examples] == [{"x": 1, "y": None}, {"x": None, "y": [2]}]
    assert examples.column_names() == ("x", "y")


def test_null_keys_that_parquet_adds_to_messages_are_left_out(tmp_path: Path) -> None:
    turns = [USER, {"role": "assistant", "content": "x", "name": "bob"}]
    example = read_examples(parquet(tmp_path, {"prompt": turns}), need="prompt")[0]
    assert example.prompt == turns


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_blank_lines_and_a_mark_at_the_start(tmp_path: Path, end: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(f'\ufeff{{"prompt": "ä"}}{end}{end}{{"prompt": "b"}}'.encode())
    assert [(example.prompt, example.row) for example in read_examples(path, need="prompt")] == [("ä", 1), ("b", 3)]


@given(st.lists(st.tuples(st.text(min_size=1).filter(str.strip), st.sampled_from(["\n", "\r\n", "\r"])), min_size=1))
def test_any_mixture_of_line_ends_reads_the_same(rows: list[tuple[str, str]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.jsonl"
        path.write_bytes("".join(json.dumps({"prompt": text}) + end for text, end in rows).encode())
        assert [example.prompt for example in read_examples(path, need="prompt")] == [text for text, _ in rows]


def test_json_lists(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"prompt": "a"}, {"prompt": "b"}]))
    assert len(read_examples(path, need="prompt")) == 2
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert "name the file .jsonl" in fault(path)
    path.write_text('{"prompt": "a"}')
    assert "holds a dict; expected a list" in fault(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    jsonl(tmp_path, {"prompt": "a"}, name="train.jsonl")
    assert "no such file; did you mean train.jsonl?" in fault(tmp_path / "trian.jsonl")
    assert "is a folder" in fault(tmp_path)
    (tmp_path / "data.csv").write_text("prompt\na\n")
    assert "unknown kind of file '.csv'" in fault(tmp_path / "data.csv")


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", b""), ("a.jsonl", b"\n\n"), ("a.json", b"[]")])
def test_nothing_in_the_file(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    text = fault(tmp_path / name)
    assert "empty" in text or "no rows" in text


def test_an_empty_parquet_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "a.parquet")
    assert "has no rows" in fault(tmp_path / "a.parquet")


def test_a_missing_column_is_named_with_the_closest(tmp_path: Path) -> None:
    text = fault(jsonl(tmp_path, {"promt": "a", "answer": "b"}))
    assert "no column 'prompt'" in text
    assert "columns found: promt, answer" in text
    assert "did you mean promt?" in text
    assert "no column 'completion'" in fault(jsonl(tmp_path, {"prompt": "a"}), need="prompt-completion")


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference"),
        ({"chosen": [USER], "rejected": [USER]}, "preference"),
        ({"prompt": "a", "completion": "b", "label": True}, "unpaired"),
        ({"prompt": "a", "completions": ["b"], "labels": [True]}, "stepwise"),
    ],
)
def test_datasets_for_other_recipes_are_recognised(tmp_path: Path, row: dict[str, object], kind: str) -> None:
    for need in ("prompt", "prompt-completion"):
        assert f"this is a dataset of the {kind} kind" in fault(jsonl(tmp_path, row), need=need)


BAD = [
    None,
    "",
    " \n",
    7,
    ["x"],
    [],
    [{"content": "x"}],
    [{"role": "user", "content": " "}],
    [{"role": "u", "content": [1]}],
]


def test_bad_prompts_are_counted_by_kind_with_the_first_rows(tmp_path: Path) -> None:
    rows = [{"prompt": "good"}, *[{"prompt": ""} for _ in range(7)], *[{"prompt": value} for value in BAD]]
    text = fault(jsonl(tmp_path, *rows))
    assert "`prompt` is empty or only whitespace in 9 of 17 rows: 2, 3, 4, 5, 6, ..." in text
    assert "`prompt` is null or missing in 1 of 17 rows: 9" in text
    assert "`prompt` is a int, expected text or a list of messages in 1 of 17 rows: 12" in text
    assert "a message without a role" in text
    assert "a message's content holds a part of type" in text
    assert 'task.on_bad_row = "drop"' in text


@pytest.mark.parametrize(
    ("role", "meant"),
    [("asistant", "assistant"), ("Assistant", "assistant"), ("usr", "user"), ("sytem", "system"), ("tools", "tool"),
     ("reviewer", ""), ("gpt", ""), ("ipython", ""), ("function", "")],
)  # fmt: skip
def test_a_role_that_is_nearly_one_is_refused(tmp_path: Path, role: str, meant: str) -> None:
    """A template would write it as it stands, and its answer would never be learnt. Templates may have other roles."""
    turns = [{"role": "user", "content": "a"}, {"role": role, "content": "b"}, {"role": "user", "content": "c"}]
    path = jsonl(tmp_path, {"prompt": turns})
    if meant:
        assert f"holds a message of role {role!r}; did you mean {meant}? in 1 of 1 rows: 1" in fault(path)
    else:
        assert len(read_examples(path, need="prompt")) == 1


def test_bad_rows_can_be_dropped_but_not_all(tmp_path: Path) -> None:
    examples = read_examples(jsonl(tmp_path, {"prompt": "a"}, {"prompt": None}), need="prompt", on_bad_row="drop")
    assert len(examples) == 1
    assert "in 1 of 2 rows: 2 (dropped)" in examples.warnings[0]
    assert "all 2 rows were dropped" in fault(jsonl(tmp_path, {"prompt": ""}, {"prompt": None}), on_bad_row="drop")


def test_a_last_line_that_was_cut_is_told_from_a_broken_one(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "b')
    assert f"{path}:2:27: the last line is cut off" in fault(path)
    path.write_bytes('{"prompt": "ä"}\n{"prompt": "ä" "b"}\n{"prompt": "c"}\n'.encode())
    text = fault(path, on_bad_row="drop")  # a damaged file is an error all the same
    assert f"{path}:2:33: not JSON" in text
    assert "cut off" not in text


def test_every_line_that_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n[1]\n' + b"{\n" * 5 + b"[" * 100_000 + b"\n")
    text = fault(path)
    assert f"{path}:1:12: not UTF-8: byte 0xff" in text
    assert "row 2 is a list; expected an object" in text
    assert "and 3 more rows that cannot be read" in text


def test_deep_json(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"[" * 100_000 + b"\n")
    assert "nested too deep" in fault(path)


def test_huge_rows_name_the_limit_and_are_not_kept(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b" * 3000}, {"prompt": ""}]
    wanted = "the row is larger than max_row_bytes = 1000"
    text = fault(jsonl(tmp_path, *rows), max_row_bytes=1000)
    assert f"data.jsonl:2:16: {wanted}" in text
    (tmp_path / "data.json").write_text(json.dumps(rows))
    assert "row 2 is larger than max_row_bytes = 1000" in fault(tmp_path / "data.json", max_row_bytes=1000)
    assert "row 2 is larger than max_row_bytes = 1000" in fault(parquet(tmp_path, *rows), max_row_bytes=1000)


def test_places_after_a_huge_row_are_still_right(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "' + b"x" * 5000 + b'"}\n{"prompt": }\n')
    assert f"{path}:2:{5015 + 11}: not JSON" in fault(path, max_row_bytes=1000)


def test_parquet_that_was_cut_or_is_none(tmp_path: Path) -> None:
    path = parquet(tmp_path, *[{"prompt": f"question {i}"} for i in range(100)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert "footer missing: the file was cut or is still being written" in fault(path)
    path.write_bytes(b"ORC1" + whole[4:])
    assert "not a parquet file: it begins with b'ORC1'" in fault(path)
    path.write_bytes(whole[:4] + b"\xff" * 200 + whole[204:])
    assert "damaged parquet" in fault(path)


def test_ids(tmp_path: Path) -> None:
    examples = read_examples(jsonl(tmp_path, {"id": 7, "prompt": "a"}, {"id": "x", "prompt": "a"}), need="prompt")
    assert [example.id for example in examples] == ["7", "x"]
    text = fault(jsonl(tmp_path, *[{"id": i % 2, "prompt": str(i)} for i in range(4)]))
    assert "2 ids repeat: '0' in rows 1 and 3; '1' in rows 2 and 4" in text
    assert 'task.on_bad_row = "drop"' in text
    twice = jsonl(tmp_path, *[{"id": i % 2, "prompt": str(i)} for i in range(4)])
    kept = read_examples(twice, need="prompt", on_bad_row="drop")
    assert [(example.id, example.prompt) for example in kept] == [("0", "0"), ("1", "1")]
    assert kept.warnings == (f"{twice}: 2 of 4 rows repeat an id and were dropped",)
    assert "`id` is missing" in fault(jsonl(tmp_path, {"id": 1, "prompt": "a"}, {"prompt": "b"}))


def test_without_ids_the_content_is_hashed_and_repeats_are_told_apart(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "x": 1}, {"prompt": "a", "x": 2}, {"prompt": "a", "x": 1}]
    examples = read_examples(jsonl(tmp_path, *rows), need="prompt")
    one, two, three = (example.id for example in examples)
    assert one != two
    assert three == f"{one}#2"
    assert "1 rows repeat" in examples.warnings[0]
    assert read_examples(parquet(tmp_path, *rows), need="prompt")[0].id == one  # whatever the file's format


def test_the_fingerprint_sees_order_and_content(tmp_path: Path) -> None:
    def of(*rows: object) -> str:
        return read_examples(jsonl(tmp_path, *rows), need="prompt").fingerprint

    assert of({"prompt": "a"}, {"prompt": "b"}) == of({"prompt": "a"}, {"prompt": "b"})
    assert len({of({"prompt": "a"}, {"prompt": "b"}), of({"prompt": "b"}, {"prompt": "a"}), of({"prompt": "a"})}) == 3


def test_prompts_in_both_sets(tmp_path: Path) -> None:
    def of(name: str, *prompts: str) -> ExampleDataset:
        return read_examples(jsonl(tmp_path, *[{"prompt": p, "id": p} for p in prompts], name=name), need="prompt")

    shared = find_overlap(of("a.jsonl", "x", "y", "z "), of("b.jsonl", "z", "w", "y"))
    assert (shared.count, shared.ids) == (2, ("z", "y"))
