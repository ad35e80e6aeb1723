"""Answers of an evaluation, `evaluation/step_00000010.json`, for paired comparisons of two policies.

Belongs here: the file format.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.conversation import Turn
from hone.core.errors import DataError
from hone.store.checkpoints import step_name
from hone.store.durable import Json, finite_or_none, read_json, replace_file, to_json

FOLDER = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """One question with the policy's answer; `score` is None if it could not be scored."""

    id: str
    prompt: str
    reference: str
    answer: str
    score: float | None
    turns: Sequence[Turn] = ()
    """Texts of a conversation of several turns, the environment's among them; empty for a single answer."""


def write_answers(run: Path, step: int, rows: Sequence[AnswerRow]) -> Path:
    """Write the answers of the evaluation after `step` atomically. Raises ResourceError."""
    document: list[Json] = [
        {
            "id": row.id,
            "prompt": row.prompt,
            "reference": row.reference,
            "answer": row.answer,
            "score": finite_or_none(row.score),
            **({"turns": [list(turn) for turn in row.turns]} if row.turns else {}),
        }
        for row in rows
    ]
    path = run / FOLDER / f"{step_name(step)}.json"
    path.parent.mkdir(exist_ok=True)
    replace_file(path, to_json(document, indent=1))
    return path


def latest_answers(run: Path) -> list[AnswerRow]:
    """Answers of the newest evaluation of a run; empty without an evaluation. Raises DataError."""
    files = sorted((run / FOLDER).glob("step_*.json"))
    if not files:
        return []
    document = read_json(files[-1])
    if not isinstance(document, list):
        raise DataError(f"{files[-1]} must contain a list of answers")
    return [_row(entry, files[-1]) for entry in document]


def _row(entry: Json, path: Path) -> AnswerRow:
    match entry:
        case {
            "id": str(id_),
            "prompt": str(prompt),
            "reference": str(reference),
            "answer": str(answer),
            "score": score,
        }:
            if score is not None and not isinstance(score, int | float):
                raise DataError(f"{path}: the score of {id_} must be a number, got {score!r}")
            turns = _turns(entry.get("turns", []), path)
            return AnswerRow(id=id_, prompt=prompt, reference=reference, answer=answer, score=score, turns=turns)
        case _:
            raise DataError(f"{path} must contain objects with id, prompt, reference, answer and score")


def _turns(entry: Json, path: Path) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for turn in entry if isinstance(entry, list) else [entry]:
        match turn:
            case [str(speaker), str(words)]:
                turns.append((speaker, words))
            case _:
                raise DataError(f"{path}: turns must be pairs of a speaker and a text, got {turn!r}")
    return tuple(turns)
