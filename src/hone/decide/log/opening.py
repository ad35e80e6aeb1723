"""Addresses of decision logs: a file, PostgreSQL or Redis."""

from pathlib import Path

from hone.core.errors import ConfigError, ResourceError
from hone.decide.log.protocol import DecisionLog
from hone.decide.log.sqlite import open_sqlite_log


def open_decision_log(address: str | Path, *, full_sync: bool = False) -> DecisionLog:
    """Open the log at an address: `decisions.db`, `postgresql://user@host/database`, `redis://host:6379/0`.

    A file is an SQLite database, made if it is missing. `full_sync` flushes each commit of a file, so that acknowledged
    records survive a loss of power too; servers do as they are set up. Raises ConfigError for an address of
    another kind, DataError if something else is stored there, ResourceError if it cannot be reached.
    """
    text = str(address)
    scheme, colon, _ = text.partition("://")
    if not colon:
        return open_sqlite_log(Path(address), full_sync=full_sync)
    try:
        if scheme in {"postgresql", "postgres"}:
            from hone.decide.log.postgres import open_postgres_log  # noqa: PLC0415 - an extra

            return open_postgres_log(text)
        if scheme in {"redis", "rediss"}:
            from hone.decide.log.redis_streams import open_redis_log  # noqa: PLC0415 - an extra

            return open_redis_log(text)
    except ImportError as error:
        extra = "postgres" if scheme.startswith("postgres") else "redis"
        raise ResourceError(
            f'a log at {scheme}:// needs {error.name}, which is not installed; pip install "hone-rl[{extra}]"'
        ) from error
    raise ConfigError(f"unknown kind of decision log {scheme}://; known: a path, postgresql://, redis://")
