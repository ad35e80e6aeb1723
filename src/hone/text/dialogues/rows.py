"""Rows of dialogues: a file, those that a world's class brings, or numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hone.core.errors import DataError
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.tasks.dataset import MAX_ROW_BYTES, Example, ExampleDataset, build_examples, read_examples
from hone.text.tasks.files import read_rows
from hone.text.tasks.scored_rows import BadRowError, checked_content


class RowSource(Protocol):
    """A world that may bring rows."""

    def rows(self, size: int, seed: int) -> "list[dict[str, object]] | None":
        """The rows, or None. Raises UserCodeError."""
        ...


def dialogue_examples(task: DialogueTaskConfig, source: RowSource) -> ExampleDataset:
    """Rows of a task's dialogues; a prompt is empty where the world begins with messages of its own.

    A task with tools and no world has its prompts' rows. Raises DataError, UserCodeError.
    """
    if not task.has_world:
        return task.examples()
    if task.rows is not None:
        return _file_rows(Path(task.rows), task)
    rows = source.rows(task.size, task.seed)
    if rows is None:
        rows = [{"seed": task.seed * task.size + number} for number in range(task.size)]
    return _built(rows, task.source, range(1, len(rows) + 1))


def _file_rows(path: Path, task: DialogueTaskConfig) -> ExampleDataset:
    rows = read_rows(path, max_row_bytes=MAX_ROW_BYTES)
    names = {name for row in rows for name in row.columns}
    if {"prompt", "messages", "text"} & names:
        return read_examples(path, need="prompt", on_bad_row=task.on_bad_row, on_duplicate_id=task.on_duplicate_id)
    return _built([row.columns for row in rows], str(path), [row.number for row in rows])


def _built(rows: Sequence[Mapping[str, object]], source: str, numbers: Sequence[int]) -> ExampleDataset:
    """Examples of rows. Raises DataError with the numbers of those that cannot be used."""
    faults: list[str] = []
    drafts: list[Example] = []
    names = list(dict.fromkeys(name for row in rows for name in row))
    for number, row in zip(numbers, rows, strict=True):
        try:
            prompt = checked_content(row["prompt"], "prompt") if row.get("prompt") is not None else ""
        except BadRowError as fault:
            faults.append(f"{source}: row {number}: {fault}")
            continue
        columns = {name: row.get(name) for name in names if name not in ("prompt", "id")}
        identity = str(row.get("id", ""))
        drafts.append(Example(id=identity, prompt=prompt, completion=None, columns=columns, row=number, source=source))
    if faults:
        raise DataError(*faults[:5], *([f"{source}: ... and {len(faults) - 5} more faults"] if len(faults) > 5 else []))
    return build_examples(drafts, source=source, ids_given="id" in names)
