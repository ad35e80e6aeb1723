"""The service's memory: sessions, models, samplers, checkpoints and requests, in one SQLite file.

Every change is one transaction that is on the disk (WAL, synchronous = FULL) before the caller hears of it. So a
request that was acknowledged survives the process, and (owner, seq) is unique: a repeated one gets the first one's id.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar, cast

from hone.core.errors import DataError, ResourceError
from hone.core.strict_json import Json
from hone.run.store.sqlite import open_database, transaction

_SCHEMA: Final = """
create table if not exists sessions (
    id text primary key, tenant text not null, created_s real not null, beat_s real not null, finished text,
    tags text not null, metadata text, project text, display_name text);
create table if not exists models (
    id text primary key, session text not null, tenant text not null, base text not null, rank integer not null,
    seed integer not null, attention integer not null, mlp integer not null, output integer not null, metadata text,
    created_s real not null, used_s real not null, snapshot_seq integer not null default -1,
    copied integer not null default 0);
create table if not exists samplers (
    id text primary key, session text not null, tenant text not null, path text, folder text, model text,
    created_s real not null);
create table if not exists checkpoints (
    path text primary key, model text not null, tenant text not null, kind text not null, name text not null,
    folder text not null, created_s real not null, size_bytes integer not null, public integer not null default 0,
    expires_s real, metadata text);
create table if not exists requests (
    id text primary key, tenant text not null, owner text not null, seq integer not null, kind text not null,
    digest text not null, body blob not null, state text not null, result blob, media text, category text,
    came_s real not null, done_s real, changes integer not null, unique (owner, seq));
create index if not exists waiting on requests (state, owner, seq);
create table if not exists claims (number integer primary key);
create table if not exists hourly (tenant text not null, owner text not null, hour_s integer not null,
    what text not null, amount real not null, primary key (tenant, owner, hour_s, what));
"""
_ADDED: Final = {"models": {"copied": "integer not null default 0"}}
CheckpointKind: TypeAlias = Literal["training", "sampler", "external"]
_HOUR_S: Final = 3600
RequestState: TypeAlias = Literal["queued", "done", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A client's session."""

    id: str
    tenant: str
    created_s: float
    beat_s: float
    finished: str | None
    tags: str
    metadata: str | None
    project: str | None
    display_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A model in training."""

    id: str
    session: str
    tenant: str
    base: str
    rank: int
    seed: int
    attention: int
    mlp: int
    output: int
    metadata: str | None
    created_s: float
    used_s: float
    snapshot_seq: int = -1
    """Number of the last request whose effect the newest snapshot on the disk holds; -1: there is none."""
    copied: int = 0
    """Whether it only holds a copy of another model's checkpoint, and takes no requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRecord:
    """A sampler: of the base, of a checkpoint's folder, or of a model as it is at each request."""

    id: str
    session: str
    tenant: str
    path: str | None
    folder: str | None
    model: str | None
    created_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint of a model."""

    path: str
    model: str
    tenant: str
    kind: str
    name: str
    folder: str
    created_s: float
    size_bytes: int
    public: int = 0
    expires_s: float | None = None
    metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A request that was acknowledged, and its result once there is one."""

    id: str
    tenant: str
    owner: str
    seq: int
    kind: str
    digest: str
    body: bytes
    state: str
    result: bytes | None
    media: str | None
    category: str | None
    came_s: float
    done_s: float | None
    changes: int
    """Whether it changes its model, so that a restart has to do it again behind the last snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """Result of a request, and what else it brought about, all of it in one transaction."""

    result: bytes
    media: str
    category: str | None = None
    """None: it went well; else whose fault it was: `user` or `server`."""
    checkpoint: CheckpointRecord | None = None
    sampler: SamplerRecord | None = None
    usage: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class HourlyUsage:
    """An amount that a model or sampler of a tenant used in an hour: tokens, or core-seconds."""

    tenant: str
    owner: str
    hour_s: int
    what: str
    amount: float


RecordT = TypeVar("RecordT", SessionRecord, ModelRecord, SamplerRecord, CheckpointRecord, RequestRecord)
_TABLES: Final[Mapping[type, str]] = {
    SessionRecord: "sessions",
    ModelRecord: "models",
    SamplerRecord: "samplers",
    CheckpointRecord: "checkpoints",
    RequestRecord: "requests",
}


class Ledger:
    """The file. Safe for threads."""

    def __init__(self, path: Path, claim: int = 0) -> None:
        """`claim`: the fencing token of a queue's job. From now on processes with a lower one write nothing into the
        file; those without one (0) are not asked. Raises ResourceError where the file cannot be opened, and for a claim
        that a higher one has followed."""
        self._lock = threading.RLock()
        self._db = open_database(path, _SCHEMA, durable="power cut", added=_ADDED)
        self._claim = claim
        if claim:
            with self._transaction():
                self._db.execute("insert or ignore into claims values (?)", (claim,))

    def check_claim(self) -> None:
        """Raises ResourceError where a later claim has taken the file over."""
        if not self._claim:
            return
        with self._lock:
            latest = self._db.execute("select coalesce(max(number), 0) from claims").fetchone()[0]
        if latest > self._claim:
            raise ResourceError(f"claim {self._claim} was followed by claim {latest}: this process writes nothing more")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # -------------------------------------------------------------------------------------------- records

    def insert(self, record: SessionRecord | ModelRecord | SamplerRecord | CheckpointRecord) -> None:
        """Write a record, in place of one with its key."""
        with self._transaction():
            self._insert(record)

    def find(self, kind: type[RecordT], key: str) -> RecordT | None:
        """The record of a key; None if there is none."""
        name = "path" if kind is CheckpointRecord else "id"
        return next(iter(self._select(kind, f"where {name} = ?", key)), None)

    def records(self, kind: type[RecordT], equal: Mapping[str, str]) -> list[RecordT]:
        """Records with these values, by column, the oldest first."""
        where = " and ".join(f"{name} = ?" for name in equal) or "1"
        order = "came_s" if kind is RequestRecord else "created_s"
        return self._select(kind, f"where {where} order by {order}, rowid", *equal.values())

    def page(self, kind: type[RecordT], tenant: str, *, limit: int, offset: int) -> tuple[list[RecordT], int]:
        """Some of a tenant's records, the newest first, and how many it has."""
        records = self._select(
            kind, "where tenant = ? order by created_s desc, rowid desc limit ? offset ?", tenant, limit, offset
        )
        with self._lock:
            (count,) = self._db.execute(f"select count(*) from {_TABLES[kind]} where tenant = ?", (tenant,)).fetchone()
        return records, count

    def change(self, kind: type[RecordT], key: str, values: Mapping[str, str | float | None]) -> None:
        """Set columns of a record."""
        name = "path" if kind is CheckpointRecord else "id"
        assignments = ", ".join(f"{column} = ?" for column in values)
        with self._transaction():
            self._db.execute(f"update {_TABLES[kind]} set {assignments} where {name} = ?", (*values.values(), key))

    def delete(self, kind: type[RecordT], key: str) -> None:
        """Remove a record."""
        name = "path" if kind is CheckpointRecord else "id"
        with self._transaction():
            self._db.execute(f"delete from {_TABLES[kind]} where {name} = ?", (key,))

    # ------------------------------------------------------------------------------------------- requests

    def accept(self, request: RequestRecord, model: ModelRecord | None = None) -> tuple[RequestRecord, bool]:
        """Write a request, with the model that it makes, or that it uses now; returns it and True. The earlier request
        with its owner and number, and False, where there is one. Raises DataError if that asked for something else."""
        with self._transaction():
            if model is None:
                self._db.execute("update models set used_s = ? where id = ?", (request.came_s, request.owner))
            earlier = self._select(RequestRecord, "where owner = ? and seq = ?", request.owner, request.seq)
            if earlier:
                if earlier[0].digest != request.digest:
                    raise DataError(f"number {request.seq} of {request.owner} was used for another request")
                return earlier[0], False
            self._insert(request)
            if model is not None:
                self._insert(model)
            return request, True

    def finish(self, request: RequestRecord, outcome: RequestResult, now_s: float) -> None:
        """Write the outcome of a request."""
        state: RequestState = "done" if outcome.category is None else "failed"
        changes = request.changes if state == "done" else 0
        body = request.body if changes else b""
        with self._transaction():
            self._db.execute(
                "update requests set state = ?, result = ?, media = ?, category = ?, done_s = ?, changes = ?, body = ? "
                "where id = ?",
                (state, outcome.result, outcome.media, outcome.category, now_s, changes, body, request.id),
            )
            for record in (outcome.checkpoint, outcome.sampler):
                if record is not None:
                    self._insert(record)
            for what, amount in (outcome.usage or {}).items():
                self._db.execute(
                    "insert into hourly values (?, ?, ?, ?, ?) "
                    "on conflict do update set amount = amount + excluded.amount",
                    (request.tenant, request.owner, int(now_s // _HOUR_S * _HOUR_S), what, amount),
                )

    def queued(self) -> list[RequestRecord]:
        """Requests without a result, each owner's in order."""
        return self._select(RequestRecord, "where state = 'queued' order by owner, seq")

    def changes_after(self, model: str, seq: int) -> list[RequestRecord]:
        """Finished requests that changed a model after number `seq`, in order."""
        return self._select(
            RequestRecord, "where owner = ? and seq > ? and changes = 1 and state = 'done' order by seq", model, seq
        )

    def last_seq(self, owner: str) -> int:
        """Largest number of the owner's requests with a result; -1 without any."""
        with self._lock:
            query = "select coalesce(max(seq), -1) from requests where owner = ? and state != 'queued'"
            return int(self._db.execute(query, (owner,)).fetchone()[0])

    def note_snapshot(self, model: str, seq: int) -> None:
        """A snapshot holds the effects up to `seq`: the bodies of those requests are not needed any more."""
        with self._transaction():
            self._db.execute("update models set snapshot_seq = ? where id = ?", (seq, model))
            query = "update requests set body = x'', changes = 0 where owner = ? and seq <= ? and state = 'done'"
            self._db.execute(query, (model, seq))

    def forget_results(self, before_s: float) -> None:
        """Drop results that were ready before a time. Their requests stay, so that they are not done again."""
        with self._transaction():
            self._db.execute("update requests set result = null where done_s < ? and result is not null", (before_s,))

    def usage(self) -> dict[tuple[str, str], float]:
        """Amounts by tenant and kind: tokens, steps and core-seconds."""
        with self._lock:
            rows = self._db.execute("select tenant, what, sum(amount) from hourly group by 1, 2")
            return {(tenant, what): amount for tenant, what, amount in rows}

    def hourly_usage(self, begin_s: float, end_s: float) -> list[HourlyUsage]:
        """Amounts of hours that begin in a span, in their order."""
        columns = "tenant, owner, hour_s, what, amount"
        query = f"select {columns} from hourly where hour_s >= ? and hour_s < ? order by hour_s, tenant, owner, what"
        with self._lock:
            return [HourlyUsage(*row) for row in self._db.execute(query, (begin_s, end_s))]

    # ---------------------------------------------------------------------------------------------- parts

    def _select(self, kind: type[RecordT], where: str, *values: str | float) -> list[RecordT]:
        names = [one.name for one in fields(kind)]
        with self._lock:
            rows = self._db.execute(f"select {', '.join(names)} from {_TABLES[kind]} {where}", values)
            return [kind(**dict(zip(names, row, strict=True))) for row in rows]

    def _insert(self, record: object) -> None:
        names = [one.name for one in fields(cast("SessionRecord", record))]
        values = astuple(cast("SessionRecord", record))
        marks = ", ".join("?" * len(names))
        self._db.execute(
            f"insert or replace into {_TABLES[type(record)]} ({', '.join(names)}) values ({marks})",
            values,
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, transaction(self._db, "the service's ledger"):
            self.check_claim()
            yield


def from_text(text: str | None) -> Json:
    """The value of a column of JSON; None for none."""
    return None if text is None else json.loads(text)
