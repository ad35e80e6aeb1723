"""Addresses of feature stores (a file or Redis), and the store in a file of SQLite, for the processes of one host."""

import sqlite3
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from hone.core.errors import ConfigError, DataError, ResourceError
from hone.decide.gateway.feature_store import EntityKey, FeatureRow, FeatureStore, StoredFeature, StoredRows
from hone.run.store.durable import writing

# --------------------------------------------------------------------------------------------------------------- sqlite


_TABLE: Final = """create table if not exists features (
    tenant text not null, grouped text not null, entity text not null, name text not null, value, at_s real not null,
    primary key (tenant, grouped, entity, name)) without rowid"""
_PUT: Final = """insert into features values (?, ?, ?, ?, ?, ?) on conflict do update
    set value = excluded.value, at_s = excluded.at_s where excluded.at_s >= at_s"""
_REMOVE: Final = "delete from features where tenant = ? and grouped = ? and entity = ? and name = ? and at_s <= ?"
_ERASE: Final = "delete from features where tenant = ? and grouped = ? and entity = ?"
_HELD: Final = "select 1 from features where tenant = ? and entity = ? limit 1"
_READ: Final = "select name, value, at_s from features where tenant = ? and grouped = ? and entity = ?"


def _open_sqlite(address: str, wait_s: float) -> "_SqliteFeatures":
    path = Path(address)
    if address != ":memory:":
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    connect = partial(sqlite3.connect, address, timeout=wait_s, isolation_level=None, check_same_thread=False)
    try:
        connection = connect()
        try:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma secure_delete = on")
            present = {row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")}
            if present - {"features"}:
                raise DataError(
                    f"{path} is a database of something else: it has the tables {', '.join(sorted(present))}"
                )
            connection.execute(_TABLE)
            reading = connection if address == ":memory:" else connect()
        except BaseException:
            connection.close()
            raise
    except sqlite3.DatabaseError as error:
        raise ResourceError(f"cannot open the feature store {path}: {error}") from error
    writing_lock = threading.Lock()
    reading_lock = writing_lock if reading is connection else threading.Lock()
    return _SqliteFeatures(address, (reading, reading_lock), (connection, writing_lock))


_Locked: TypeAlias = tuple[sqlite3.Connection, threading.Lock]


@dataclass(slots=True)
class _SqliteFeatures:
    """A `FeatureStore` in a file of SQLite, for the processes of one host."""

    name: str
    reading: _Locked
    """A connection of its own: no read waits for rows that are put. In memory there is one."""
    writing: _Locked

    @contextmanager
    def _transaction(self, locked: _Locked, begin: str) -> Generator[sqlite3.Connection]:
        connection, lock = locked
        with lock:
            try:
                connection.execute(begin)
                yield connection
                connection.execute("commit")
            except BaseException as error:
                if connection.in_transaction:
                    connection.execute("rollback")
                if isinstance(error, sqlite3.Error):
                    raise ResourceError(f"cannot use the feature store {self.name}: {error}") from error
                raise

    def read(self, wanted: Mapping[EntityKey, Sequence[str]]) -> StoredRows:
        """Values of entities; see `FeatureStore`."""
        with self._transaction(self.reading, "begin") as connection:
            return {
                key: {
                    name: StoredFeature(value, at_s)
                    for name, value, at_s in connection.execute(_READ, key) if name in names
                }
                for key, names in wanted.items()
            }  # fmt: skip

    def put(self, rows: Sequence[FeatureRow]) -> None:
        """Store values, all or none; see `FeatureStore`."""
        values = [(*row.key, name, value, row.at_s) for row in rows for name, value in row.values.items()]
        with self._transaction(self.writing, "begin immediate") as connection:
            for *place, value, at_s in values:
                if value is None:
                    connection.execute(_REMOVE, (*place, at_s))
                else:
                    connection.execute(_PUT, (*place, value, at_s))

    def erase(self, keys: Sequence[EntityKey]) -> int:
        """Remove entities, and overwrite their bytes; see `FeatureStore`."""
        with self._transaction(self.writing, "begin immediate") as connection:
            erased = sum(connection.execute(_ERASE, key).rowcount for key in keys)
        connection, lock = self.writing
        with lock:
            busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
        if busy:
            raise ResourceError(
                f"erased from the feature store {self.name}, but its write-ahead log keeps the old bytes while another "
                "process reads; erase again"
            )
        return erased

    def close(self) -> None:
        """Close the connections."""
        for connection, lock in (self.reading, self.writing):
            with lock:
                connection.close()


def stores_with(folder: Path, tenant: str, entity: str) -> list[str]:
    """Names of the feature stores in a service's folder that hold something of an entity."""
    names: list[str] = []
    for path in sorted(folder.glob("*.db")):
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                held = connection.execute(_HELD, (tenant, entity)).fetchone()
        except sqlite3.DatabaseError:  # something else than a feature store
            continue
        if held:
            names.append(path.name)
    return names


# -------------------------------------------------------------------------------------------------------------- opening


def open_feature_store(address: str, *, wait_s: float) -> FeatureStore:
    """Open the store at an address: a file of SQLite, `:memory:`, or `redis://host:6379/0`, which need not answer yet.

    `wait_s`: longest wait for the store in one read or put. Raises ConfigError for an address of another kind,
    DataError if the file is something else, ResourceError if it cannot be opened or the extra is not installed.
    """
    scheme, colon, _ = address.partition("://")
    if not colon:
        return _open_sqlite(address, wait_s)
    if scheme not in {"redis", "rediss"}:
        raise ConfigError(f"unknown kind of feature store {scheme:.20}://; known: a path, :memory:, redis://")
    try:
        from hone.decide.gateway.redis_features import open_redis_features  # noqa: PLC0415 - an extra

        return open_redis_features(address, wait_s)
    except ImportError as error:
        message = f'a feature store at {scheme}:// needs {error.name}; pip install "hone-rl[redis]"'
        raise ResourceError(message) from error
