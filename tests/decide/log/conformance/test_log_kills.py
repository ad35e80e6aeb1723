"""`kill -9` of writers and servers: nothing acknowledged is lost, nothing is stored twice or in part."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from log_kills import BATCH, SweepResult, batch_from, judged, server_sweep, writer_sweep
from log_servers import LogServer, MissingServerError, postgres_server, redis_server

from hone.decide.log.opening import open_decision_log

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
    result = swept(redis_server, lambda server: server_sweep(server, kills=2, seed=0))
    assert passed(result), result


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_transaction_of_redis_cut_short_by_a_kill_never_runs(share: float) -> None:
    """The server keeps its first commands in the append-only file, and would run them with the next transaction."""

    def written(server: LogServer) -> Path:
        return max(server.folder.rglob("appendonly*.aof"), key=lambda path: path.stat().st_size)

    def killed_within_a_transaction(server: LogServer) -> SweepResult:
        log = open_decision_log(server.address)
        log.append(batch_from(0))
        before = written(server).stat().st_size
        log.append(batch_from(BATCH))
        server.kill()
        os.truncate(written(server), before + int(share * (written(server).stat().st_size - before)))
        server.start()
        log.append(batch_from(BATCH))
        server.kill()
        server.start()
        return judged(log, 2, 2 * BATCH)

    result = swept(redis_server, killed_within_a_transaction)
    assert passed(result), result


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
