"""A decision log in a PostgreSQL database, for the processes of several hosts. Needs the extra `postgres`.

The log's tables stand in the schema `hone_decisions`. Every commit waits until the server has flushed it
(`synchronous_commit = on`). Writers take turns by an advisory lock, so positions ascend in the order of commits. A
connection that breaks is opened again by the next call; the batch that it broke in can be sent again.
"""

import secrets
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, LiteralString, cast

import psycopg

from hone.core.errors import DataError, ResourceError
from hone.decide.log.protocol import StoredRow, log_name, without_secrets
from hone.decide.log.relational import NameRow, RelationalLog, Row, SharedParts, index_names
from hone.run.store.durable import DiskFullError

FORMAT: Final = 1
_AS_WRITER: Final = "select pg_advisory_xact_lock(1752133221)"  # "hone" in ASCII
_AS_READER: Final = "set transaction isolation level repeatable read, read only"
_WAIT_S: Final = 30
_TABLES: Final = """
create schema if not exists hone_decisions;
create table if not exists log_meta (name text primary key, value bytea);
create table if not exists sources (
    id bigint generated always as identity primary key, tenant text not null, name text not null,
    first bigint not null default 0, watermark bigint not null default -1, highest bigint not null default -1,
    seen bigint not null default 0, decisions bigint not null default 0, outcomes bigint not null default 0,
    repeated bigint not null default 0, refused bigint not null default 0, erased bigint not null default 0,
    retired bigint not null default 0, unique (tenant, name));
create table if not exists action_sets (id bigint generated always as identity primary key, digest bytea unique,
    body bytea);
create table if not exists labels (id bigint generated always as identity primary key, digest bytea unique, body bytea);
create table if not exists erased (id bigint generated always as identity primary key, digest bytea unique);
create table if not exists records (
    position bigint generated always as identity primary key, source bigint not null, seq bigint not null,
    at_s double precision not null, decision text, unit text, actions bigint, labels bigint, body bytea,
    unique (source, seq));
create table if not exists names (digest bytea primary key, source bigint not null, seq bigint not null, told bytea);
create table if not exists leases (
    work text primary key, holder text not null, epoch bigint not null, until_s double precision not null);
create table if not exists learnt (
    work text not null, name text not null, number bigint not null, body bytea not null, primary key (work, name));
"""
_INSERT: Final = """
insert into records (source, seq, at_s, decision, unit, actions, labels, body)
select source, seq, at_s, decision, unit, actions, labels, body from unnest(
    %s::bigint[], %s::bigint[], %s::double precision[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bytea[])
    with ordinality as new (source, seq, at_s, decision, unit, actions, labels, body, place) order by place
on conflict do nothing returning position
"""
_INSERT_NAMES: Final = """
insert into names (digest, source, seq, told)
select digest, source, seq, told from unnest(%s::bytea[], %s::bigint[], %s::bigint[], %s::bytea[])
    as new (digest, source, seq, told)
on conflict do nothing
"""


def open_postgres_log(address: str) -> RelationalLog:
    """Open the log of a database: `postgresql://user:password@host/database`.

    Raises DataError if the schema `hone_decisions` is another format, ResourceError if the server cannot be reached.
    """
    session = _PostgresSession(address)
    try:
        with session.transaction(write=True):
            session.salt = _prepare(session)
            index_names(session)
    except BaseException:
        session.close()
        raise
    return RelationalLog(session, SharedParts(session))


def _prepare(session: "_PostgresSession") -> bytes:
    """Make or check the tables -> the salt of the log."""
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            session.run(statement)
    for name, value in (("format", str(FORMAT).encode()), ("salt", secrets.token_bytes(16))):
        session.run("insert into log_meta values (?, ?) on conflict do nothing", (name, value))
    meta = {str(name): bytes(value) for name, value in session.rows("select name, value from log_meta")}
    if int(meta["format"]) != FORMAT:
        raise DataError(
            f"the schema hone_decisions at {session.name} is a log of format {int(meta['format'])}, "
            f"this version of hone reads {FORMAT}"
        )
    return meta["salt"]


@dataclass(slots=True)
class _PostgresSession:
    """Connection to a database that holds a log."""

    address: str
    salt: bytes = b""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _connection: psycopg.Connection[Row] | None = None

    @property
    def name(self) -> str:
        """The address without user, password and options."""
        return log_name(self.address)

    @contextmanager
    def transaction(self, *, write: bool) -> Generator[None]:
        """Transaction of the only writer, or of a reader; see `DatabaseSession`."""
        with self.lock:
            try:
                connection = self._connected()
                with connection.transaction():
                    connection.execute(_AS_WRITER if write else _AS_READER)
                    yield
            except (psycopg.errors.DiskFull, psycopg.errors.OutOfMemory) as error:
                raise DiskFullError(
                    f"no space left at {self.name}: nothing of this batch was stored; free some and send it again"
                ) from error
            except psycopg.Error as error:
                raise ResourceError(
                    f"cannot use the decision log {self.name}: {without_secrets(error, self.address)}; "
                    "acknowledged records are kept, send the batch again when the server answers"
                ) from error

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run a statement -> its rows."""
        return self._connected().execute(_percent(statement), tuple(values)).fetchall()

    def run(self, statement: str, values: Sequence[object] = ()) -> None:
        """Run a statement without rows."""
        self._connected().execute(_percent(statement), tuple(values))

    def insert(self, rows: Sequence[StoredRow]) -> int:
        """Insert new records, in this order -> the position of the last one."""
        if not rows:
            return 0
        made = self._connected().execute(_INSERT, [list(column) for column in zip(*rows, strict=True)]).fetchall()
        return int(made[-1][0])

    def insert_names(self, rows: Sequence[NameRow]) -> int:
        """Insert names that are not there yet -> the number of those that were not."""
        if not rows:
            return 0
        return self._connected().execute(_INSERT_NAMES, [list(column) for column in zip(*rows, strict=True)]).rowcount

    def overwrite_erased(self) -> None:
        """Rewrite the tables without erased rows. The server's write-ahead log and its backups age out on their own."""
        with self.lock:
            try:
                for table in ("records", "action_sets"):
                    self._connected().execute(_percent(f"vacuum (full) {table}"))
            except psycopg.Error as error:
                words = without_secrets(error, self.address)
                raise ResourceError(
                    f"erased from {self.name}, but its tables keep the old bytes: {words}; erase again"
                ) from error

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connected(self) -> psycopg.Connection[Row]:
        """The connection; a broken one is opened again."""
        if self._connection is None or self._connection.closed:
            connection = psycopg.connect(self.address, autocommit=True, connect_timeout=_WAIT_S)
            connection.execute("set synchronous_commit to on")
            connection.execute("set search_path to hone_decisions")
            connection.execute(_percent(f"set lock_timeout to '{_WAIT_S}s'"))
            connection.execute("set client_encoding to 'UTF8'")
            connection.execute("set client_min_messages to warning")
            self._connection = connection
        return self._connection


@lru_cache(maxsize=1024)
def _percent(statement: str) -> LiteralString:
    """The statement with psycopg's placeholders; its text is ours, every value is bound."""
    return cast("LiteralString", statement.replace("?", "%s"))
