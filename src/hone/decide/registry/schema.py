"""Tables of the registry's database, and its transactions.

Belongs here: SQL that makes tables, opening, and errors of SQLite as errors of hone. Every change is one transaction
with `synchronous = FULL`: after a kill or a power loss the database holds the state before it, or the state after it.
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from hone.core.errors import DataError, ResourceError

FORMAT = 1
BUSY_S = 5.0
"""Seconds to wait for another process's transaction."""

_TABLES = (
    """create table versions (
        id text primary key, code text not null, config text not null, parent text not null, view text not null,
        seeds text not null, at_s real not null, made_by text not null) without rowid""",
    """create table files (
        version text not null references versions, path text not null, sha256 text not null,
        size_bytes integer not null, primary key (version, path)) without rowid""",
    """create table evidence (
        number integer primary key, version text not null references versions, kind text not null,
        verdict text not null, words text not null, value real, low real, high real, count integer not null,
        made_by text not null, at_s real not null)""",
    """create table stages (
        service text not null, version text not null references versions, stage text not null,
        primary key (service, version)) without rowid""",
    "create unique index one_live on stages (service) where stage = 'live'",
    """create table moves (
        number integer primary key, service text not null, version text not null references versions,
        before text not null, after text not null, replaced text not null, at_s real not null, made_by text not null,
        reason text not null)""",
    """create table journal (
        service text not null, rollout text not null, seq integer not null, entry text not null,
        primary key (service, rollout, seq)) without rowid""",
)
_APPEND_ONLY = tuple(
    f"create trigger {table}_no_{verb} before {verb} on {table} "
    f"begin select raise(abort, '{table} is append-only'); end"
    for table in ("versions", "files", "evidence", "moves", "journal")
    for verb in ("update", "delete")
)


def create_database(path: Path) -> None:
    """Make the tables, unless they are there. Raises DataError and ResourceError."""
    with transaction(path, create=True) as connection:
        if connection.execute("pragma user_version").fetchone()[0] == 0:
            for statement in (*_TABLES, *_APPEND_ONLY, f"pragma user_version = {FORMAT}"):
                connection.execute(statement)


@contextmanager
def transaction(path: Path, *, create: bool = False) -> Generator[sqlite3.Connection]:
    """One transaction on the database; committed at the block's end, undone by an error. Raises as `reading`."""
    with reading(path, create=create) as connection:
        connection.execute("begin immediate")
        try:
            yield connection
        except BaseException:
            connection.execute("rollback")
            raise
        connection.execute("commit")


@contextmanager
def reading(path: Path, *, create: bool = False) -> Generator[sqlite3.Connection]:
    """Connection to the database for the block. Raises ResourceError if it cannot be reached, DataError if damaged."""
    if not create and not path.is_file():
        raise DataError(f"no registry at {path.parent}; `hone ship` makes one, or name its folder")
    mode = "rwc" if create else "rw"
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", timeout=BUSY_S, uri=True)
        ) as connection:
            connection.isolation_level = None
            connection.execute("pragma synchronous = full")
            connection.execute("pragma foreign_keys = on")
            found = connection.execute("pragma user_version").fetchone()[0]
            if found > FORMAT:
                raise DataError(f"{path} has format {found}, this hone reads {FORMAT}; use the hone that wrote it")
            yield connection
    except sqlite3.OperationalError as error:
        raise ResourceError(f"cannot reach the registry {path}: {error}; is its disk there and not full?") from error
    except sqlite3.DatabaseError as error:
        raise DataError(f"the registry {path} is damaged: {error}; restore it from a copy") from error
