"""The contract of feature stores: one suite for SQLite, for a stand-in of Redis, and for a Redis server."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from log_servers import MissingServerError, redis_server
from resp_server import resp_server

from hone.core.errors import ConfigError, DataError, ResourceError
from hone.decide.gateway.feature_opening import open_feature_store
from hone.decide.gateway.feature_store import EntityKey, FeatureRow, FeatureStore, StoredFeature

ADA = EntityKey("shop", "visitor", "ada")
BOTH = ("spent", "country")
ODD = ("a:b", "é 😀", "'; drop table features; --", "x" * 200, "*", "{tag}", "%3A", "\\", "a\r\nb")


@dataclass
class Engine:
    """Opens the store under test, each time anew."""

    open: Callable[[], FeatureStore]


@pytest.fixture(scope="module", params=["sqlite", "stand-in", "redis"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sqlite":
        yield ""
        return
    pytest.importorskip("redis", reason="needs the extra `redis`")
    if request.param == "stand-in":
        with resp_server() as server:
            yield server.address
        return
    try:
        started = redis_server()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    try:
        started.start()
        yield started.address
    finally:
        started.remove()


@pytest.fixture
def engine(address: str, tmp_path: Path, request: pytest.FixtureRequest) -> Engine:
    tenant = request.node.name  # tests share a server: each has a tenant of its own
    place = address or str(tmp_path / "features.db")
    return Engine(lambda: _Tenant(open_feature_store(place, wait_s=5.0), tenant))


@dataclass
class _Tenant:
    """A store whose keys all belong to one more tenant's name."""

    inner: FeatureStore
    name: str

    def read(self, wanted):
        rows = self.inner.read({self.own(key): names for key, names in wanted.items()})
        return {key: rows[self.own(key)] for key in wanted}

    def put(self, rows):
        self.inner.put([FeatureRow(key=self.own(one.key), values=one.values, at_s=one.at_s) for one in rows])

    def erase(self, keys):
        return self.inner.erase([self.own(key) for key in keys])

    def own(self, key: EntityKey) -> EntityKey:
        return EntityKey(f"{self.name} {key.tenant}", key.group, key.entity)

    def close(self):
        self.inner.close()


def row(at_s: float, key: EntityKey = ADA, **values: float | str | None) -> FeatureRow:
    return FeatureRow(key=key, values=values, at_s=at_s)


def test_values_come_back_as_they_were_stored_and_no_others(engine: Engine) -> None:
    with closing(engine.open()) as store:
        assert store.read({ADA: BOTH}) == {ADA: {}}
        store.put([row(5.25, spent=0.1 + 0.2, country="de", hidden=7.0)])
        assert store.read({ADA: BOTH}) == {
            ADA: {"spent": StoredFeature(0.1 + 0.2, 5.25), "country": StoredFeature("de", 5.25)}
        }
    with closing(engine.open()) as again:
        assert again.read({ADA: ("spent",)}) == {ADA: {"spent": StoredFeature(0.1 + 0.2, 5.25)}}


def test_the_later_value_stays_in_whatever_order_they_come(engine: Engine) -> None:
    with closing(engine.open()) as store:
        store.put([row(5.0, spent=1.0)])
        store.put([row(4.0, spent=2.0, country="fr"), row(4.5, spent=None)])  # older: they change nothing
        assert store.read({ADA: BOTH})[ADA] == {"spent": StoredFeature(1.0, 5.0), "country": StoredFeature("fr", 4.0)}
        store.put([row(5.0, spent=3.0)])  # of the same time: the one that came last
        assert store.read({ADA: BOTH})[ADA]["spent"] == StoredFeature(3.0, 5.0)
        store.put([row(5.0, spent=None)])
        assert store.read({ADA: BOTH})[ADA] == {"country": StoredFeature("fr", 4.0)}


def test_an_entity_is_erased_whole_and_no_other_is(engine: Engine) -> None:
    others = [EntityKey("shop", "visitor", "adam"), EntityKey("bank", "visitor", "ada"), EntityKey("shop", "v", "ada")]
    with closing(engine.open()) as store:
        store.put([row(5.0, key, spent=1.0, country="de") for key in (ADA, *others)])
        assert store.erase([ADA, EntityKey("shop", "visitor", "nobody")]) == 2
        assert store.read({ADA: BOTH}) == {ADA: {}}
        assert all(len(rows) == 2 for rows in store.read(dict.fromkeys(others, BOTH)).values())
        assert store.erase([ADA]) == 0 == store.erase([])
        store.put([row(4.0, spent=3.0)])  # nothing is known of the time of what was erased
        assert store.read({ADA: BOTH})[ADA] == {"spent": StoredFeature(3.0, 4.0)}


def test_tenants_groups_and_entities_are_apart(engine: Engine) -> None:
    keys = [EntityKey(tenant, group, one) for tenant in ("shop", "a:b", "a") for group in ("b", "v") for one in ODD]
    with closing(engine.open()) as store:
        store.put([row(1.0, key, spent=float(place)) for place, key in enumerate(keys)])
        rows = store.read(dict.fromkeys(keys, BOTH))
        assert [rows[key]["spent"].value for key in keys] == list(map(float, range(len(keys))))
        store.put([])
        assert store.read({}) == {}


def test_writers_at_the_same_time_leave_the_latest_value(engine: Engine) -> None:
    def write(first: int) -> None:
        with closing(engine.open()) as store:
            for at in range(first, 60, 3):
                store.put([row(float(at), spent=float(at))])

    threads = [threading.Thread(target=write, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with closing(engine.open()) as store:
        assert store.read({ADA: BOTH})[ADA]["spent"] == StoredFeature(59.0, 59.0)


def test_a_value_that_another_program_wrote_otherwise_is_none_until_it_is_put(address: str) -> None:
    if not address:
        pytest.skip("a file of SQLite has no other writers")
    import redis

    with redis.Redis.from_url(address) as client, closing(open_feature_store(address, wait_s=5.0)) as store:
        for place, text in enumerate(
            ("nonsense", "[1]", "7", '{"a": 1}', "[true, 1.0]", "[null, 1.0]", "[1.0, NaN]", "")
        ):
            key = EntityKey("t", "odd", str(place))
            client.hset(f"hone:features:t:odd:{place}", "spent", text)
            assert store.read({key: BOTH}) == {key: {}}
            store.put([row(2.0, key, spent=4.0)])
            assert store.read({key: BOTH}) == {key: {"spent": StoredFeature(4.0, 2.0)}}


def test_addresses_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown kind of feature store mongo://; known: a path, :memory:, redis://"):
        open_feature_store("mongo://host", wait_s=1.0)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("create table songs (name)")
    with pytest.raises(DataError, match="is a database of something else: it has the tables songs"):
        open_feature_store(str(other), wait_s=1.0)
    (tmp_path / "text.db").write_text("no database at all, but some text")
    with pytest.raises(ResourceError, match="cannot open the feature store"):
        open_feature_store(str(tmp_path / "text.db"), wait_s=1.0)


def test_a_password_is_in_no_message() -> None:
    pytest.importorskip("redis", reason="needs the extra `redis`")
    store = open_feature_store("redis://me:s3cretword@127.0.0.1:1/0", wait_s=1.0)
    with closing(store), pytest.raises(ResourceError, match="does not answer") as caught:
        store.read({ADA: BOTH})
    assert "s3cretword" not in str(caught.value) and "127.0.0.1:1/0" in str(caught.value)


def test_an_address_that_redis_cannot_read_is_named() -> None:
    pytest.importorskip("redis", reason="needs the extra `redis`")
    with pytest.raises(ConfigError, match="redis://host:port is no address of a feature store"):
        open_feature_store("redis://host:port", wait_s=1.0)


def test_a_read_of_a_file_waits_for_no_writer_and_erased_bytes_are_in_no_file(tmp_path: Path) -> None:
    place = tmp_path / "features.db"
    with closing(open_feature_store(str(place), wait_s=0.05)) as store:
        store.put([row(1.0, country="a-secret-land")])
        with closing(sqlite3.connect(place, isolation_level=None)) as other:
            other.execute("begin immediate")
            assert store.read({ADA: BOTH})[ADA]["country"].value == "a-secret-land"
            with pytest.raises(ResourceError, match="database is locked"):
                store.put([row(2.0, country="fr")])
            other.execute("rollback")
            other.execute("begin")
            other.execute("select * from features").fetchall()  # it reads on while the entity is erased
            with pytest.raises(ResourceError, match="keeps the old bytes while another process reads; erase again"):
                store.erase([ADA])
            other.execute("rollback")
        assert store.erase([ADA]) == 0
        assert not any(b"a-secret-land" in path.read_bytes() for path in tmp_path.iterdir())
