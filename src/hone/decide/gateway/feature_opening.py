"""Addresses of feature stores (a file or Redis), and the store in a file of SQLite, for the processes of one host."""

import sqlite3
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
_READ: Final = "select name, value, at_s from features where tenant = ? and grouped = ? and entity = ?"


def _open_sqlite(address: str, wait_s: float) -> "_SqliteFeatures":
    path = Path(address)
    if address != ":memory:":
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    try:
        connection = sqlite3.connect(address, timeout=wait_s, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma secure_delete = on")
            present = {row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")}
            if present - {"features"}:
                raise DataError(
                    f"{path} is a database of something else: it has the tables {', '.join(sorted(present))}"
                )
            connection.execute(_TABLE)
        except BaseException:
            connection.close()
            raise
    except sqlite3.DatabaseError as error:
        raise ResourceError(f"cannot open the feature store {path}: {error}") from error
    return _SqliteFeatures(address, connection)


@dataclass(slots=True)
class _SqliteFeatures:
    """A `FeatureStore` in a file of SQLite, for the processes of one host."""

    name: str
    connection: sqlite3.Connection
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def _transaction(self, begin: str) -> Generator[None]:
        with self.lock:
            try:
                self.connection.execute(begin)
                yield
                self.connection.execute("commit")
            except BaseException as error:
                if self.connection.in_transaction:
                    self.connection.execute("rollback")
                if isinstance(error, sqlite3.Error):
                    raise ResourceError(f"cannot use the feature store {self.name}: {error}") from error
                raise

    def read(self, wanted: Mapping[EntityKey, Sequence[str]]) -> StoredRows:
        """Values of entities; see `FeatureStore`."""
        with self._transaction("begin"):
            return {
                key: {
                    name: StoredFeature(value, at_s)
                    for name, value, at_s in self.connection.execute(_READ, key) if name in names
                }
                for key, names in wanted.items()
            }  # fmt: skip

    def put(self, rows: Sequence[FeatureRow]) -> None:
        """Store values, all or none; see `FeatureStore`."""
        values = [(*row.key, name, value, row.at_s) for row in rows for name, value in row.values.items()]
        with self._transaction("begin immediate"):
            for *place, value, at_s in values:
                if value is None:
                    self.connection.execute(_REMOVE, (*place, at_s))
                else:
                    self.connection.execute(_PUT, (*place, value, at_s))

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            self.connection.close()


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
