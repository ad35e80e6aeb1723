"""Answers of an evaluation, `evaluation/step_00000010.json`, for paired comparisons of two policies.

Belongs here: the file format.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.conversation import Turn
from hone.core.strict_json import Json
from hone.run.store.checkpoints import step_name
from hone.run.store.durable import read_json, replace_file, to_json
from hone.run.store.records import parse_record, record_json

FOLDER = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """One question with the policy's answer; `score` is None if it could not be scored."""

    id: str
    prompt: str
    reference: str
    answer: str
    score: float | None
    turns: tuple[Turn, ...] = ()
    """Texts of a conversation of several turns, the environment's among them; empty for a single answer."""
    stop: str = ""
    """Reason why a dialogue ended; empty for an answer."""
    fault: str = ""
    """Reason why a dialogue has no score."""


def write_answers(run: Path, step: int, rows: Sequence[AnswerRow]) -> Path:
    """Write the answers of the evaluation after `step` atomically. Raises ResourceError."""
    document: list[Json] = []
    for row in rows:
        entry = record_json(row)
        for name in ("turns", "stop", "fault"):
            if not entry[name]:
                del entry[name]
        document.append(entry)
    path = run / FOLDER / f"{step_name(step)}.json"
    path.parent.mkdir(exist_ok=True)
    replace_file(path, to_json(document, indent=1))
    return path


def latest_answers(run: Path) -> list[AnswerRow]:
    """Answers of the newest evaluation of a run; empty without an evaluation. Raises DataError."""
    files = sorted((run / FOLDER).glob("step_*.json"))
    if not files:
        return []
    return parse_record(list[AnswerRow], read_json(files[-1]), files[-1])
