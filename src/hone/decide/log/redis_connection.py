"""Connections to a Redis server that has rewritten its append-only file since it started.

A server that is killed while it writes a transaction leaves the first commands of it at the end of its append-only
file. When it starts again it does not run them, but (Redis 6.2 and 7.0) it keeps those that are whole, and appends what
comes next behind them. The start after that runs both as one transaction: records that were sent again are then in the
stream twice. So a server that was started on a log must rewrite its file before anything is appended; it tells how long
its last rewrite took, and -1 before the first one since its start.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from redis.connection import Connection
from redis.exceptions import ResponseError

PREFIX: Final = "{hone}:decisions:"
_POLL_S: Final = 0.05
_REWRITE_S: Final = 60.0


def connect(connection: Connection) -> None:
    """Greet the server; if it was started on a log, have it rewrite its append-only file. Raises RedisError."""

    def ask(*command: str) -> Any:  # noqa: ANN401 - replies have the form of their command
        connection.send_command(*command)  # pyright: ignore[reportUnknownMemberType]
        return cast("Any", connection.read_response())  # pyright: ignore[reportUnknownMemberType]

    def state() -> dict[str, str]:
        lines = bytes(ask("INFO", "persistence")).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    connection.on_connect()
    if ask("EXISTS", f"{PREFIX}meta"):
        rewrite_file(state, lambda: ask("BGREWRITEAOF"), again=False)


def rewrite_file(state: Callable[[], Mapping[str, Any]], start: Callable[[], object], *, again: bool) -> None:
    """Rewrite the append-only file, and wait for it: always (`again`), or if the server has not since its start.

    `state` asks for the server's section `persistence`. Raises RedisError if it fails or takes over a minute.
    """
    deadline, started = time.monotonic() + _REWRITE_S, False
    while time.monotonic() < deadline:
        now = state()
        if not (int(now["aof_rewrite_in_progress"]) or int(now["aof_rewrite_scheduled"])):
            if started and now["aof_last_bgrewrite_status"] != "ok":
                break
            if started or not (again or int(now["aof_last_rewrite_time_sec"]) == -1):
                return
            started = _is_started(start)
        time.sleep(_POLL_S)
    raise ResponseError("its append-only file was not rewritten; the server's own log says why")


def _is_started(start: Callable[[], object]) -> bool:
    """False if another client was faster: what it began may be older than what must leave the file."""
    try:
        start()
    except ResponseError as error:
        if "in progress" not in str(error):
            raise
        return False
    return True
