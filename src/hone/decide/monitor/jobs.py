"""A queue of jobs in one file: submitted once, claimed under a lease, completed by the holder of the lease only."""

import json
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hone.core.errors import DataError, ResourceError

JobState = Literal["queued", "leased", "done", "failed"]
_SCHEMA = """
create table if not exists jobs (
  id text primary key, tenant text not null, work text not null, state text not null, attempt integer not null,
  worker text not null, lease_until_s real not null, submitted_s real not null, result text not null
) without rowid
"""
_COLUMNS = "id, tenant, work, state, attempt, worker, lease_until_s, result"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job as the queue knows it."""

    id: str
    tenant: str
    work: Mapping[str, str]
    """Description of the work, by name."""
    state: JobState
    attempt: int
    """Number of claims; the fencing token of the lease."""
    worker: str
    lease_until_s: float
    result: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobQueue:
    """Queue in a SQLite file. Holds no connection: each call is one transaction."""

    path: Path

    def submit(self, job: str, *, tenant: str, work: Mapping[str, str], at_s: float) -> bool:
        """Add a job; False if the identity is known, or if the tenant has a job that is not finished."""
        with self._transaction() as connection:
            cursor = connection.execute(
                "insert or ignore into jobs select ?, ?, ?, 'queued', 0, '', 0, ?, '{}' where not exists "
                "(select 1 from jobs where tenant = ? and state in ('queued', 'leased'))",
                (job, tenant, json.dumps(dict(work)), at_s, tenant),
            )
            return cursor.rowcount == 1

    def claim(self, worker: str, *, now_s: float, lease_s: float) -> QueuedJob | None:
        """Lease the oldest job that is queued, or whose lease has run out; None: there is none."""
        with self._transaction() as connection:
            row = connection.execute(
                "update jobs set state = 'leased', attempt = attempt + 1, worker = ?, lease_until_s = ? where id = "
                "(select id from jobs where state = 'queued' or (state = 'leased' and lease_until_s < ?) "
                f"order by submitted_s, id limit 1) returning {_COLUMNS}",
                (worker, now_s + lease_s, now_s),
            ).fetchone()
        return None if row is None else _job(row)

    def renew(self, job: QueuedJob, *, until_s: float) -> None:
        """Extend a lease. Raises DataError if another worker holds the job."""
        self._change(job, "state = 'leased', lease_until_s = ?", (until_s,))

    def finish(self, job: QueuedJob, result: Mapping[str, str], *, failed: bool = False) -> None:
        """Write the result. Raises DataError if another worker holds the job: nothing is written then."""
        state = "failed" if failed else "done"
        self._change(job, "state = ?, result = ?", (state, json.dumps(dict(result))))

    def jobs(self) -> tuple[QueuedJob, ...]:
        """All jobs, oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(f"select {_COLUMNS} from jobs order by submitted_s, id").fetchall()
        return tuple(map(_job, rows))

    def _change(self, job: QueuedJob, assignment: str, values: tuple[object, ...]) -> None:
        with self._transaction() as connection:
            cursor = connection.execute(
                f"update jobs set {assignment} where id = ? and attempt = ? and state = 'leased'",
                (*values, job.id, job.attempt),
            )
            if cursor.rowcount != 1:
                raise DataError(
                    f"job {job.id} of {self.path} is no longer held by {job.worker!r} (claim {job.attempt}): its lease "
                    "ran out and another worker took it; this worker's result is dropped"
                )

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        except sqlite3.Error as error:
            raise ResourceError(f"cannot open the queue {self.path}: {error}") from None
        try:
            connection.execute("begin immediate")
            connection.execute(_SCHEMA)
            yield connection
            connection.execute("commit")
        except sqlite3.DatabaseError as error:
            raise ResourceError(f"cannot use the queue {self.path}: {error}") from error
        finally:
            connection.close()


def _job(row: tuple[str, str, str, JobState, int, str, float, str]) -> QueuedJob:
    return QueuedJob(
        id=row[0], tenant=row[1], work=json.loads(row[2]), state=row[3], attempt=row[4], worker=row[5],
        lease_until_s=row[6], result=json.loads(row[7]),
    )  # fmt: skip
