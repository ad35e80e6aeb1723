"""How long records are kept, and where: export to parquet files, retention, erasure of a unit in both, import.

Nothing is deleted from a log before its copy in a parquet file was read back. Every step may be interrupted: begun
again, it ends as if it had not been.
"""

import fcntl
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from hone.core.decisions import Decision, DecisionRecord
from hone.core.errors import DataError, ResourceError
from hone.decide.log.parquet import (
    DECISIONS,
    OUTCOMES,
    day_folder,
    outcome_decision_ids,
    read_records,
    record_bytes,
    sort_key,
    tenant_folder,
    unit_decision_ids,
    write_records,
)
from hone.decide.log.protocol import AppendAck, DecisionLog, LoggedRecord, RefusedRecord
from hone.decide.log.session import DAY_S
from hone.run.store.durable import failpoint, sync_path, writing

_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """Result of an export or of retention."""

    exported: int
    """Records of the log that the files hold now."""
    retired: int
    """Records deleted from the log; 0 for an export."""
    files: tuple[Path, ...]
    """Files that were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport:
    """Result of an erasure."""

    from_log: int
    """Records erased from the log."""
    from_files: int
    """Records erased from parquet files."""


def export_log(log: DecisionLog, folder: Path) -> ExportReport:
    """Copy every record of a log to the parquet files of `folder`, beside those that are there.

    Raises DataError if a file holds another record under the same source and seq, ResourceError if it cannot be
    written.
    """
    return _copy(log, folder, before_s=float("inf"), retire=False)


def retain(log: DecisionLog, folder: Path, *, before_s: float) -> ExportReport:
    """Move records from before a time (`at_s`, seconds since the epoch) to the parquet files of `folder`.

    Their seqs stay known, so a record that is sent again is not stored again. Raises as `export_log` does; then nothing
    more is deleted.
    """
    return _copy(log, folder, before_s=before_s, retire=True)


def _copy(log: DecisionLog, folder: Path, *, before_s: float, retire: bool) -> ExportReport:
    exported = retired = 0
    files: list[Path] = []
    with _only_one(folder):
        for tenant, day in log.days():
            if day * DAY_S >= before_s:
                continue
            rows = [one for one in log.read_day(tenant, day) if one.record.at_s < before_s]
            place = day_folder(folder, tenant, day)
            files += _merge(place / DECISIONS, [one.record for one in rows if isinstance(one.record, Decision)])
            files += _merge(place / OUTCOMES, [one.record for one in rows if not isinstance(one.record, Decision)])
            exported += len(rows)
            failpoint("decisions.exported")
            if retire:
                retired += _retire(log, rows)
    return ExportReport(exported=exported, retired=retired, files=tuple(files))


def _retire(log: DecisionLog, rows: Sequence[LoggedRecord]) -> int:
    """Retire records, a few at a time, so that writers need not wait long."""
    places = [one.position for one in rows]
    return sum(log.retire(places[begin : begin + _BATCH]) for begin in range(0, len(places), _BATCH))


def _merge(path: Path, records: Sequence[DecisionRecord]) -> list[Path]:
    """Write records beside those that a file holds -> the file, if it was written."""
    if not records:
        return []
    held = read_records(path) if path.exists() else []
    known = dict(zip(map(sort_key, held), record_bytes(held), strict=True))
    new: list[DecisionRecord] = []
    for record, content in zip(records, record_bytes(records), strict=True):
        if sort_key(record) not in known:
            new.append(record)
        elif known[sort_key(record)] != content:
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


def erase_unit(log: DecisionLog, folder: Path, tenant: str, unit: str) -> ErasureReport:
    """Erase a unit's decisions and their outcomes from a log and from the parquet files of `folder`, for good.

    Decisions go last, as they say which outcomes are the unit's: an erasure that was interrupted is made again and
    finds what is left. Raises DataError for a damaged file, ResourceError if bytes of erased records remain.
    """
    name = tenant_folder(tenant)
    with _only_one(folder):
        decisions = _files(folder, name, DECISIONS)
        ids = set(log.decision_ids(tenant, unit))
        for path in decisions:
            ids |= unit_decision_ids(path, unit)
        erased = 0
        for path in _files(folder, name, OUTCOMES):
            erased += 0 if ids.isdisjoint(outcome_decision_ids(path)) else _rewrite(path, ids, unit)
        failpoint("decisions.outcomes_erased")
        from_log = log.erase(tenant, unit, decision_ids=sorted(ids))
        failpoint("decisions.log_erased")
        for path in decisions:
            erased += _rewrite(path, ids, unit) if unit_decision_ids(path, unit) else 0
    return ErasureReport(from_log=from_log, from_files=erased)


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
    found = [path for one in tenants if one.is_dir() for path in one.glob("*/*.parquet")]
    return sorted(path for path in found if path.name in (kinds or (DECISIONS, OUTCOMES)))


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
