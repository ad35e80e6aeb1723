"""How long records are kept, and where: export to parquet files, retention, erasure of a unit in both, import.

Nothing is deleted from a log before its copy in a parquet file was read back. Every step may be interrupted: begun
again, it ends as if it had not been.

Records of a log as parquet files by tenant and day, exact to the bit.

    FOLDER/<tenant>/2026-11-23/decisions.parquet
    FOLDER/<tenant>/2026-11-23/outcomes.parquet

The day is that of `at_s` in UTC. Rows are sorted by source and seq, so the same records are the same bytes, in whatever
order they arrived. DuckDB, pandas and polars read the files.
"""

import fcntl
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# (pyarrow has no type information)
from dataclasses import dataclass, field
from datetime import date
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Outcome
from hone.core.errors import DataError, ResourceError
from hone.decide.log.codec import encode_actions, encode_batch, encode_labels
from hone.decide.log.protocol import AppendAck, DecisionLog, RefusedRecord
from hone.decide.log.relational import DAY_S
from hone.run.store.durable import failpoint, replace_file, sync_path, writing

# -------------------------------------------------------------------------------------------------------------- parquet


DECISIONS: Final = "decisions.parquet"
OUTCOMES: Final = "outcomes.parquet"
DECISION_SCHEMA: Final = pa.schema(
    {
        "tenant": pa.string(), "source": pa.string(), "seq": pa.int64(), "id": pa.string(), "unit": pa.string(),
        "at_s": pa.float64(), "context": pa.list_(pa.float64()), "action_names": pa.list_(pa.string()),
        "action_features": pa.list_(pa.float64()), "action_width": pa.int64(), "action": pa.int64(),
        "logp": pa.float64(), "scores": pa.list_(pa.float64()), "intervention": pa.string(), "executed": pa.int64(),
        "executed_logp": pa.float64(), "version": pa.string(), "route": pa.string(), "draw_key": pa.binary(16),
        "schema": pa.string(), "latency_s": pa.float64(),
    }
)  # fmt: skip
"""Columns of decisions. `action_features` holds `action_width` numbers for each action; both are null without features.
`draw_key` is little-endian. One more, `entities`, holds fields and the entities that they named, in turn; only files in
which a decision names some have it."""
_ENTITIES: Final = pa.field("entities", pa.list_(pa.string()))
OUTCOME_SCHEMA: Final = pa.schema(
    {
        "tenant": pa.string(), "source": pa.string(), "seq": pa.int64(), "decision_id": pa.string(),
        "kind": pa.string(), "value": pa.float64(), "at_s": pa.float64(),
    }
)  # fmt: skip
"""Columns of outcomes."""
_FEW_VALUES: Final = ["tenant", "source", "version", "route", "schema", "intervention", "kind"]
_ROW_GROUP: Final = 100_000
_FOLDER_CHARACTERS: Final = 120


def day_folder(folder: Path, tenant: str, day: int) -> Path:
    """Folder of a tenant's day (counted from the epoch); a tenant's name cannot lead out of `folder`."""
    return folder / tenant_folder(tenant) / date.fromordinal(date(1970, 1, 1).toordinal() + day).isoformat()


def tenant_folder(tenant: str) -> str:
    """Name of a tenant's folder: the tenant with special characters as `%2F`, shortened to a hash if it is long."""
    name = quote(tenant, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= _FOLDER_CHARACTERS:
        return name
    return f"{name[:100]}~{blake2b(tenant.encode(), digest_size=16).hexdigest()}"


def _sort_key(record: DecisionRecord) -> tuple[str, int]:
    """Order of rows in a file."""
    return record.source, record.seq


def _record_bytes(records: Sequence[DecisionRecord]) -> list[tuple[object, ...]]:
    """All values of records, floats as bits: equal ones are equal records."""
    return [
        (*one[:3], *one[4:6], None if one.actions is None else encode_actions(one.actions), encode_labels(one.labels),
         one.body)
        for one in encode_batch(records)
    ]  # fmt: skip


def write_records(path: Path, records: Iterable[DecisionRecord]) -> None:
    """Write one file, decisions or outcomes, durably and whole. Raises ResourceError, and DataError if it reads back
    otherwise than it was written."""
    rows = sorted(records, key=_sort_key)
    table = _outcome_table(rows) if path.name == OUTCOMES else _decision_table(rows)
    sink = pa.BufferOutputStream()
    few = [name for name in table.column_names if name in _FEW_VALUES]
    write_table: Any = pq.write_table  # its annotations know `use_dictionary` as a bool only
    write_table(table, sink, compression="zstd", use_dictionary=few, row_group_size=_ROW_GROUP)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, sink.getvalue().to_pybytes())
    if _record_bytes(read_records(path)) != _record_bytes(rows):
        raise DataError(f"{path} does not hold what was written to it; is the disk damaged? Nothing was deleted")


def read_records(path: Path) -> list[DecisionRecord]:
    """Records of one file, sorted by source and seq. Raises DataError naming the file."""
    batches = _read_table(path).to_batches(max_chunksize=10_000)
    if path.name == OUTCOMES:
        return [Outcome(**one) for batch in batches for one in batch.to_pylist()]
    return [record for batch in batches for record in _read_decisions(batch)]


def _unit_decision_ids(path: Path, unit: str) -> set[str]:
    """Ids of a unit's decisions in a file of decisions, read from two columns. Raises DataError."""
    table = _read_table(path, ["id", "unit"])
    return {one["id"] for one in table.to_pylist() if one["unit"] == unit}


def _read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Columns of a file (None: all). Raises DataError if it cannot be read, or has other columns than a log's file."""
    wanted = OUTCOME_SCHEMA if path.name == OUTCOMES else DECISION_SCHEMA
    try:
        file = pq.ParquetFile(path)
        schema = file.schema_arrow
        fits = any(schema.equals(one) for one in (wanted, wanted.append(_ENTITIES)))
        table = file.read(columns) if fits else None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if table is None:
        differing = sorted({str(one) for one in schema} ^ {str(one) for one in wanted})
        raise DataError(f"{path} is no file of a decision log: different columns: {', '.join(differing)}")
    return table


def _lists(rows: Iterable[Sequence[float] | np.ndarray | None], kind: pa.DataType) -> pa.Array:
    """Lists of floats, without a Python number for each."""
    values = [None if row is None else np.asarray(row, np.float64).ravel() for row in rows]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if row is None else len(row) for row in values], out=offsets[1:])
    flat = np.concatenate([np.zeros(0), *(row for row in values if row is not None)])
    mask = pa.array([row is None for row in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), type=kind, mask=mask)


def _decision_table(rows: Sequence[DecisionRecord]) -> pa.Table:
    ones = [row for row in rows if isinstance(row, Decision)]
    features = [one.actions.features for one in ones]
    columns: dict[str, object] = {
        "tenant": [one.tenant for one in ones],
        "source": [one.source for one in ones],
        "seq": [one.seq for one in ones],
        "id": [one.id for one in ones],
        "unit": [one.unit for one in ones],
        "at_s": [one.at_s for one in ones],
        "context": _lists((one.context for one in ones), DECISION_SCHEMA.field("context").type),
        "action_names": [list(one.actions.names) for one in ones],
        "action_features": _lists(features, DECISION_SCHEMA.field("action_features").type),
        "action_width": [None if one is None else one.shape[1] for one in features],
        "action": [one.choice.action for one in ones],
        "logp": [one.choice.logp for one in ones],
        "scores": _lists((one.choice.scores for one in ones), DECISION_SCHEMA.field("scores").type),
        "intervention": [one.choice.intervention for one in ones],
        "executed": [one.executed for one in ones],
        "executed_logp": [one.executed_logp for one in ones],
        "version": [one.version for one in ones],
        "route": [one.route for one in ones],
        "draw_key": [one.draw_key.to_bytes(16, "little") for one in ones],
        "schema": [one.schema for one in ones],
        "latency_s": [one.latency_s for one in ones],
    }
    table = pa.table(columns, schema=DECISION_SCHEMA)
    if not any(one.entities for one in ones):
        return table
    entities = [[text for pair in one.entities for text in pair] for one in ones]
    return table.append_column(_ENTITIES, pa.array(entities, _ENTITIES.type))


def _outcome_table(rows: Sequence[DecisionRecord]) -> pa.Table:
    ones = [row for row in rows if isinstance(row, Outcome)]
    columns = {
        "tenant": [one.tenant for one in ones],
        "source": [one.source for one in ones],
        "seq": [one.seq for one in ones],
        "decision_id": [one.decision_id for one in ones],
        "kind": [one.kind for one in ones],
        "value": [one.value for one in ones],
        "at_s": [one.at_s for one in ones],
    }
    return pa.table(columns, schema=OUTCOME_SCHEMA)


@dataclass(slots=True)
class _ActionSets:
    """Sets of actions of a file: equal ones are one object."""

    known: dict[tuple[tuple[str, ...], int, bytes], ActionSet] = field(
        default_factory=dict[tuple[tuple[str, ...], int, bytes], ActionSet]
    )

    def get(self, names: Sequence[str], features: np.ndarray | None, width: int | None) -> ActionSet:
        """The set of these names and features."""
        held = b"" if features is None else features.tobytes()
        key = (tuple(names), -1 if width is None else width, held)
        if key not in self.known:
            shaped = None if features is None or width is None else features.reshape(len(names), width)
            self.known[key] = ActionSet(names=key[0], features=shaped)
        return self.known[key]


def _floats(column: pa.Array) -> list[np.ndarray | None]:
    """Rows of a column of lists, as views of its numbers."""
    values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
    absent = column.is_null().to_pylist()
    return [
        None if absent[row] else values[offsets[row] : offsets[row + 1]].astype(np.float64)
        for row in range(len(column))
    ]


def _read_decisions(batch: pa.RecordBatch) -> list[DecisionRecord]:
    sets = _ActionSets()
    contexts, features, scores = (_floats(batch.column(name)) for name in ("context", "action_features", "scores"))
    plain = [name for name in batch.schema.names if name not in {"context", "action_features", "scores"}]
    records: list[DecisionRecord] = []
    for row, one in enumerate(batch.select(plain).to_pylist()):
        context, entities = contexts[row], one.get("entities") or ()
        records.append(
            Decision(
                id=one["id"], tenant=one["tenant"], unit=one["unit"], at_s=one["at_s"],
                context=np.zeros(0) if context is None else context,
                actions=sets.get(one["action_names"], features[row], one["action_width"]),
                choice=Choice(
                    action=one["action"], logp=one["logp"], scores=scores[row], intervention=one["intervention"]
                ),
                executed=one["executed"], executed_logp=one["executed_logp"], version=one["version"],
                route=one["route"], draw_key=int.from_bytes(one["draw_key"], "little"), schema=one["schema"],
                entities=tuple(zip(entities[::2], entities[1::2], strict=True)),
                latency_s=one["latency_s"], source=one["source"], seq=one["seq"],
            )
        )  # fmt: skip
    return records


# ------------------------------------------------------------------------------------------------------------ retention


_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportReport:
    """Result of an export or of retention."""

    exported: int
    """Records of the log that the files hold now."""
    retired: int
    """Records deleted from the log; 0 for an export."""
    files: tuple[Path, ...]
    """Files that were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ErasureReport:
    """Result of an erasure."""

    from_log: int
    """Records erased from the log."""
    from_files: int
    """Records erased from parquet files."""


def export_log(log: DecisionLog, folder: Path) -> _ExportReport:
    """Copy every record of a log to the parquet files of `folder`, beside those that are there.

    Raises DataError if a file holds another record under the same source and seq, ResourceError if it cannot be
    written.
    """
    return _copy(log, folder, before_s=float("inf"), retire=False)


def retain(log: DecisionLog, folder: Path, *, before_s: float) -> _ExportReport:
    """Move records from before a time (`at_s`, seconds since the epoch) to the parquet files of `folder`.

    Their seqs stay known, so a record that is sent again is not stored again. Raises as `export_log` does; then nothing
    more is deleted.
    """
    return _copy(log, folder, before_s=before_s, retire=True)


def _copy(log: DecisionLog, folder: Path, *, before_s: float, retire: bool) -> _ExportReport:
    exported = retired = 0
    files: list[Path] = []
    with _only_one(folder):
        for tenant, day in log.days():
            if day * DAY_S >= before_s:
                continue
            rows = [one for one in log.read_day(tenant, day) if one.record.at_s < before_s]
            day_files = day_folder(folder, tenant, day)
            files += _merge(day_files / DECISIONS, [one.record for one in rows if isinstance(one.record, Decision)])
            files += _merge(day_files / OUTCOMES, [one.record for one in rows if not isinstance(one.record, Decision)])
            exported += len(rows)
            failpoint("decisions.exported")
            if retire:
                places = [one.position for one in rows]  # a few at a time, so that writers need not wait long
                parts = (places[begin : begin + _BATCH] for begin in range(0, len(places), _BATCH))
                retired += sum(log.retire(part) for part in parts)
    return _ExportReport(exported=exported, retired=retired, files=tuple(files))


def _merge(path: Path, records: Sequence[DecisionRecord]) -> list[Path]:
    """Write records beside those that a file holds -> the file, if it was written."""
    if not records:
        return []
    held = read_records(path) if path.exists() else []
    known = dict(zip(map(_sort_key, held), _record_bytes(held), strict=True))
    new: list[DecisionRecord] = []
    for record, content in zip(records, _record_bytes(records), strict=True):
        if _sort_key(record) not in known:
            new.append(record)
        elif known[_sort_key(record)] != content:
            raise DataError(
                f"{path} holds another record with source {record.source!r} and seq {record.seq} than the log; is it "
                "the folder of another log? The log keeps its records; give another folder"
            )
    if not new and held:
        return []
    write_records(path, [*held, *new])
    return [path]


def read_exports(folder: Path, *, tenant: str | None = None) -> Generator[DecisionRecord]:
    """Records of the parquet files of a folder, file by file; of one tenant, or of all. Raises DataError."""
    for path in _files(folder, "*" if tenant is None else tenant_folder(tenant)):
        yield from read_records(path)


def import_exports(log: DecisionLog, folder: Path) -> AppendAck:
    """Append the records of parquet files to a log -> counts over all, and the watermarks afterwards.

    Records that the log knows change nothing, and records of erased units stay erased. Raises DataError for a damaged
    file; records before it are kept, and can be imported again.
    """
    stored = repeated = erased = 0
    refused: list[RefusedRecord] = []
    records = read_exports(folder)
    while batch := list(islice(records, _BATCH)):
        ack = log.append(batch)
        stored, repeated, erased = stored + ack.stored, repeated + ack.repeated, erased + ack.erased
        refused += ack.refused
    return AppendAck(
        stored=stored, repeated=repeated, erased=erased, refused=tuple(refused), watermarks=log.watermarks()
    )


def erase_unit(log: DecisionLog, folder: Path, tenant: str, unit: str) -> _ErasureReport:
    """Erase a unit's decisions and their outcomes from a log and from the parquet files of `folder`, for good.

    Decisions go last, as they say which outcomes are the unit's: an erasure that was interrupted is made again and
    finds what is left. Raises DataError for a damaged file, ResourceError if bytes of erased records remain.
    """
    name = tenant_folder(tenant)
    with _only_one(folder):
        decisions = _files(folder, name, DECISIONS)
        ids = set(log.decision_ids(tenant, unit))
        for path in decisions:
            ids |= _unit_decision_ids(path, unit)
        erased = 0
        for path in _files(folder, name, OUTCOMES):
            known = _read_table(path, ["decision_id"]).column("decision_id").to_pylist()
            erased += 0 if ids.isdisjoint(known) else _rewrite(path, ids, unit)
        failpoint("decisions.outcomes_erased")
        from_log = log.erase(tenant, unit, decision_ids=sorted(ids))
        failpoint("decisions.log_erased")
        for path in decisions:
            erased += _rewrite(path, ids, unit) if _unit_decision_ids(path, unit) else 0
    return _ErasureReport(from_log=from_log, from_files=erased)


def _rewrite(path: Path, ids: set[str], unit: str) -> int:
    """Write a file again without a unit's records; an empty one is deleted -> records left out."""
    held = read_records(path)
    kept = [one for one in held if (one.unit != unit if isinstance(one, Decision) else one.decision_id not in ids)]
    if kept:
        write_records(path, kept)
    else:
        with writing(path):
            path.unlink()
        sync_path(path.parent)
    return len(held) - len(kept)


def _files(folder: Path, tenant: str, *kinds: str) -> list[Path]:
    """Files of one tenant's folder (`*`: all), sorted."""
    tenants: Iterable[Path] = folder.iterdir() if tenant == "*" and folder.exists() else [folder / tenant]
    paths = [path for one in tenants if one.is_dir() for path in one.glob("*/*.parquet")]
    return sorted(path for path in paths if path.name in (kinds or (DECISIONS, OUTCOMES)))


@contextmanager
def _only_one(folder: Path) -> Generator[None]:
    """Lock of a folder's files; half-written files of a killed writer are removed. Raises ResourceError."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResourceError(
                f"the parquet files in {folder} are being written by another process; try again when it is done"
            ) from error
        for leftover in folder.glob("*/*/.*.parquet.tmp"):
            with writing(leftover):
                leftover.unlink()
        yield
    finally:
        os.close(descriptor)
