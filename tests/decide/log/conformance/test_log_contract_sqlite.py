"""The contract of logs, on SQLite."""

from itertools import count
from pathlib import Path

import pytest
from log_contract import LogContract, LogEngine
from log_model import check_against_model
from log_names_contract import LogNamesContract

from hone.decide.log.opening import open_decision_log


@pytest.fixture
def engine(tmp_path: Path) -> LogEngine:
    return LogEngine(lambda: open_decision_log(tmp_path / "decisions.db"))


class TestSqlite(LogContract, LogNamesContract):
    """SQLite."""


def engines(folder: Path, *, runs: int) -> None:
    numbers = count()

    def fresh() -> LogEngine:
        path = folder / f"{next(numbers)}.db"
        return LogEngine(lambda: open_decision_log(path))

    check_against_model(fresh, runs=runs)


def test_sqlite_does_as_a_dictionary(tmp_path: Path) -> None:
    engines(tmp_path, runs=15)


@pytest.mark.slow
def test_sqlite_does_as_a_dictionary_for_long(tmp_path: Path) -> None:
    engines(tmp_path, runs=400)
