"""Answers of an evaluation, `evaluation/step_00000010.json`, for paired comparisons of two policies.

Belongs here: the file format.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


def write_answers(run: Path, step: int, rows: Sequence[AnswerRow]) -> Path:
    """Write the answers of the evaluation after `step` atomically. Raises ResourceError."""
    document: list[Json] = [
        {
            "id": row.id,
            "prompt": row.prompt,
            "reference": row.reference,
            "answer": row.answer,
            "score": finite_or_none(row.score),
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
            return AnswerRow(id=id_, prompt=prompt, reference=reference, answer=answer, score=score)
        case _:
            raise DataError(f"{path} must contain objects with id, prompt, reference, answer and score")
