"""Evaluations of a policy and the stages of a pipeline, as JSON files.

Belongs here: `evaluations.json` (means with 95% intervals, and paired comparisons), `side_by_side.json` (answers before
and after) and `pipeline.json` (the stages of a pipeline, in order). A run folder may contain the first two, a
pipeline's folder all three.

Answers: `evaluation/step_00000010.json`, for paired comparisons of two policies, and sampled episodes as parquet,
`samples/step_*.parquet`. pyarrow is imported on use: most commands of hone do not open a parquet file.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow has no type information)
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hone.core.conversation import Turn
from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.store.checkpoints import step_name
from hone.run.store.durable import read_json, read_json_object, replace_file, to_json, writing
from hone.run.store.records import Number, RecordFile, parse_record, record_json

EVALUATIONS = "evaluations.json"


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


SIDE_BY_SIDE = RecordFile("side_by_side.json", list[SideBySide])


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """Description of a pipeline's folder, which contains the run folders of the stages, in this order."""

    name: str
    stages: tuple[str, ...]


PIPELINE = RecordFile("pipeline.json", PipelineRecord, indent=None)


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


# -------------------------------------------------------------------------------------------------------------- answers


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


# -------------------------------------------------------------------------------------------------------------- samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One answer. `score` and `advantage` are None if missing (see `status`); `tokens` counts those of the answer."""

    step: int
    group: int
    sample: int
    prompt: str
    completion: str
    score: float | None
    status: str
    advantage: float | None
    tokens: int
    finish: str
    version: int
    turns: Sequence[Turn] = ()
    """Texts of a conversation of several turns, the environment's among them; empty for a single answer."""


COLUMNS = tuple(field.name for field in fields(SampleRow))


def write_samples(path: Path, rows: Sequence[SampleRow]) -> None:
    """Write `rows` to a parquet file atomically; makes the folder. Raises ResourceError.

    Invalid Unicode (a lone surrogate) is replaced by `?`.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415

    turns = [[list(map(_clean, turn)) for turn in row.turns] for row in rows]
    table = pa.table(
        {
            "step": pa.array([row.step for row in rows], pa.int64()),
            "group": pa.array([row.group for row in rows], pa.int64()),
            "sample": pa.array([row.sample for row in rows], pa.int64()),
            "prompt": pa.array([_clean(row.prompt) for row in rows], pa.string()),
            "completion": pa.array([_clean(row.completion) for row in rows], pa.string()),
            "score": pa.array([row.score for row in rows], pa.float64()),
            "status": pa.array([row.status for row in rows], pa.string()),
            "advantage": pa.array([row.advantage for row in rows], pa.float64()),
            "tokens": pa.array([row.tokens for row in rows], pa.int64()),
            "finish": pa.array([row.finish for row in rows], pa.string()),
            "version": pa.array([row.version for row in rows], pa.int64()),
        }
    )
    if any(turns):
        table = table.append_column("turns", pa.array(turns, pa.list_(pa.list_(pa.string()))))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, sink.getvalue().to_pybytes())


def read_samples(path: Path) -> list[SampleRow]:
    """Read the rows. Raises DataError for a file that is missing, truncated, not parquet, or lacks columns."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"cannot read {path}: {error}; is it truncated, or still being written?") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing == ["turns"]:  # every answer has one
        table = table.append_column("turns", pa.array([[]] * len(table), pa.list_(pa.list_(pa.string()))))
    elif missing:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(table.column_names)}")
    rows: list[dict[str, Any]] = table.select(list(COLUMNS)).to_pylist()
    for row in rows:
        row["turns"] = tuple((role, text) for role, text in row["turns"])
    return [SampleRow(**row) for row in rows]


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
