"""The contract of logs, on a Redis server of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from log_contract import LogContract, LogEngine
from log_model import check_against_model
from log_names_contract import LogNamesContract
from log_records import decision
from log_servers import LogServer, MissingServerError, redis_server

from hone.core.decisions import ActionSet
from hone.core.errors import DataError, ResourceError
from hone.decide.log.opening import open_decision_log
from hone.run.store.durable import DiskFullError


@pytest.fixture(scope="module")
def server() -> Iterator[LogServer]:
    pytest.importorskip("redis", reason="needs the extra `redis`")
    try:
        started = redis_server()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    try:
        started.start()
        yield started
    finally:
        started.remove()


def cleared(server: LogServer) -> LogEngine:
    import redis

    with redis.Redis.from_url(server.address) as client:
        client.flushall()
    return LogEngine(lambda: open_decision_log(server.address))


@pytest.fixture
def engine(server: LogServer) -> LogEngine:
    return cleared(server)


class TestRedis(LogContract, LogNamesContract):
    """Redis."""


def test_redis_does_as_a_dictionary(server: LogServer) -> None:
    check_against_model(lambda: cleared(server), runs=2)


@pytest.mark.slow
def test_redis_does_as_a_dictionary_for_long(server: LogServer) -> None:
    check_against_model(lambda: cleared(server), runs=100)


def test_a_server_that_may_lose_what_it_acknowledged_is_refused(server: LogServer) -> None:
    import redis

    with redis.Redis.from_url(server.address) as client:
        client.config_set("appendfsync", "everysec")
        with pytest.raises(ResourceError, match="appendfsync everysec, so it could lose acknowledged records; set"):
            open_decision_log(server.address)
        client.config_set("appendfsync", "always")
    open_decision_log(server.address).close()


def test_a_full_server_stores_nothing_of_the_batch(server: LogServer, engine: LogEngine) -> None:
    import redis

    log = engine.open()
    with redis.Redis.from_url(server.address) as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(DiskFullError, match="no space left"):
                log.append([decision(0)])
        finally:
            client.config_set("maxmemory", 0)
    assert log.read() == []
    assert log.append([decision(0)]).stored == 1
    log.close()


def test_erased_bytes_are_in_no_file_of_the_server(server: LogServer, engine: LogEngine) -> None:
    log = engine.open()
    own = ActionSet(names=("mail secret-eve", "call", "wait"))
    log.append([decision(seq, unit="secret-eve", actions=own) for seq in range(0, 40, 2)])
    log.append([decision(seq, unit="bob") for seq in range(1, 40, 2)])
    assert any(b"secret-eve" in path.read_bytes() for path in files_of(server))
    assert log.erase("shop", "secret-eve") == 20
    assert not any(b"secret-eve" in path.read_bytes() for path in files_of(server))
    log.close()


def test_a_record_without_its_actions_is_named(server: LogServer, engine: LogEngine) -> None:
    import redis

    log = engine.open()
    log.append([decision(0)])
    with redis.Redis.from_url(server.address) as client:
        client.delete("{hone}:decisions:actions")
    with pytest.raises(DataError, match="the set of actions or the labels of seq 0, source 1, are missing"):
        log.read()
    log.close()


def files_of(server: LogServer) -> list[Path]:
    return [path for path in server.folder.rglob("*") if path.is_file()]
