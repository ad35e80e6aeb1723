"""Canaries: a file with faults is refused by line, and canaries are asked evenly, all of them in turn."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.rewards.judges.canaries import due_canaries, pick_canary, read_canaries

GOOD = {"prompt": "2+2?", "good": "4", "bad": "5", "answer": 4}


def written(folder: Path, *rows: object) -> Path:
    path = folder / "canaries.jsonl"
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def test_rows_become_items(tmp_path: Path) -> None:
    chat = {**GOOD, "prompt": [{"role": "user", "content": "2+2?"}]}
    first, second = read_canaries(written(tmp_path, GOOD, "", chat), column="answer")
    assert (first.prompt, first.good, first.bad, first.columns) == ("2+2?", "4", "5", {"answer": 4})
    assert (second.prompt, second.place) == (chat["prompt"], f"{tmp_path / 'canaries.jsonl'}:3")


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("{", "1: "),
        ("[1]", "expected a JSON object"),
        ({"prompt": "q", "good": "a"}, "'bad' is missing"),
        ({**GOOD, "good": 4}, "'good' is 4, expected text"),
        ({**GOOD, "bad": " "}, "'bad' is ' ', expected text"),
        ({**GOOD, "bad": " 4"}, "the same answer"),
        ({**GOOD, "prompt": ""}, "'prompt' is ''"),
        ({**GOOD, "prompt": ["q"]}, "expected text or a list of messages"),
        ({**GOOD, "answer": None}, "'answer' is None, expected a reference"),
        ({key: value for key, value in GOOD.items() if key != "answer"}, "'answer' is missing"),
        ("", "holds no canary"),
    ],
)
def test_a_faulty_row_is_named_by_its_line(tmp_path: Path, row: object, fault: str) -> None:
    with pytest.raises(DataError, match=r"canaries\.jsonl") as error:
        read_canaries(written(tmp_path, row), column="answer")
    assert fault in str(error.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_canaries(written(tmp_path, "{", GOOD, {**GOOD, "good": 4, "bad": None}), column=None)
    assert [message.split("canaries.jsonl")[1][:3] for message in error.value.messages] == [":1:", ":3:", ":3:"]
    with pytest.raises(DataError, match="cannot be read"):
        read_canaries(tmp_path / "nothing.jsonl", column=None)


@given(st.lists(st.integers(0, 50), max_size=20), st.floats(0.01, 1))
def test_canaries_are_due_at_the_rate_however_answers_come(batches: list[int], rate: float) -> None:
    before, numbers = 0, list[int]()
    for answers in batches:
        numbers += due_canaries(before, answers, rate=rate)
        before += answers
    assert numbers == list(range(int(before * rate)))


def test_every_canary_is_asked_once_an_epoch() -> None:
    for epoch in range(3):
        assert sorted(pick_canary(epoch * 7 + place, 7) for place in range(7)) == list(range(7))
