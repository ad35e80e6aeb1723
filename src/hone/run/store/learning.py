"""Findings of a run about steps that taught nothing, `learning.json`: one sentence each."""

from collections.abc import Sequence
from pathlib import Path

from hone.run.store.durable import replace_file, to_json
from hone.run.store.records import read_record

LEARNING = "learning.json"


def write_learning_findings(folder: Path, lines: Sequence[str]) -> None:
    """Write the findings atomically. Raises ResourceError."""
    replace_file(folder / LEARNING, to_json(list(lines), indent=1))


def read_learning_findings(folder: Path) -> list[str]:
    """Read the findings; none without the file. Raises DataError for a damaged one."""
    return read_record(list[str], folder / LEARNING) or []
