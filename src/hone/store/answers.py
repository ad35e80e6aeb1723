"""`evaluation/step_00000010.json`: every answer of an evaluation, so that two policies can be compared pair by pair.

Belongs here: the file. What an answer is worth was decided before.
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
    """One question and what the policy said; `score` is None where it could not be scored."""

    id: str
    prompt: str
    reference: str
    answer: str
    score: float | None


def write_answers(run: Path, step: int, rows: Sequence[AnswerRow]) -> Path:
    """Write the answers given after `step`, whole or not at all. Raises ResourceError."""
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
    """The answers of the newest evaluation of a run; none when it was never evaluated. Raises DataError."""
    files = sorted((run / FOLDER).glob("step_*.json"))
    if not files:
        return []
    document = read_json(files[-1])
    if not isinstance(document, list):
        raise DataError(f"{files[-1]} should hold a list of answers")
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
                raise DataError(f"{path}: the score of {id_} should be a number, is {score!r}")
            return AnswerRow(id=id_, prompt=prompt, reference=reference, answer=answer, score=score)
        case _:
            raise DataError(f"{path} should hold objects with id, prompt, reference, answer and score")
