"""Robustness of a control policy, `robustness.json`: scores under perturbations on the same seeds.

Belongs here: the file format.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.errors import DataError
from hone.store.durable import Json, finite_or_none, read_json, replace_file, to_json

ROBUSTNESS = "robustness.json"
UNPERTURBED = "unperturbed"
_OLD_UNPERTURBED = "as it was"


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbedScore:
    """Score under one perturbation and its difference from the unperturbed score, with 95% intervals; `n` episodes."""

    name: str
    mean: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float
    p_value: float
    n: int


NUMERIC_FIELDS = ("mean", "low", "high", "difference", "difference_low", "difference_high", "p_value")


def write_robustness(folder: Path, rows: Sequence[PerturbedScore]) -> None:
    """Write the file atomically. Raises ResourceError."""
    document: list[Json] = [
        {
            "name": row.name,
            "mean": finite_or_none(row.mean),
            "low": finite_or_none(row.low),
            "high": finite_or_none(row.high),
            "difference": finite_or_none(row.difference),
            "difference_low": finite_or_none(row.difference_low),
            "difference_high": finite_or_none(row.difference_high),
            "p_value": finite_or_none(row.p_value),
            "n": row.n,
        }
        for row in rows
    ]
    replace_file(folder / ROBUSTNESS, to_json(document, indent=1))


def read_robustness(folder: Path) -> list[PerturbedScore]:
    """Read the file; empty without it. Raises DataError for a damaged one."""
    path = folder / ROBUSTNESS
    if not path.exists():
        return []
    document = read_json(path)
    if not isinstance(document, list):
        raise DataError(f"{path} must contain a list of perturbations")
    return [_row(entry, path) for entry in document]


def _row(entry: Json, path: Path) -> PerturbedScore:
    match entry:
        case {"name": str(name), "n": int(n)}:
            figures = [entry.get(key) for key in NUMERIC_FIELDS]
            if not all(value is None or isinstance(value, int | float) for value in figures):
                raise DataError(f"{path}: the figures of {name} must be numbers, got {figures}")
            known = [float(value) if isinstance(value, int | float) else float("nan") for value in figures]
            mean, low, high, difference, difference_low, difference_high, p_value = known
        case _:
            raise DataError(f"{path} must contain objects with a name and a number of episodes")
    return PerturbedScore(
        name=UNPERTURBED if name == _OLD_UNPERTURBED else name,
        mean=mean,
        low=low,
        high=high,
        difference=difference,
        difference_low=difference_low,
        difference_high=difference_high,
        p_value=p_value,
        n=n,
    )
