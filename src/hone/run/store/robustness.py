"""Robustness of a control policy, `robustness.json`: scores under perturbations on the same seeds.

Belongs here: the file format.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hone.run.store.durable import replace_file, to_json
from hone.run.store.records import Number, read_record, record_json

ROBUSTNESS = "robustness.json"
UNPERTURBED = "unperturbed"
_OLD_UNPERTURBED = "as it was"


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbedScore:
    """Score under one perturbation and its difference from the unperturbed score, with 95% intervals; `n` episodes."""

    name: str
    mean: Number
    low: Number
    high: Number
    difference: Number
    difference_low: Number
    difference_high: Number
    p_value: Number
    n: int


def write_robustness(folder: Path, rows: Sequence[PerturbedScore]) -> None:
    """Write the file atomically. Raises ResourceError."""
    replace_file(folder / ROBUSTNESS, to_json([record_json(row) for row in rows], indent=1))


def read_robustness(folder: Path) -> list[PerturbedScore]:
    """Read the file; empty without it. Raises DataError for a damaged one."""
    rows = read_record(list[PerturbedScore], folder / ROBUSTNESS) or []
    return [replace(row, name=UNPERTURBED) if row.name == _OLD_UNPERTURBED else row for row in rows]
