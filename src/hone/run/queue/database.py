"""Where a queue is kept: a SQLite file for processes of a machine, or a PostgreSQL database for those of many hosts.

Statements are those that both understand, with `?` for each value. Writers take turns: a transaction sees what the last
one left, and is whole or not there, also after a kill.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from hone.core.errors import ConfigError, ResourceError
from hone.run.store.sqlite import open_database, transaction

if TYPE_CHECKING:
    import psycopg

Row: TypeAlias = tuple[Any, ...]
_SCHEMA: Final = """
create table if not exists settings (name text primary key, value double precision not null);
create table if not exists tenants (
    name text primary key, weight double precision not null default 1, slots bigint not null default 0,
    used_us bigint not null default 0, faded_s double precision not null default 0, faded_us bigint not null default 0,
    debt double precision not null default -1e300, queued bigint not null default 0, running bigint not null default 0,
    core_us bigint not null default 0, tokens bigint not null default 0, bytes bigint not null default 0,
    steps bigint not null default 0);
create table if not exists jobs (
    id {number}, tenant text not null, name text not null, command text not null, priority bigint not null,
    state text not null, submitted_us bigint not null, token bigint not null default 0,
    worker text not null default '', until_us bigint not null default 0, attempts bigint not null default 0,
    cancel bigint not null default 0, why text not null default '');
create index if not exists next_of_tenant on jobs (tenant, priority desc, id) where state = 'queued';
create index if not exists late on jobs (until_us) where state = 'running';
create table if not exists used (
    token {number}, job bigint not null, tenant text not null, from_us bigint not null, to_us bigint not null,
    core_us bigint not null default 0, tokens bigint not null default 0, bytes bigint not null default 0,
    steps bigint not null default 0);
create index if not exists used_of_job on used (job);
"""
_AMOUNTS: Final[dict[str, str]] = dict.fromkeys(("core_us", "tokens", "bytes", "steps"), "bigint not null default 0")
_ADDED: Final = {"tenants": _AMOUNTS, "used": _AMOUNTS}
"""Columns that queues of earlier versions lack."""
_AS_WRITER: Final = "select pg_advisory_xact_lock(1752133222)"
_WAIT_S: Final = 30


class QueueDatabase(Protocol):
    """A database with the queue's tables."""

    name: str
    """Its file, or its address without secrets."""

    def transaction(self) -> AbstractContextManager[None]:
        """The only writer's transaction. Raises ResourceError where it cannot be written."""
        ...

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Rows of a statement; of one without any, none."""
        ...

    def close(self) -> None: ...


def open_queue_database(address: str) -> QueueDatabase:
    """A path, or `postgresql://user:password@host/database`. Raises ConfigError without the extra `postgres`, and
    ResourceError where it cannot be opened."""
    if address.split("://")[0] not in ("postgres", "postgresql"):
        return SqliteQueue(Path(address))
    if find_spec("psycopg") is None:
        raise ConfigError(f"a queue at {address.split('://')[0]}:// needs psycopg: pip install 'hone-rl[postgres]'")
    database = PostgresQueue(address)
    with database.transaction():
        for statement in _SCHEMA.format(number="bigint generated always as identity primary key").split(";\n"):
            if statement.strip():
                database.rows(statement)
        for table, columns in _ADDED.items():
            for column, kind in columns.items():
                database.rows(f"alter table {table} add column if not exists {column} {kind}")
    return database


class SqliteQueue:
    """A file on a disk that all processes see."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._db: sqlite3.Connection = open_database(
            path, _SCHEMA.format(number="integer primary key autoincrement"), durable="kill", added=_ADDED
        )

    def transaction(self) -> AbstractContextManager[None]:
        """See `QueueDatabase`."""
        return transaction(self._db, f"the queue {self.name}")

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """See `QueueDatabase`."""
        return self._db.execute(statement, cast("Any", values)).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._db.close()


@dataclass(slots=True)
class PostgresQueue:
    """The schema `hone_queue` of a database. A connection that broke is opened again by the next call."""

    address: str
    name: str = field(init=False)
    _connection: "psycopg.Connection[Row] | None" = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        self.name = f"postgresql://{parts.hostname or ''}{parts.path}"

    @contextmanager
    def transaction(self) -> Generator[None]:
        """See `QueueDatabase`. A commit returns once the server has flushed it."""
        import psycopg  # noqa: PLC0415 - an extra

        try:
            connection = self._connected()
            with connection.transaction():
                connection.execute(_AS_WRITER)
                yield
        except psycopg.Error as error:
            words = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ResourceError(f"the queue {self.name} cannot be used: {words}") from None

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """See `QueueDatabase`."""
        cursor = self._connected().execute(_percent(statement), tuple(values))
        return cursor.fetchall() if cursor.description is not None else []

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> "psycopg.Connection[Row]":
        import psycopg  # noqa: PLC0415 - an extra

        if self._connection is None or self._connection.closed:
            connection = psycopg.connect(self.address, autocommit=True, connect_timeout=_WAIT_S)
            connection.execute("set client_min_messages to warning")
            connection.execute("create schema if not exists hone_queue")
            connection.execute("set search_path to hone_queue")
            connection.execute("set synchronous_commit to on")
            self._connection = connection
        return self._connection


@lru_cache(maxsize=256)
def _percent(statement: str) -> LiteralString:
    """The statement with psycopg's placeholders; its text is ours, every value is bound."""
    return cast("LiteralString", statement.replace("?", "%s"))
