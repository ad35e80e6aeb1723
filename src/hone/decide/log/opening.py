"""Addresses of decision logs (a file, PostgreSQL or Redis), and the log in a file of SQLite.

A decision log in one SQLite file, for the processes of one host.

Write-ahead log: a commit has left the process before it is acknowledged, so it survives the death of the process;
`full_sync` also flushes each commit, so that it survives a loss of power. Erased content is overwritten, not only
unlinked.
"""

import math
import secrets
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from hone.core.errors import ConfigError, DataError, ResourceError
from hone.decide.log.protocol import DecisionLog, StoredRow, log_name, without_secrets
from hone.decide.log.relational import NameRow, RelationalLog, Row, SharedParts, index_names
from hone.run.store.durable import DiskFullError, sync_path, writing

# --------------------------------------------------------------------------------------------------------------- sqlite


FORMAT: Final = 1
_WAIT_S: Final = 30.0
"""Seconds to wait for another writer."""
_TABLES: Final = """
create table if not exists log_meta (name text primary key, value blob) without rowid;
create table if not exists sources (
    id integer primary key, tenant text not null, name text not null,
    first integer not null default 0, watermark integer not null default -1, highest integer not null default -1,
    seen integer not null default 0, decisions integer not null default 0, outcomes integer not null default 0,
    repeated integer not null default 0, refused integer not null default 0, erased integer not null default 0,
    retired integer not null default 0, unique (tenant, name));
create table if not exists action_sets (id integer primary key autoincrement, digest blob unique, body blob);
create table if not exists labels (id integer primary key autoincrement, digest blob unique, body blob);
create table if not exists erased (id integer primary key autoincrement, digest blob unique);
create table if not exists records (
    position integer primary key autoincrement, source integer not null, seq integer not null, at_s real not null,
    decision text, unit text, actions integer, labels integer, body blob, unique (source, seq));
create table if not exists names (
    digest blob primary key, source integer not null, seq integer not null, told blob) without rowid;
create table if not exists leases (
    work text primary key, holder text not null, epoch integer not null, until_s real not null) without rowid;
create table if not exists learnt (
    work text not null, name text not null, number integer not null, body blob not null, primary key (work, name));
"""
_INSERT: Final = (
    "insert into records (source, seq, at_s, decision, unit, actions, labels, body) values (?, ?, ?, ?, ?, ?, ?, ?)"
)


def open_sqlite_log(path: Path, *, full_sync: bool = False) -> RelationalLog:
    """Open a log in a file, which is made if it is missing.

    Raises DataError if the file is something else, ResourceError if it cannot be opened or made.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
        connection.execute(f"pragma synchronous = {'full' if full_sync else 'normal'}")
        connection.execute("pragma secure_delete = on")
        connection.create_function("floor", 1, math.floor, deterministic=True)  # a build may leave it out
        session = SqliteSession(path, connection, _prepare(connection, path))
        with session.transaction(write=True):
            index_names(session)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        _raise_error(path, error)
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    sync_path(path.parent)
    return RelationalLog(session, SharedParts(session))


def _prepare(connection: sqlite3.Connection, path: Path) -> bytes:
    """Make or check the tables -> the salt of the log."""
    connection.execute("begin immediate")
    try:
        present = {row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")}
        if present and "log_meta" not in present:
            raise DataError(f"{path} is a database of something else: it has the tables {', '.join(sorted(present))}")
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        new = [("format", str(FORMAT).encode()), ("salt", secrets.token_bytes(16))]
        connection.executemany("insert or ignore into log_meta values (?, ?)", new)
        meta = dict(connection.execute("select name, value from log_meta"))
        if int(meta["format"]) != FORMAT:
            raise DataError(f"{path} is a log of format {int(meta['format'])}, this version of hone reads {FORMAT}")
        connection.execute("commit")
    except BaseException:
        connection.execute("rollback")
        raise
    return bytes(meta["salt"])


@dataclass(slots=True)
class SqliteSession:
    """Connection to a log's file."""

    path: Path
    connection: sqlite3.Connection
    salt: bytes
    lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def transaction(self, *, write: bool) -> Generator[None]:
        """Transaction of the only writer, or of a reader; see `DatabaseSession`."""
        with self.lock:
            try:
                self.connection.execute("begin immediate" if write else "begin")
                yield
                self.connection.execute("commit")
            except sqlite3.Error as error:
                self._roll_back()
                _raise_error(self.path, error)
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("rollback")

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run a statement -> its rows."""
        return self.connection.execute(statement, tuple(values)).fetchall()

    def run(self, statement: str, values: Sequence[object] = ()) -> None:
        """Run a statement without rows."""
        self.connection.execute(statement, tuple(values))

    def insert(self, rows: Sequence[StoredRow]) -> int:
        """Insert new records, in this order -> the position of the last one."""
        self.connection.executemany(_INSERT, rows)
        return int(self.connection.execute("select last_insert_rowid()").fetchone()[0]) if rows else 0

    def insert_names(self, rows: Sequence[NameRow]) -> int:
        """Insert names that are not there yet -> the number of those that were not."""
        if not rows:
            return 0
        return self.connection.executemany(
            "insert into names values (?, ?, ?, ?) on conflict do nothing", rows
        ).rowcount

    def overwrite_erased(self) -> None:
        """Empty the write-ahead log; deleted content of the file itself was overwritten. Raises ResourceError."""
        with self.lock:
            try:
                busy, *_ = self.connection.execute("pragma wal_checkpoint(truncate)").fetchone()
            except sqlite3.Error as error:
                _raise_error(self.path, error)
        if busy:
            raise ResourceError(
                f"erased from {self.path}, but its write-ahead log keeps the old bytes while another process reads; "
                "erase again when it is done"
            )

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            self.connection.close()


def _raise_error(path: Path, error: sqlite3.Error) -> NoReturn:
    code = error.sqlite_errorname if isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError) else ""
    match code:
        case "SQLITE_FULL":
            raise DiskFullError(
                f"no space left for {path}: nothing of this batch was stored; free some space and send it again"
            ) from error
        case "SQLITE_NOTADB" | "SQLITE_CORRUPT":
            raise DataError(f"{path} is not a decision log, or is damaged: {error}") from error
        case _:
            raise ResourceError(
                f"cannot use the decision log {path}: {error} ({code or type(error).__name__})"
            ) from error


# -------------------------------------------------------------------------------------------------------------- opening


def open_decision_log(address: str | Path, *, full_sync: bool = False) -> DecisionLog:
    """Open the log at an address: `decisions.db`, `postgresql://user@host/database`, `redis://host:6379/0`.

    A file is an SQLite database, made if it is missing. `full_sync` flushes each commit of a file, so that acknowledged
    records survive a loss of power too; servers do as they are set up. Raises ConfigError for an address of
    another kind, DataError if something else is stored there, ResourceError if it cannot be reached.
    """
    text = str(address)
    scheme, colon, _ = text.partition("://")
    if not colon:
        return open_sqlite_log(Path(address), full_sync=full_sync)
    try:
        if scheme in {"postgresql", "postgres"}:
            from hone.decide.log.postgres import open_postgres_log  # noqa: PLC0415 - an extra

            return open_postgres_log(text)
        if scheme in {"redis", "rediss"}:
            from hone.decide.log.redis_streams import open_redis_log  # noqa: PLC0415 - an extra

            return open_redis_log(text)
    except ImportError as error:
        extra = "postgres" if scheme.startswith("postgres") else "redis"
        raise ResourceError(
            f'a log at {scheme}:// needs {error.name}, which is not installed; pip install "hone-rl[{extra}]"'
        ) from error
    except ValueError as error:  # an address that its client cannot read
        raise ConfigError(f"{log_name(text)} is no address of a log: {without_secrets(error, text)}") from None
    raise ConfigError(f"unknown kind of decision log {scheme:.20}://; known: a path, postgresql://, redis://")
