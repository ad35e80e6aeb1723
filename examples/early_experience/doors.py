"""Data of the early-experience example: a maze of 40 places with 8 doors each, and questions which door leads where.

    python examples/early_experience/doors.py

writes demonstrations.jsonl (80 questions with the right door), walks.jsonl (random places to explore by) and
held_out.jsonl (the other 240 questions that a door answers) into the working folder.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.text.games.doors import split_questions, walk_rows

MAZE = 0


def write(name: str, rows: Sequence[Mapping[str, object]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


shown, held_out = split_questions(MAZE, demonstrated=80, seed=0)
write("demonstrations.jsonl", [one.row() for one in shown])
write("walks.jsonl", walk_rows(MAZE, 400, seed=0))
write("held_out.jsonl", [one.row() for one in held_out])
