"""The spool of a robot: records that were not acknowledged yet, in an SQLite file of bounded size.

A record is written before `append` returns, and deleted once the service has acknowledged it, so that a kill, an hour
without network or a lost answer loses nothing and doubles nothing: the service knows each record by its source and
number. A full spool drops its oldest records and counts them; their numbers are never given out again, and the service
is told which numbers will not come. Records that the service refused are set aside, so that they hold nobody up.
"""

import json
import secrets
import sqlite3
import threading
import zlib
from collections.abc import Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hone.core.errors import DataError, ResourceError
from hone.core.robot_steps import RobotSchema

FORMAT: Final = 1
STEP, EPISODE = 0, 1
MOST_ASIDE: Final = 10_000
"""Refused records that are kept to be looked at."""
_TABLES: Final = """
create table if not exists meta (name text primary key, value text not null) without rowid;
create table if not exists schemas (hash text primary key, body text not null) without rowid;
create table if not exists records (
    seq integer primary key autoincrement, kind integer not null, schema text not null, body blob not null);
create table if not exists aside (
    seq integer primary key, kind integer not null, schema text not null, body blob not null, reason text not null);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledBatch:
    """Records that are sent together."""

    seqs: tuple[int, ...]
    body: bytes
    """A line of JSON, then the records of the steps."""


@dataclass(slots=True)
class RobotSpool:
    """An open spool. Threads may share it. Made by `open_spool`."""

    path: Path
    capacity: int
    """Records that it holds at most."""
    connection: sqlite3.Connection
    lock: threading.RLock
    next_seq: int = 0
    waiting: int = 0
    """Records that wait to be acknowledged."""

    @contextmanager
    def transaction(self) -> Generator[None]:
        """One transaction; undone if the block raises. Raises ResourceError if the file cannot be written."""
        with self.lock:
            before = self.next_seq, self.waiting
            try:
                self.connection.execute("begin immediate")
                yield
                self.connection.execute("commit")
            except BaseException as error:
                self.next_seq, self.waiting = before
                if self.connection.in_transaction:
                    self.connection.execute("rollback")
                if isinstance(error, sqlite3.Error):
                    raise ResourceError(f"cannot write the spool {self.path}: {error}") from error
                raise

    def append(self, kind: int, schema: RobotSchema, body: bytes) -> int:
        """Store a record inside a transaction -> its number. The oldest records make room in a full spool.

        The first 8 bytes of a step's body are its number, which the caller took from `next_seq`.
        """
        if self.waiting >= self.capacity:
            self._drop(max(1, self.capacity // 100))
        seq, run = self.next_seq, self.connection.execute
        row = (seq, kind, schema.hash, body)
        try:
            run("insert into records values (?, ?, ?, ?)", row)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_FULL" or not self.waiting:
                raise
            self._drop(max(1, self.waiting // 10))
            run("insert into records values (?, ?, ?, ?)", row)
        self.next_seq, self.waiting = seq + 1, self.waiting + 1
        return seq

    def add_schema(self, schema: RobotSchema) -> None:
        """Remember the names of a schema's numbers."""
        with self.transaction():
            self.connection.execute("insert or ignore into schemas values (?, ?)", (schema.hash, schema.as_json()))

    def _drop(self, count: int) -> None:
        """Drop the oldest records, and count them."""
        seqs = [row[0] for row in self.connection.execute("select seq from records order by seq limit ?", (count,))]
        self.connection.execute("delete from records where seq <= ?", (seqs[-1],))
        self.waiting -= len(seqs)
        self.put({"dropped": str(int(self.get("dropped", "0")) + len(seqs)), "begin": str(seqs[-1] + 1)})

    def get(self, name: str, default: str = "") -> str:
        """A remembered text."""
        with self.lock:
            row = self.connection.execute("select value from meta where name = ?", (name,)).fetchone()
        return default if row is None else str(row[0])

    def put(self, texts: Mapping[str, str]) -> None:
        """Remember texts, inside a transaction or by themselves."""
        with self.lock:
            self.connection.executemany("insert or replace into meta values (?, ?)", list(texts.items()))

    def batch(self, robot: str, most: int) -> SpooledBatch | None:
        """The oldest records of one schema, at most `most`; None: nothing waits. It stays until it is settled."""
        with self.lock:
            rows = self.connection.execute(
                "select seq, kind, schema, body from records order by seq limit ?", (most,)
            ).fetchall()
            if not rows:
                return None
            named = rows[0][2]
            (schema,) = self.connection.execute("select body from schemas where hash = ?", (named,)).fetchone()
        rows = [row for row in rows if row[2] == named]
        steps = b"".join(row[3] for row in rows if row[1] == STEP)
        header = {
            "robot": robot, "instance": self.get("instance"), "schema": json.loads(schema),
            "begin": int(self.get("begin", "0")), "steps": sum(row[1] == STEP for row in rows),
            "crc32": zlib.crc32(steps),
            "episodes": [{**json.loads(row[3]), "seq": row[0]} for row in rows if row[1] == EPISODE],
        }  # fmt: skip
        return SpooledBatch(
            seqs=tuple(row[0] for row in rows), body=json.dumps(header, separators=(",", ":")).encode() + b"\n" + steps
        )

    def settle(self, seqs: Sequence[int], refused: Sequence[tuple[int, str]]) -> None:
        """Forget acknowledged records; those that were refused, each with its reason, are set aside."""
        with self.transaction():
            run = self.connection.execute
            run("create temp table if not exists settled (seq integer primary key)")
            run("delete from temp.settled")
            self.connection.executemany("insert or ignore into temp.settled values (?)", [(seq,) for seq in seqs])
            for seq, reason in refused:
                run("insert or ignore into aside select seq, kind, schema, body, ? from records where seq = ?",
                    (reason, seq))  # fmt: skip
            gone = run("delete from records where seq in (select seq from temp.settled)").rowcount
            run("delete from aside where seq not in (select seq from aside order by seq desc limit ?)", (MOST_ASIDE,))
            self.waiting -= gone
            if refused:  # their numbers will not come
                (lowest,) = run("select coalesce(min(seq), ?) from records", (self.next_seq,)).fetchone()
                count = int(self.get("refused", "0")) + len(refused)
                self.put({"refused": str(count), "begin": str(lowest)})

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        with self.lock:
            self.connection.close()


def open_tables(path: Path, tables: str, *, known: Set[str], wait_s: float, full_sync: bool) -> sqlite3.Connection:
    """A connection to a file with these tables, which are made where there are none. `known`: some of their names.

    Raises DataError if the file has other tables, and sqlite3.Error.
    """
    connection = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {'full' if full_sync else 'normal'}")
    present = {row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")}
    if present and not known <= present:
        connection.close()
        raise DataError(f"{path} is a database of something else: it has the tables {', '.join(sorted(present))}")
    for statement in tables.split(";\n"):
        connection.execute(statement)
    return connection


def open_spool(path: Path, *, capacity: int, full_sync: bool = False) -> RobotSpool:
    """Open a spool, or make one. `full_sync` flushes each record, so that it survives a loss of power too.

    Raises DataError if the file is something else, ResourceError if it cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = open_tables(path, _TABLES, known={"meta", "records", "aside"}, wait_s=10.0, full_sync=full_sync)
        meta = [("format", str(FORMAT)), ("instance", secrets.token_hex(4))]
        connection.executemany("insert or ignore into meta values (?, ?)", meta)
        (count,) = connection.execute("select count(*) from records").fetchone()
        last = connection.execute("select seq from sqlite_sequence where name = 'records'").fetchone()
    except sqlite3.OperationalError as error:
        raise ResourceError(f"cannot use the spool {path}: {error}; is its disk there and not full?") from error
    except sqlite3.DatabaseError as error:
        raise DataError(f"{path} is no spool, or is damaged: {error}; move it away, and a new one is made") from error
    except OSError as error:
        raise ResourceError(f"cannot open the spool {path}: {error}") from error
    next_seq = 0 if last is None else int(last[0]) + 1
    return RobotSpool(path, capacity, connection, threading.RLock(), next_seq=next_seq, waiting=count)
