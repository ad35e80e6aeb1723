"""The contract of logs, on a Redis server of this machine."""

from collections.abc import Iterator

import pytest
from log_contract import LogContract, LogEngine
from log_servers import LogServer, redis_server

from hone.store.decisions.opening import open_decision_log


@pytest.fixture(scope="module")
def server() -> Iterator[LogServer]:
    pytest.importorskip("redis", reason="needs the extra `redis`")
    started = redis_server()
    try:
        started.start()
        yield started
    finally:
        started.remove()


@pytest.fixture
def engine(server: LogServer) -> LogEngine:
    import redis

    with redis.Redis.from_url(server.address) as client:
        client.flushall()
    return LogEngine(lambda: open_decision_log(server.address))


class TestRedis(LogContract):
    """Redis."""
