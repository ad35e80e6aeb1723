"""Evaluations of a policy and the stages of a pipeline, as JSON files.

Belongs here: `evaluations.json` (means with 95% intervals, and paired comparisons), `side_by_side.json` (answers before
and after) and `pipeline.json` (the stages of a pipeline, in order). A run folder may contain the first two, a
pipeline's folder all three.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.errors import DataError
from hone.store.durable import Json, finite_or_none, read_json, read_json_object, replace_file, to_json

EVALUATIONS = "evaluations.json"
SIDE_BY_SIDE = "side_by_side.json"
PIPELINE = "pipeline.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScore:
    """Mean over `n` problems with its 95% interval; `stage` names the policy."""

    stage: str
    metric: str
    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Difference `after - before` on the same `n` problems, with its 95% interval and paired p-value."""

    before: str
    after: str
    difference: float
    low: float
    high: float
    p_value: float
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
    measured: list[Json] = [
        {"stage": e.stage, "metric": e.metric, "mean": _n(e.mean), "low": _n(e.low), "high": _n(e.high), "n": e.n}
        for e in evaluations
    ]
    compared: list[Json] = [
        {
            "before": p.before,
            "after": p.after,
            "difference": _n(p.difference),
            "low": _n(p.low),
            "high": _n(p.high),
            "p_value": _n(p.p_value),
            "n": p.n,
        }
        for p in paired
    ]
    replace_file(folder / EVALUATIONS, to_json({"evaluations": measured, "paired": compared}, indent=1))


def read_evaluations(folder: Path) -> tuple[list[EvaluationScore], list[PairedDifference]]:
    """Read `evaluations.json`; empty without the file. Raises DataError for a damaged one."""
    path = folder / EVALUATIONS
    if not path.exists():
        return [], []
    document = read_json_object(path)
    evaluations = [
        EvaluationScore(
            stage=_text(row, "stage", path),
            metric=_text(row, "metric", path),
            mean=_number(row, "mean", path),
            low=_number(row, "low", path),
            high=_number(row, "high", path),
            n=int(_number(row, "n", path)),
        )
        for row in _rows(document.get("evaluations"), path)
    ]
    paired = [
        PairedDifference(
            before=_text(row, "before", path),
            after=_text(row, "after", path),
            difference=_number(row, "difference", path),
            low=_number(row, "low", path),
            high=_number(row, "high", path),
            p_value=_number(row, "p_value", path),
            n=int(_number(row, "n", path)),
        )
        for row in _rows(document.get("paired"), path)
    ]
    return evaluations, paired


def write_side_by_side(folder: Path, rows: Sequence[SideBySide]) -> None:
    """Write `side_by_side.json` atomically. Raises ResourceError."""
    document: list[Json] = [
        {
            "prompt": row.prompt,
            "reference": row.reference,
            "before": row.before,
            "after": row.after,
            "before_score": finite_or_none(row.before_score),
            "after_score": finite_or_none(row.after_score),
        }
        for row in rows
    ]
    replace_file(folder / SIDE_BY_SIDE, to_json(document, indent=1))


def read_side_by_side(folder: Path) -> list[SideBySide]:
    """Read `side_by_side.json`; empty without the file. Raises DataError for a damaged one."""
    path = folder / SIDE_BY_SIDE
    if not path.exists():
        return []
    return [
        SideBySide(
            prompt=_text(row, "prompt", path),
            reference=_text(row, "reference", path),
            before=_text(row, "before", path),
            after=_text(row, "after", path),
            before_score=_optional_number(row, "before_score", path),
            after_score=_optional_number(row, "after_score", path),
        )
        for row in _rows(read_json(path), path)
    ]


def write_pipeline(folder: Path, pipeline: PipelineRecord) -> None:
    """Write `pipeline.json` atomically. Raises ResourceError."""
    stages: list[Json] = list(pipeline.stages)
    replace_file(folder / PIPELINE, to_json({"name": pipeline.name, "stages": stages}, indent=1))


def read_pipeline(folder: Path) -> PipelineRecord | None:
    """Read `pipeline.json`; None without the file. Raises DataError for a damaged one."""
    path = folder / PIPELINE
    if not path.exists():
        return None
    match read_json(path):
        case {"name": str(name), "stages": list(stages)}:
            return PipelineRecord(name=name, stages=tuple(str(stage) for stage in stages))
        case _:
            raise DataError(f"{path} must contain a name and a list of stages")


def _n(value: float) -> float | None:
    return finite_or_none(value)


def _rows(value: Json, path: Path) -> list[dict[str, Json]]:
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(rows) != len(value):
        raise DataError(f"{path} must contain a list of objects")
    return rows


def _text(row: Mapping[str, Json], key: str, path: Path) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise DataError(f"{path}: {key} must be text, got {value!r}")
    return value


def _number(row: Mapping[str, Json], key: str, path: Path) -> float:
    value = _optional_number(row, key, path)
    return float("nan") if value is None else value


def _optional_number(row: Mapping[str, Json], key: str, path: Path) -> float | None:
    value = row.get(key)
    if value is not None and not isinstance(value, int | float):
        raise DataError(f"{path}: {key} must be a number, got {value!r}")
    return value
