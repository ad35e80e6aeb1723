"""The queue's file, and its rules: whose job is next, who holds it, and what was used.

A worker claims a job for a lease, which heartbeats prolong. Every claim has a new number, a fencing token (Kleppmann,
"How to do distributed locking", 2016): who comes back late with an old one writes nothing. Among tenants the one goes
next whose use, in slot-seconds divided by its weight, is least; use fades by half in each half-life, so that a quiet
week is worth something, and last year's is not. Use is written in whole microseconds and belongs to exactly one claim.
"""

import math
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from hone.core.clock import Clock
from hone.core.errors import DataError, HoneError
from hone.run.store.durable import from_json, to_json
from hone.run.store.sqlite import open_database, transaction

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]
Wish: TypeAlias = Literal["", "yield", "cancel"]
"""What a worker is asked to do with its job: go on, save a checkpoint and give it back, or end it."""
HALF_LIFE_S: Final = 7 * 86_400.0
LEASE_S: Final = 60.0
_MICRO: Final = 1_000_000
_SCHEMA: Final = """
create table if not exists tenants (
    name text primary key, weight real not null default 1, slots integer not null default 0,
    used_us integer not null default 0, faded_s real not null default 0, faded_us integer not null default 0);
create table if not exists jobs (
    id integer primary key, tenant text not null, name text not null, command text not null,
    priority integer not null, state text not null, submitted_us integer not null, token integer not null default 0,
    worker text not null default '', until_us integer not null default 0, charged_us integer not null default 0,
    attempts integer not null default 0, cancel integer not null default 0, why text not null default '');
create index if not exists by_state on jobs (state, tenant, priority desc, id);
create table if not exists used (
    job integer not null, tenant text not null, token integer not null, from_us integer not null,
    to_us integer not null, primary key (token));
create table if not exists counter (token integer not null);
"""


class LostLeaseError(HoneError):
    """The job was given to another worker, or ended, meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A job as the queue knows it."""

    id: int
    tenant: str
    name: str
    command: tuple[str, ...]
    """Arguments of `hone train`."""
    priority: int
    state: JobState
    token: int
    worker: str
    attempts: int
    why: str
    """Why it failed, or went back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """A tenant's part of the work."""

    name: str
    weight: float
    slots: int
    """Most jobs at the same time; 0: no bound."""
    used_us: int
    """Slot-microseconds in all."""
    faded_s: float
    """The same in seconds, faded by the half-life."""
    running: int
    queued: int

    @property
    def debt(self) -> float:
        """Faded use per weight: the least goes next."""
        return self.faded_s / self.weight


def faded(from_s: float, to_s: float, now_s: float, half_life_s: float) -> float:
    """Seconds from `from_s` to `to_s`, each worth 2^-(age / half-life) now: an integral in closed form."""
    rate = math.log(2) / half_life_s
    return math.exp(-rate * (now_s - to_s)) * -math.expm1(-rate * (to_s - from_s)) / rate


@dataclass(slots=True, eq=False)
class RunQueue:
    """The queue in a SQLite file. Any number of processes may open it; one object is for one thread."""

    path: Path
    clock: Clock
    half_life_s: float = HALF_LIFE_S
    lease_s: float = LEASE_S
    _db: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        self._db = open_database(self.path, _SCHEMA, durable="kill")
        with self._transaction():
            self._db.execute("insert into counter select 0 where not exists (select 1 from counter)")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # ------------------------------------------------------------------------------------------- clients

    def set_tenant(self, name: str, *, weight: float = 1.0, slots: int = 0) -> None:
        """Give a tenant a weight, and a bound of jobs at the same time. Raises DataError."""
        if not (math.isfinite(weight) and weight > 0) or slots < 0:
            raise DataError(f"tenant {name!r}: weight must be above 0 and slots 0 or more, got {weight} and {slots}")
        with self._transaction():
            self._db.execute(
                "insert into tenants (name, weight, slots) values (?, ?, ?) "
                "on conflict (name) do update set weight = excluded.weight, slots = excluded.slots",
                (name, weight, slots),
            )

    def submit(self, tenant: str, name: str, command: Sequence[str], *, priority: int = 0) -> int:
        """Queue a job; returns its number. A tenant that is not known has weight 1."""
        with self._transaction():
            self._db.execute("insert or ignore into tenants (name) values (?)", (tenant,))
            row = self._db.execute(
                "insert into jobs (tenant, name, command, priority, state, submitted_us) "
                "values (?, ?, ?, ?, 'queued', ?) returning id",
                (tenant, name, to_json(list(command)).decode(), priority, self._now_us()),
            ).fetchone()
            return int(row[0])

    def cancel(self, job: int) -> JobState:
        """End a job: at once if it is queued, by its worker's next heartbeat if it runs. Returns its state. Raises
        DataError for one that is not there, or over."""
        with self._transaction():
            state = self._job(job).state
            if state == "queued":
                self._db.execute("update jobs set state = 'cancelled', why = 'cancelled' where id = ?", (job,))
                return "cancelled"
            if state != "running":
                raise DataError(f"job {job} is {state} already")
            self._db.execute("update jobs set cancel = 1 where id = ?", (job,))
            return "running"

    def jobs(self) -> list[QueuedRun]:
        """All jobs, in the order in which they came."""
        return self._select("order by id")

    def shares(self) -> list[TenantShare]:
        """All tenants with what they used."""
        now_us = self._now_us()
        counts = {
            (tenant, state): count
            for tenant, state, count in self._db.execute(
                "select tenant, state, count(*) from jobs where state in ('queued', 'running') group by 1, 2"
            )
        }
        return [
            TenantShare(
                name=name,
                weight=weight,
                slots=slots,
                used_us=used_us,
                faded_s=faded_s * self._fading(now_us - faded_us),
                running=counts.get((name, "running"), 0),
                queued=counts.get((name, "queued"), 0),
            )
            for name, weight, slots, used_us, faded_s, faded_us in self._db.execute(
                "select name, weight, slots, used_us, faded_s, faded_us from tenants order by name"
            )
        ]

    def why_waiting(self, job: QueuedRun) -> str:
        """A sentence on a queued job."""
        shares = {one.name: one for one in self.shares()}
        own = shares[job.tenant]
        if own.slots and own.running >= own.slots:
            return f"{job.tenant} runs {own.running} jobs, the most that it may"
        before = [one.name for one in shares.values() if one.queued and one.debt < own.debt]
        return f"before it: {', '.join(before)}, with less use per weight" if before else "next of its tenant's"

    # ------------------------------------------------------------------------------------------- workers

    def claim(self, worker: str) -> QueuedRun | None:
        """Take the next job for a lease; None where none may run. Jobs whose lease is over are queued again before."""
        with self._transaction():
            now_us = self._now_us()
            self._expire(now_us)
            waiting = [one for one in self.shares() if one.queued and not (one.slots and one.running >= one.slots)]
            if not waiting:
                return None
            tenant = min(waiting, key=lambda one: (one.debt, one.name)).name
            (token,) = self._db.execute("update counter set token = token + 1 returning token").fetchone()
            (job,) = self._db.execute(
                "update jobs set state = 'running', token = ?, worker = ?, until_us = ?, charged_us = ?, "
                "attempts = attempts + 1, why = '' where id = (select id from jobs where state = 'queued' and "
                "tenant = ? order by priority desc, id limit 1) returning id",
                (token, worker, now_us + self._lease_us, now_us, tenant),
            ).fetchone()
            self._db.execute("insert into used values (?, ?, ?, ?, ?)", (job, tenant, token, now_us, now_us))
            return self._job(job)

    def heartbeat(self, job: int, token: int) -> Wish:
        """Prolong a lease, charge the time since the last sign, and ask for wishes. Raises LostLeaseError for an old
        token: end the work at once, nothing of it counts any more."""
        with self._transaction():
            now_us = self._now_us()
            self._charge(job, token, now_us)
            self._db.execute("update jobs set until_us = ? where id = ?", (now_us + self._lease_us, job))
            if self._db.execute("select cancel from jobs where id = ?", (job,)).fetchone()[0]:
                return "cancel"
            return "yield" if self._should_yield(self._job(job)) else ""

    def finish(self, job: int, token: int, state: JobState, why: str = "") -> None:
        """End a job, or give it back (`queued`). Raises LostLeaseError for an old token: nothing is written."""
        with self._transaction():
            self._charge(job, token, self._now_us())
            self._db.execute("update jobs set state = ?, why = ?, worker = '' where id = ?", (state, why, job))

    # --------------------------------------------------------------------------------------------- parts

    def _should_yield(self, job: QueuedRun) -> bool:
        """Whether a tenant that waits is more than a lease per weight behind the one whose job runs; then the job goes
        back at its next checkpoint. Where nobody waits, a tenant may use more than its share."""
        shares = {one.name: one for one in self.shares()}
        own = shares[job.tenant].debt
        return any(
            one.queued and one.name != job.tenant and own - one.debt > self.lease_s / one.weight
            and not (one.slots and one.running >= one.slots)
            for one in shares.values()
        )  # fmt: skip

    def _expire(self, now_us: int) -> None:
        late = self._db.execute(
            "select id, token, until_us from jobs where state = 'running' and until_us < ?", (now_us,)
        ).fetchall()
        for job, token, until_us in late:
            self._charge(job, token, until_us)
            why = "its worker gave no sign of life"
            state = "case when cancel then 'cancelled' else 'queued' end"
            self._db.execute(f"update jobs set state = {state}, worker = '', why = ? where id = ?", (why, job))

    def _charge(self, job: int, token: int, until_us: int) -> None:
        """Charge a claim's time up to a moment, to the claim and to its tenant."""
        row = self._db.execute(
            "select to_us, used.tenant, faded_s, faded_us from used join tenants on tenants.name = used.tenant "
            "join jobs on jobs.id = used.job and jobs.token = used.token "
            "where used.token = ? and jobs.id = ? and state = 'running'",
            (token, job),
        ).fetchone()
        if row is None:
            raise LostLeaseError(f"job {job} is not held by claim {token} any more")
        from_us, tenant, faded_s, faded_us = row
        until_us, now_us = max(until_us, from_us), max(until_us, faded_us)
        fresh = faded(from_us / _MICRO, until_us / _MICRO, now_us / _MICRO, self.half_life_s)
        self._db.execute("update used set to_us = ? where token = ?", (until_us, token))
        self._db.execute(
            "update tenants set used_us = used_us + ?, faded_s = ?, faded_us = ? where name = ?",
            (until_us - from_us, faded_s * self._fading(now_us - faded_us) + fresh, now_us, tenant),
        )

    def _fading(self, age_us: int) -> float:
        return 2.0 ** (-age_us / _MICRO / self.half_life_s)

    def _job(self, job: int) -> QueuedRun:
        jobs = self._select("where id = ?", job)
        if not jobs:
            raise DataError(f"there is no job {job} in {self.path}")
        return jobs[0]

    def _select(self, where: str, *values: int) -> list[QueuedRun]:
        rows = self._db.execute(
            f"select id, tenant, name, command, priority, state, token, worker, attempts, why from jobs {where}", values
        )
        return [
            QueuedRun(
                id=id, tenant=tenant, name=name, command=tuple(cast("list[str]", from_json(command.encode(), name))),
                priority=priority, state=state, token=token, worker=worker, attempts=attempts, why=why,
            )
            for id, tenant, name, command, priority, state, token, worker, attempts, why in rows
        ]  # fmt: skip

    @property
    def _lease_us(self) -> int:
        return round(self.lease_s * _MICRO)

    def _now_us(self) -> int:
        return round(self.clock.now_s() * _MICRO)

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db, f"the queue {self.path}")
