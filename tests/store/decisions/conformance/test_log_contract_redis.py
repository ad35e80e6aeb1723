"""The contract of logs, on a Redis server of this machine."""

from collections.abc import Iterator

import pytest
from log_contract import LogContract, LogEngine
from log_model import check_against_model
from log_servers import LogServer, MissingServerError, redis_server

from hone.store.decisions.opening import open_decision_log


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


class TestRedis(LogContract):
    """Redis."""


def test_redis_does_as_a_dictionary(server: LogServer) -> None:
    check_against_model(lambda: cleared(server), runs=2)


@pytest.mark.slow
def test_redis_does_as_a_dictionary_for_long(server: LogServer) -> None:
    check_against_model(lambda: cleared(server), runs=100)
