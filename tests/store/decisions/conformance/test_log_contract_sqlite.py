"""The contract of logs, on SQLite."""

from pathlib import Path

import pytest
from log_contract import LogContract, LogEngine

from hone.store.decisions.opening import open_decision_log


@pytest.fixture
def engine(tmp_path: Path) -> LogEngine:
    return LogEngine(lambda: open_decision_log(tmp_path / "decisions.db"))


class TestSqlite(LogContract):
    """SQLite."""
