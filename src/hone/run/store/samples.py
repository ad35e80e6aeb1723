"""Sampled episodes as parquet: prompts, answers and scores.

Belongs here: the columns of `samples/step_*.parquet`, written and read. pyarrow is imported on use: it takes a quarter
of a second, and most commands of hone do not open a parquet file.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow has no type information)

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hone.core.conversation import Turn
from hone.core.errors import DataError
from hone.run.store.durable import replace_file, writing


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
