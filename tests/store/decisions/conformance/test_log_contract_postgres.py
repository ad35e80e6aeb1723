"""The contract of logs, on a PostgreSQL server of this machine."""

from collections.abc import Iterator

import pytest
from log_contract import LogContract, LogEngine
from log_servers import LogServer, postgres_server

from hone.store.decisions.opening import open_decision_log


@pytest.fixture(scope="module")
def server() -> Iterator[LogServer]:
    pytest.importorskip("psycopg", reason="needs the extra `postgres`")
    started = postgres_server()
    try:
        started.start()
        yield started
    finally:
        started.remove()


@pytest.fixture
def engine(server: LogServer) -> LogEngine:
    import psycopg

    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("set client_min_messages to warning")
        connection.execute("drop schema if exists hone_decisions cascade")
    return LogEngine(lambda: open_decision_log(server.address))


class TestPostgres(LogContract):
    """PostgreSQL."""
