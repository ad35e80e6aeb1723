"""Files of SQLite that several threads or processes change: opened with a journal beside them, and transactions."""

import sqlite3
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from hone.core.errors import ResourceError

BUSY_S: Final = 30.0
"""Seconds for which a writer waits for another one's transaction."""


def open_database(
    path: Path,
    schema: str,
    *,
    durable: Literal["kill", "power cut"],
    added: Mapping[str, Mapping[str, str]] | None = None,
) -> sqlite3.Connection:
    """A connection in autocommit mode, for one thread at a time. What was committed survives a kill of the process, or
    a power cut too, at the price of a wait for the disk.

    `added`: columns by table, with their declarations, that files of earlier versions lack. Raises ResourceError.
    """
    try:
        db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S, check_same_thread=False)
        db.execute("pragma journal_mode = wal")
        db.execute(f"pragma synchronous = {'normal' if durable == 'kill' else 'full'}")
        db.executescript(schema)
        for table, columns in (added or {}).items():
            present = {row[1] for row in db.execute(f"pragma table_info({table})")}
            for name in columns.keys() - present:
                db.execute(f"alter table {table} add column {name} {columns[name]}")
    except sqlite3.Error as error:
        raise ResourceError(f"cannot open {path}: {error}") from None
    return db


@contextmanager
def transaction(db: sqlite3.Connection, what: str) -> Generator[None]:
    """All statements inside, or none of them: an exception takes them back. Other writers wait meanwhile. Raises
    ResourceError, which names `what`, where the file cannot be written."""
    try:
        db.execute("begin immediate")
        yield
        db.execute("commit")
    except sqlite3.Error as error:
        if db.in_transaction:
            db.execute("rollback")
        raise ResourceError(f"{what} cannot be written: {error}") from None
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise
