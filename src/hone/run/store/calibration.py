"""Calibration of a scorer on held-out answers, `calibration.json`: the newest evaluation of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hone.run.store.durable import replace_file, to_json
from hone.run.store.records import Number, read_record, record_json

CALIBRATION = "calibration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """Scores whose probabilities lie from `low` to `high`: their mean and the mean of their labels, NaN in an empty
    bin."""

    low: float
    high: float
    predicted: Number
    observed: Number
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRow:
    """Mean truth of the answer selected from `n`: the best-scored one with its 95% interval, the voted one, the one of
    a vote weighted by the scorer, and the best there is."""

    n: int
    best: float
    low: float
    high: float
    vote: float
    weighted_vote: float
    oracle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """Figures of a scorer on held-out answers."""

    step: int | None
    """Step after which it was evaluated; None if unknown."""
    kind: str
    """`pairs`, `outcomes` or `steps`."""
    bins: tuple[CalibrationBin, ...]
    figures: Mapping[str, Number]
    """Figures by name: accuracy as `score`, `auc`, `ece`, `temperature` and others."""
    selection: tuple[SelectionRow, ...] = ()
    warnings: tuple[str, ...] = ()


def write_calibration(folder: Path, record: CalibrationRecord) -> None:
    """Write the record atomically. Raises ResourceError."""
    replace_file(folder / CALIBRATION, to_json(record_json(record), indent=1))


def read_calibration(folder: Path) -> CalibrationRecord | None:
    """Read the record; None without the file. Raises DataError for a damaged one."""
    return read_record(CalibrationRecord, folder / CALIBRATION)
