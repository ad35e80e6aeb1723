"""The contract of logs, on a PostgreSQL server of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from log_contract import LogContract, LogEngine
from log_model import check_against_model
from log_names_contract import LogNamesContract
from log_records import decision
from log_servers import LogServer, MissingServerError, postgres_server

from hone.core.errors import ResourceError
from hone.decide.log.opening import open_decision_log


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


class TestPostgres(LogContract, LogNamesContract):
    """PostgreSQL."""


def test_postgresql_does_as_a_dictionary(server: LogServer) -> None:
    check_against_model(lambda: cleared(server), runs=2)


@pytest.mark.slow
def test_postgresql_does_as_a_dictionary_for_long(server: LogServer) -> None:
    check_against_model(lambda: cleared(server), runs=100)


def test_erased_bytes_are_in_no_table_of_the_server(server: LogServer, engine: LogEngine) -> None:
    import psycopg

    log = engine.open()
    log.append([decision(seq, unit="secret-eve" if seq % 2 else "bob") for seq in range(40)])
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("checkpoint")
        assert any(b"secret-eve" in path.read_bytes() for path in tables_of(server))
        assert log.erase("shop", "secret-eve") == 20
        connection.execute("checkpoint")
    assert not any(b"secret-eve" in path.read_bytes() for path in tables_of(server))
    log.close()


def tables_of(server: LogServer) -> list[Path]:
    return [path for path in (server.folder / "data" / "base").rglob("*") if path.is_file()]


def test_a_connection_that_broke_is_opened_again(server: LogServer, engine: LogEngine) -> None:
    import psycopg

    log = engine.open()
    log.append([decision(0)])
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
    with pytest.raises(ResourceError, match="acknowledged records are kept, send the batch again"):
        log.append([decision(1)])
    ack = log.append([decision(0), decision(1)])
    assert (ack.stored, ack.repeated) == (1, 1)
    log.close()
