"""`kill -9` of writers and servers: nothing acknowledged is lost, nothing is stored twice or in part."""

from collections.abc import Callable
from pathlib import Path

import pytest
from log_kills import SweepResult, server_sweep, writer_sweep
from log_servers import LogServer, MissingServerError, postgres_server, redis_server

FAILPOINTS = ("decisions.before_commit:kill", "decisions.after_commit:kill", "decisions.before_commit:exit")
SERVERS = pytest.mark.parametrize("make", [postgres_server, redis_server])


def passed(result: SweepResult) -> bool:
    return (result.lost, result.twice, result.torn) == (0, 0, 0) and result.acked > 0


def swept(make: Callable[[], LogServer], sweep: Callable[[LogServer], SweepResult]) -> SweepResult:
    """Result of a sweep on a new server."""
    pytest.importorskip("psycopg" if make is postgres_server else "redis")
    try:
        server = make()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        return sweep(server)
    finally:
        server.remove()


def test_a_killed_writer_of_sqlite_loses_nothing(tmp_path: Path) -> None:
    result = writer_sweep(tmp_path / "decisions.db", kills=6, seed=0, failpoints=FAILPOINTS)
    assert passed(result), result
    assert result.kills == 9


def test_a_killed_redis_server_loses_nothing() -> None:
    assert passed(swept(redis_server, lambda server: server_sweep(server, kills=2, seed=0)))


@pytest.mark.slow
def test_a_hundred_killed_writers_of_sqlite_lose_nothing(tmp_path: Path) -> None:
    result = writer_sweep(tmp_path / "decisions.db", kills=100, seed=100, failpoints=FAILPOINTS)
    assert passed(result), result


@pytest.mark.slow
@SERVERS
def test_killed_servers_lose_nothing(make: Callable[[], LogServer]) -> None:
    result = swept(make, lambda server: server_sweep(server, kills=15, seed=101))
    assert passed(result), result


@pytest.mark.slow
@SERVERS
def test_killed_writers_of_servers_lose_nothing(make: Callable[[], LogServer]) -> None:
    result = swept(
        make, lambda server: writer_sweep(server.address, kills=30, seed=102, failpoints=FAILPOINTS[1:2], spread_s=0.2)
    )
    assert passed(result), result
