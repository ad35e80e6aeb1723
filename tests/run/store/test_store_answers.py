"""Answers of an evaluation on disk: written whole, read back from the newest, damage named."""

from dataclasses import replace
from pathlib import Path

import pytest

from hone.core.errors import DataError
from hone.run.store.evaluations import AnswerRow, latest_answers, write_answers


def row(id_: str, score: float | None) -> AnswerRow:
    return AnswerRow(id=id_, prompt="1+1=\n", reference="2", answer="zwei ü", score=score)


def test_the_newest_evaluation_is_read_back(tmp_path: Path) -> None:
    assert latest_answers(tmp_path) == []
    rows = [row("a", 1.0), row("b", None), row("c", 0.25)]
    write_answers(tmp_path, 9, [row("old", 0.0)])
    path = write_answers(tmp_path, 10, rows)
    assert path.name == "step_00000010.json"
    assert latest_answers(tmp_path) == rows
    write_answers(tmp_path, 10, rows[:1])
    assert latest_answers(tmp_path) == rows[:1], "the same step again takes its place"


def test_turns_are_kept_where_there_are_some(tmp_path: Path) -> None:
    told = replace(row("b", 1.0), turns=(("policy", "call"), ("environment", "92"), ("policy", "it is 92")))
    path = write_answers(tmp_path, 1, [row("a", 1.0), told])
    assert latest_answers(tmp_path) == [row("a", 1.0), told]
    assert path.read_text().count("turns") == 1, "an answer of one turn is written as before"
    path.write_text(path.read_text().replace('"call"', "7"))
    with pytest.raises(DataError, match=r"step_00000001.json: 1.turns.0.1: .*string"):
        latest_answers(tmp_path)


def test_tags_are_kept_where_there_are_some(tmp_path: Path) -> None:
    rows = [row("a", 1.0), replace(row("b", 1.0), tag="algebra")]
    path = write_answers(tmp_path, 1, rows)
    assert latest_answers(tmp_path) == rows
    assert path.read_text().count('"tag"') == 1


def test_a_score_that_is_no_number_is_no_score(tmp_path: Path) -> None:
    write_answers(tmp_path, 1, [row("a", float("nan"))])
    assert latest_answers(tmp_path) == [row("a", None)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"id": "a"}', "step_00000002.json: .*array"),
        ('[{"id": "a"}]', "0.prompt: Field required"),
        ('[{"id": "a", "prompt": "", "reference": "", "answer": "", "score": "1"}]', "0.score: .*number"),
        ("[", "step_00000002.json"),
    ],
)
def test_damage_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = write_answers(tmp_path, 2, [])
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=told):
        latest_answers(tmp_path)
