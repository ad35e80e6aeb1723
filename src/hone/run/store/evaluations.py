"""Evaluations of a policy and the stages of a pipeline, as JSON files.

Belongs here: `evaluations.json` (means with 95% intervals, and paired comparisons), `side_by_side.json` (answers before
and after) and `pipeline.json` (the stages of a pipeline, in order). A run folder may contain the first two, a
pipeline's folder all three.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.strict_json import Json
from hone.run.store.durable import read_json_object, replace_file, to_json
from hone.run.store.records import Number, parse_record, read_record, record_json

EVALUATIONS = "evaluations.json"
SIDE_BY_SIDE = "side_by_side.json"
PIPELINE = "pipeline.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScore:
    """Mean over `n` problems with its 95% interval; `stage` names the policy, `warnings` what speaks against it."""

    stage: str
    metric: str
    mean: Number
    low: Number
    high: Number
    n: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Difference `after - before` on the same `n` problems, with its 95% interval and paired p-value."""

    before: str
    after: str
    difference: Number
    low: Number
    high: Number
    p_value: Number
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """One prompt with the policy's answers before and after; a score is None if missing."""

    prompt: str
    reference: str
    before: str
    after: str
    before_score: float | None
    after_score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """Description of a pipeline's folder, which contains the run folders of the stages, in this order."""

    name: str
    stages: tuple[str, ...]


def write_evaluations(
    folder: Path, evaluations: Sequence[EvaluationScore], paired: Sequence[PairedDifference] = ()
) -> None:
    """Write `evaluations.json` atomically. Raises ResourceError."""
    document: dict[str, Json] = {
        "evaluations": [_without_empty_warnings(record_json(row)) for row in evaluations],
        "paired": [record_json(row) for row in paired],
    }
    replace_file(folder / EVALUATIONS, to_json(document, indent=1))


def _without_empty_warnings(row: dict[str, Json]) -> dict[str, Json]:
    return row if row["warnings"] else {name: value for name, value in row.items() if name != "warnings"}


def read_evaluations(folder: Path) -> tuple[list[EvaluationScore], list[PairedDifference]]:
    """Read `evaluations.json`; empty without the file. Raises DataError for a damaged one."""
    path = folder / EVALUATIONS
    if not path.exists():
        return [], []
    document = read_json_object(path)
    return (
        parse_record(list[EvaluationScore], document.get("evaluations"), path),
        parse_record(list[PairedDifference], document.get("paired"), path),
    )


def write_side_by_side(folder: Path, rows: Sequence[SideBySide]) -> None:
    """Write `side_by_side.json` atomically. Raises ResourceError."""
    replace_file(folder / SIDE_BY_SIDE, to_json([record_json(row) for row in rows], indent=1))


def read_side_by_side(folder: Path) -> list[SideBySide]:
    """Read `side_by_side.json`; empty without the file. Raises DataError for a damaged one."""
    return read_record(list[SideBySide], folder / SIDE_BY_SIDE) or []


def write_pipeline(folder: Path, pipeline: PipelineRecord) -> None:
    """Write `pipeline.json` atomically. Raises ResourceError."""
    replace_file(folder / PIPELINE, to_json(record_json(pipeline)))


def read_pipeline(folder: Path) -> PipelineRecord | None:
    """Read `pipeline.json`; None without the file. Raises DataError for a damaged one."""
    return read_record(PipelineRecord, folder / PIPELINE)
