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
from hone.run.store.durable import writing
from hone.run.store.sqlite import open_database, transaction

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
        """The connection. Raises ResourceError for a file that cannot be used."""
        if self._connection is None:
            with writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = open_database(self.path, _TABLES, durable="kill")
        return self._connection

    def add_matches(self, step: int, played: Sequence[PlayedMatch]) -> None:
        """Write matches, each once, in one transaction. Raises ResourceError."""
        connection = self.open()
        rows = [(one.number, step, json.dumps(one.players), json.dumps(one.returns), one.steps) for one in played]
        with transaction(connection, str(self.path)):
            before = connection.total_changes
            connection.executemany("insert or ignore into matches values (?, ?, ?, ?, ?)", rows)
            self.duplicates += len(rows) - (connection.total_changes - before)

    def add(self, table: str, rows: Sequence[Sequence[float | str]]) -> None:
        """Write rows of another table; those with the same key are replaced. Raises ResourceError."""
        assert table in TABLES
        connection = self.open()
        with transaction(connection, str(self.path)):
            for row in rows:
                places = ", ".join("?" * len(row))
                connection.execute(f"insert or replace into {table} values ({places})", tuple(row))

    def rows(self, table: str) -> list[tuple[float | str, ...]]:
        """All rows of a table, in the order of its key. Raises ResourceError."""
        assert table in TABLES
        return list(self.open().execute(f"select * from {table} order by 1, 2"))

    def count(self) -> int:
        """Matches written. Raises ResourceError."""
        return int(self.open().execute("select count(*) from matches").fetchone()[0])

    def forget_after(self, step: int, *, first_match: int) -> None:
        """Remove what steps after `step` wrote, and matches from `first_match` on: a resumed run plays them again."""
        connection = self.open()
        with transaction(connection, str(self.path)):
            connection.execute("delete from matches where number >= ?", (first_match,))
            for table in TABLES[1:]:
                connection.execute(f"delete from {table} where step > ?", (step,))

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
