"""The contract of logs, on a PostgreSQL server of this machine."""

from collections.abc import Iterator

import pytest
from log_contract import LogContract, LogEngine
from log_model import check_against_model
from log_servers import LogServer, MissingServerError, postgres_server

from hone.store.decisions.opening import open_decision_log


@pytest.fixture(scope="module")
def server() -> Iterator[LogServer]:
    pytest.importorskip("psycopg", reason="needs the extra `postgres`")
    try:
        started = postgres_server()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    try:
        started.start()
        yield started
    finally:
        started.remove()


def cleared(server: LogServer) -> LogEngine:
    import psycopg

    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("set client_min_messages to warning")
        connection.execute("drop schema if exists hone_decisions cascade")
    return LogEngine(lambda: open_decision_log(server.address))


@pytest.fixture
def engine(server: LogServer) -> LogEngine:
    return cleared(server)


class TestPostgres(LogContract):
    """PostgreSQL."""


def test_postgresql_does_as_a_dictionary(server: LogServer) -> None:
    check_against_model(lambda: cleared(server), runs=2)


@pytest.mark.slow
def test_postgresql_does_as_a_dictionary_for_long(server: LogServer) -> None:
    check_against_model(lambda: cleared(server), runs=100)
