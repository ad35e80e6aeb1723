"""The queue's file, and its rules: whose job is next, who holds it, and what was used.

A worker claims a job for a lease, which heartbeats prolong. Every claim has a new number, a fencing token (Kleppmann,
"How to do distributed locking", 2016): who comes back late with an old one writes nothing. Among tenants the one goes
next whose use, in slot-seconds divided by its weight, is least; use fades by half in each half-life, so that a quiet
week is worth something, and last year's is not. Use is written in whole microseconds and belongs to exactly one claim;
so do the core-seconds, tokens, bytes and steps that its worker reports.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

from hone.core.clock import Clock
from hone.core.errors import DataError, HoneError
from hone.run.queue.database import QueueDatabase
from hone.run.queue.use import ClaimUse
from hone.run.store.durable import to_json

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]
Wish: TypeAlias = Literal["", "yield", "cancel"]
"""What a worker is asked to do with its job: go on, save a checkpoint and give it back, or end it."""
HALF_LIFE_S: Final = 7 * 86_400.0
LEASE_S: Final = 60.0
_MICRO: Final = 1_000_000
_NEVER: Final = -1e300
"""Debt of a tenant that has used nothing."""
NO_USE: Final = ClaimUse()
_USE: Final = "core_us, tokens, bytes, steps"
"""Columns of a `ClaimUse`, in its order."""
_COLUMNS: Final = "id, tenant, name, command, priority, state, token, worker, attempts, why"


class LostLeaseError(HoneError):
    """The job was given to another worker, or ended, meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A job as the queue knows it."""

    id: int
    tenant: str
    name: str
    command: tuple[str, ...]
    """A config with its overrides, or `serve training` and what follows: a training service."""
    priority: int
    state: JobState
    token: int
    worker: str
    attempts: int
    why: str
    """Why it failed, or went back."""

    @property
    def serves(self) -> bool:
        """Whether it is a training service, with the sessions of its clients."""
        return self.command[:2] == ("serve", "training")

    def service_use(self, runs: Path) -> Path:
        """File in which a service keeps what it used."""
        return runs / f"{self.name}.use.json"

    def arguments(self, runs: Path) -> list[str]:
        """Arguments of `hone` that begin the job, or resume it where `runs` has a checkpoint of it. A service gets the
        claim's number, under which it writes, and the file for its totals."""
        if self.serves:
            return [*self.command, "--claim", str(self.token), "--use", str(self.service_use(runs))]
        resumed = ["--resume"] if (runs / self.name / "checkpoints").is_dir() else []
        return ["train", *self.command, "--name", self.name, "--runs", str(runs), *resumed]


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
    use: ClaimUse = NO_USE
    """What its jobs used beside slots."""

    @property
    def debt(self) -> float:
        """Faded use per weight: the least goes next."""
        return self.faded_s / self.weight


@dataclass(frozen=True, slots=True)
class UsedSpan:
    """A claim in the ledger, with its time in microseconds."""

    token: int
    job: int
    tenant: str
    from_us: int
    to_us: int
    use: ClaimUse = NO_USE


def faded(from_s: float, to_s: float, now_s: float, half_life_s: float) -> float:
    """Seconds from `from_s` to `to_s`, each worth 2^-(age / half-life) now: an integral in closed form."""
    rate = math.log(2) / half_life_s
    return math.exp(-rate * (now_s - to_s)) * -math.expm1(-rate * (to_s - from_s)) / rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """When a queued job will start, and why not now."""

    why: str
    before: int
    """Jobs that go first."""
    wait_s: float | None
    """Seconds until it starts, if claims go on as they went; None: no job has ended yet, or none runs."""


@dataclass(slots=True, eq=False)
class RunQueue:
    """The queue. Any number of processes may open it; one object is for one thread."""

    database: QueueDatabase
    clock: Clock
    half_life_s: float = HALF_LIFE_S
    lease_s: float = LEASE_S

    def __post_init__(self) -> None:
        """Raises ResourceError for a database that cannot be written."""
        with self.database.transaction():
            known = self._rows("select value from settings where name = 'half_life_s'")
            if known and known[0][0] == self.half_life_s:
                return
            setting = "insert into settings values ('half_life_s', ?) on conflict (name) do update set value = ?"
            self._rows(setting, self.half_life_s, self.half_life_s)
            for name, weight, faded_s, faded_us in self._rows("select name, weight, faded_s, faded_us from tenants"):
                debt = self._debt(faded_s, faded_us, weight)
                self._rows("update tenants set debt = ? where name = ?", debt, name)

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    # ------------------------------------------------------------------------------------------- clients

    def set_tenant(self, name: str, *, weight: float = 1.0, slots: int = 0) -> None:
        """Give a tenant a weight, and a bound of jobs at the same time. Raises DataError."""
        if not (math.isfinite(weight) and weight > 0) or slots < 0:
            raise DataError(f"tenant {name!r}: weight must be above 0 and slots 0 or more, got {weight} and {slots}")
        with self.database.transaction():
            self._rows(
                "insert into tenants (name, weight, slots) values (?, ?, ?) "
                "on conflict (name) do update set weight = excluded.weight, slots = excluded.slots",
                name, weight, slots,
            )  # fmt: skip
            ((faded_s, faded_us),) = self._rows("select faded_s, faded_us from tenants where name = ?", name)
            debt = self._debt(faded_s, faded_us, weight)
            self._rows("update tenants set debt = ? where name = ?", debt, name)

    def submit(self, tenant: str, name: str, command: Sequence[str], *, priority: int = 0) -> int:
        """Queue a job; returns its number. A tenant that is not known has weight 1."""
        with self.database.transaction():
            self._rows("insert into tenants (name) values (?) on conflict (name) do nothing", tenant)
            self._move(tenant, queued=1)
            ((job,),) = self._rows(
                "insert into jobs (tenant, name, command, priority, state, submitted_us) "
                "values (?, ?, ?, ?, 'queued', ?) returning id",
                tenant, name, to_json(list(command)).decode(), priority, self._now_us(),
            )  # fmt: skip
            return int(job)

    def cancel(self, job: int) -> JobState:
        """End a job: at once if it is queued, by its worker's next heartbeat if it runs. Returns its state. Raises
        DataError for one that is not there, or over."""
        with self.database.transaction():
            known = self.job(job)
            if known.state == "queued":
                self._rows("update jobs set state = 'cancelled', why = 'cancelled' where id = ?", job)
                self._move(known.tenant, queued=-1)
                return "cancelled"
            if known.state != "running":
                raise DataError(f"job {job} is {known.state} already")
            self._rows("update jobs set cancel = 1 where id = ?", job)
            return "running"

    def jobs(self) -> list[QueuedRun]:
        """All jobs, in the order in which they came."""
        return self._select("order by id")

    def shares(self) -> list[TenantShare]:
        """All tenants with what they used."""
        now_us = self._now_us()
        return [
            TenantShare(
                name=name, weight=weight, slots=slots, used_us=used_us,
                faded_s=faded_s * self._fading(now_us - faded_us), running=running, queued=queued, use=_read_use(use),
            )
            for name, weight, slots, used_us, faded_s, faded_us, running, queued, *use in self._rows(
                f"select name, weight, slots, used_us, faded_s, faded_us, running, queued, {_USE} from tenants "
                "order by name"
            )
        ]  # fmt: skip

    def claims(self) -> list[UsedSpan]:
        """The ledger: every claim with its time, in the order in which they began."""
        query = f"select token, job, tenant, from_us, to_us, {_USE} from used order by token"
        return [
            UsedSpan(token, job, tenant, from_us, to_us, _read_use(use))
            for token, job, tenant, from_us, to_us, *use in self._rows(query)
        ]

    def admissions(self) -> dict[int, Admission]:
        """When each queued job starts, by its number: if as many slots go on to be used as now, and jobs last as long
        as those that ended did on the average. Claims are made in the order that this brings."""
        shares = {one.name: one for one in self.shares()}
        ((ended, lasted_us),) = self._rows(
            "select count(distinct jobs.id), coalesce(sum(to_us - from_us), 0) from jobs "
            "join used on used.job = jobs.id where state in ('done', 'failed')"
        )
        slots, mean_s = sum(one.running for one in shares.values()), float(lasted_us) / _MICRO / ended if ended else 1.0
        debts = {name: one.debt + one.running * mean_s / one.weight for name, one in shares.items()}
        waiting: dict[str, list[int]] = {}
        for id, tenant in self._rows("select id, tenant from jobs where state = 'queued' order by priority, id desc"):
            waiting.setdefault(tenant, []).append(id)
        result: dict[int, Admission] = {}
        while waiting:
            tenant = min(waiting, key=lambda name: (debts[name], name))
            before, job = len(result), waiting[tenant].pop()
            wait_s = (before + 1) * mean_s / slots if ended and slots else None
            result[job] = Admission(why=_why(shares, tenant), before=before, wait_s=wait_s)
            debts[tenant] += mean_s / shares[tenant].weight
            if not waiting[tenant]:
                del waiting[tenant]
        return result

    # ------------------------------------------------------------------------------------------- workers

    def claim(self, worker: str, *, only: int = 0) -> QueuedRun | None:
        """Take the next job for a lease; None where none may run. Jobs whose lease is over are queued again before.
        `only`: that job, where somebody else decides on the order; 0: any."""
        with self.database.transaction():
            now_us = self._now_us()
            self._expire(now_us)
            free = "select name from tenants where queued > 0 and (slots = 0 or running < slots)"
            if only:
                chosen = self._rows(
                    f"select id, tenant from jobs where state = 'queued' and id = ? and tenant in ({free})", only
                )
            else:
                chosen = self._rows(
                    "select id, tenant from jobs where state = 'queued' and tenant = "
                    f"({free} order by debt, running / weight, name limit 1) order by priority desc, id limit 1"
                )
            if not chosen:
                return None
            ((job, tenant),) = chosen
            ((token,),) = self._rows(
                "insert into used (job, tenant, from_us, to_us) values (?, ?, ?, ?) returning token",
                job, tenant, now_us, now_us,
            )  # fmt: skip
            self._move(tenant, queued=-1, running=1)
            ((*row,),) = self._rows(
                "update jobs set state = 'running', token = ?, worker = ?, until_us = ?, attempts = attempts + 1, "
                f"why = '' where id = ? returning {_COLUMNS}",
                token, worker, now_us + self._lease_us, job,
            )  # fmt: skip
            return _read_job(row)

    def heartbeat(self, job: int, token: int, use: ClaimUse = NO_USE) -> Wish:
        """Prolong a lease, charge the time since the last sign and what the claim used so far, and ask for wishes.
        Raises LostLeaseError for an old token: end the work at once, nothing of it counts any more."""
        with self.database.transaction():
            now_us = self._now_us()
            self._charge(job, token, now_us, use)
            ((cancel,),) = self._rows(
                "update jobs set until_us = ? where id = ? returning cancel", now_us + self._lease_us, job
            )
            if cancel:
                return "cancel"
            return "yield" if self._should_yield(self.job(job)) else ""

    def finish(self, job: int, token: int, state: JobState, why: str = "", use: ClaimUse = NO_USE) -> None:
        """End a job, or give it back (`queued`), with what the claim used. Raises LostLeaseError for an old token:
        nothing is written."""
        with self.database.transaction():
            tenant = self._charge(job, token, self._now_us(), use)
            self._rows("update jobs set state = ?, why = ?, worker = '' where id = ?", state, why, job)
            self._move(tenant, queued=int(state == "queued"), running=-1)

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
        late = self._rows(
            "select id, token, until_us, cancel from jobs where state = 'running' and until_us < ?", now_us
        )
        for job, token, until_us, cancel in late:
            tenant = self._charge(job, token, until_us)
            state, why = "cancelled" if cancel else "queued", "its worker gave no sign of life"
            self._rows("update jobs set state = ?, worker = '', why = ? where id = ?", state, why, job)
            self._move(tenant, queued=int(not cancel), running=-1)

    def _charge(self, job: int, token: int, until_us: int, use: ClaimUse = NO_USE) -> str:
        """Charge a claim's time up to a moment and what it used by then, to the claim and to its tenant, whose name it
        returns."""
        columns = ", ".join(f"used.{name}" for name in _USE.split(", "))
        rows = self._rows(
            f"select to_us, used.tenant, weight, faded_s, faded_us, {columns} from used "
            "join tenants on tenants.name = used.tenant join jobs on jobs.id = used.job and jobs.token = used.token "
            "where used.token = ? and jobs.id = ? and state = 'running'",
            token, job,
        )  # fmt: skip
        if not rows:
            raise LostLeaseError(f"job {job} is not held by claim {token} any more")
        ((from_us, tenant, weight, faded_s, faded_us, *before),) = rows
        fresh_use = astuple(use.beyond(_read_use(before)))
        adding = ", ".join(f"{name} = {name} + ?" for name in _USE.split(", "))
        until_us, now_us = max(until_us, from_us), max(until_us, faded_us)
        fresh = faded(from_us / _MICRO, until_us / _MICRO, now_us / _MICRO, self.half_life_s)
        total = faded_s * self._fading(now_us - faded_us) + fresh
        self._rows(f"update used set to_us = ?, {adding} where token = ?", until_us, *fresh_use, token)
        self._rows(
            f"update tenants set used_us = used_us + ?, faded_s = ?, faded_us = ?, debt = ?, {adding} where name = ?",
            until_us - from_us, total, now_us, self._debt(total, now_us, weight), *fresh_use, tenant,
        )  # fmt: skip
        return str(tenant)

    def _move(self, tenant: str, *, queued: int = 0, running: int = 0) -> None:
        """Count jobs of a tenant."""
        statement = "update tenants set queued = queued + ?, running = running + ? where name = ?"
        self._rows(statement, queued, running, tenant)

    def _debt(self, faded_s: float, faded_us: int, weight: float) -> float:
        """A number by which tenants are ordered as by `TenantShare.debt`, at every moment: log2 of it, less the
        half-lives since the epoch, which are the same for all."""
        if not faded_s > 0:
            return _NEVER
        return math.log2(faded_s / weight) + faded_us / _MICRO / self.half_life_s

    def _fading(self, age_us: int) -> float:
        return 2.0 ** (-age_us / _MICRO / self.half_life_s)

    def job(self, job: int) -> QueuedRun:
        """A job by its number. Raises DataError for one that is not there."""
        jobs = self._select("where id = ?", job)
        if not jobs:
            raise DataError(f"there is no job {job} in {self.database.name}")
        return jobs[0]

    def _select(self, where: str, *values: object) -> list[QueuedRun]:
        return [_read_job(row) for row in self._rows(f"select {_COLUMNS} from jobs {where}", *values)]

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self.database.rows(statement, values)

    @property
    def _lease_us(self) -> int:
        return round(self.lease_s * _MICRO)

    def _now_us(self) -> int:
        return round(self.clock.now_s() * _MICRO)


def _why(shares: Mapping[str, TenantShare], tenant: str) -> str:
    """A sentence on a job that waits."""
    own = shares[tenant]
    if own.slots and own.running >= own.slots:
        return f"{tenant} runs {own.running} jobs, the most that it may"
    ahead = [name for name, one in shares.items() if one.queued and one.debt < own.debt]
    return f"before it: {', '.join(ahead)}, with less use per weight" if ahead else "next of its tenant's"


def _read_use(row: Sequence[int]) -> ClaimUse:
    core_us, tokens, count, steps = row
    return ClaimUse(core_us=core_us, tokens=tokens, bytes=count, steps=steps)


def _read_job(row: Sequence[Any]) -> QueuedRun:
    id, tenant, name, command, *rest = row
    priority, state, token, worker, attempts, why = rest
    return QueuedRun(
        id=id, tenant=tenant, name=name, command=tuple(cast("list[str]", json.loads(command))),
        priority=priority, state=state, token=token, worker=worker, attempts=attempts, why=why,
    )  # fmt: skip
