"""The record of a league in the run's folder, in SQLite: matches, payoffs, ratings, weights, exploitability.

A match is written once, by its number: what comes again changes nothing. A run that is resumed from an earlier step
forgets what came after it, and plays it again.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hone.control.seats.whole_matches import PlayedMatch
from hone.core.errors import DataError, ResourceError

FILE = "league.db"
_TABLES = """
create table if not exists matches (number integer primary key, step integer not null, players text not null,
    returns text not null, steps integer not null);
create table if not exists members (member text primary key, step integer not null, role text not null);
create table if not exists payoffs (step integer not null, one text not null, other text not null,
    score real not null, primary key (one, other));
create table if not exists weights (step integer not null, member text not null, weight real not null,
    primary key (step, member));
create table if not exists ratings (step integer not null, member text not null, mean real not null,
    deviation real not null, primary key (step, member));
create table if not exists figures (step integer not null, name text not null, value real not null,
    primary key (step, name));
"""
TABLES = ("matches", "members", "payoffs", "weights", "ratings", "figures")


@dataclass(kw_only=True)
class MatchLog:
    """One file of a run."""

    path: Path
    duplicates: int = 0
    """Matches that were there already."""
    _connection: sqlite3.Connection | None = field(default=None, repr=False)

    def open(self) -> sqlite3.Connection:
        """The connection. Raises ResourceError for a file that cannot be written, DataError for one that is none."""
        if self._connection is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
                self._connection.execute("pragma journal_mode = wal")
                self._connection.execute("pragma synchronous = normal")
                self._connection.executescript(_TABLES)
            except sqlite3.DatabaseError as error:
                kind = ResourceError if isinstance(error, sqlite3.OperationalError) else DataError
                raise kind(f"{self.path}: cannot be used as the record of a league: {error}") from error
            except OSError as error:
                raise ResourceError(f"{self.path}: cannot be written: {error}") from error
        return self._connection

    def add_matches(self, step: int, played: Sequence[PlayedMatch]) -> None:
        """Write matches, each once, in one transaction."""
        rows = [(one.number, step, json.dumps(one.players), json.dumps(one.returns), one.steps) for one in played]
        with self.open() as connection:
            connection.execute("begin")
            before = connection.total_changes
            connection.executemany("insert or ignore into matches values (?, ?, ?, ?, ?)", rows)
            self.duplicates += len(rows) - (connection.total_changes - before)

    def add(self, table: str, rows: Sequence[Sequence[float | str]]) -> None:
        """Write rows of another table; those with the same key are replaced."""
        assert table in TABLES
        with self.open() as connection:
            connection.execute("begin")
            for row in rows:
                connection.execute(f"insert or replace into {table} values ({', '.join('?' * len(row))})", tuple(row))

    def rows(self, table: str) -> list[tuple[float | str, ...]]:
        """All rows of a table, in the order of its key."""
        assert table in TABLES
        return list(self.open().execute(f"select * from {table} order by 1, 2"))

    def count(self) -> int:
        """Matches written."""
        return int(self.open().execute("select count(*) from matches").fetchone()[0])

    def forget_after(self, step: int, *, first_match: int) -> None:
        """Remove what steps after `step` wrote, and matches from `first_match` on: a resumed run plays them again."""
        with self.open() as connection:
            connection.execute("begin")
            connection.execute("delete from matches where number >= ?", (first_match,))
            for table in TABLES[1:]:
                connection.execute(f"delete from {table} where step > ?", (step,))

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
