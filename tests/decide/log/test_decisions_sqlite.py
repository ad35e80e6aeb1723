"""The SQLite engine: what it makes of files, and of other processes."""

import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest
from log_records import all_of, bits, decision, key_of

from hone.core.decisions import ActionSet, Choice, Decision, Outcome
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.decide.log import opening as sqlite
from hone.decide.log.opening import SqliteSession, open_decision_log, open_sqlite_log
from hone.run.store.durable import DiskFullError


def test_a_log_of_a_file_is_what_it_was_when_it_is_opened_again(tmp_path: Path) -> None:
    actions = ActionSet(names=("a", "b"), features=np.array([[0.5, -0.0], [np.nan, 1e-300]]))
    record = Decision(
        id="d1", tenant="shop", unit="u1", at_s=5.0, context=np.array([0.1, np.inf]), actions=actions,
        choice=Choice(action=1, logp=-0.5), executed=1, executed_logp=-0.5, version="v1", source="web", seq=0,
    )  # fmt: skip
    outcome = Outcome(decision_id="d1", tenant="shop", value=1.0, at_s=6.0, source="till", seq=1)
    log = open_decision_log(tmp_path / "new" / "decisions.db")
    ack = log.append([record, outcome])
    log.close()
    assert (ack.stored, [one.watermark for one in ack.watermarks]) == (2, [-1, 0])
    log = open_decision_log(str(tmp_path / "new" / "decisions.db"), full_sync=True)
    first, second = (one.record for one in log.read())
    assert second == outcome
    assert isinstance(first, Decision)
    assert (first.id, first.actions.names, first.choice) == ("d1", ("a", "b"), record.choice)
    assert first.context.tobytes() == record.context.tobytes()
    assert first.actions.features is not None and actions.features is not None
    assert first.actions.features.tobytes() == actions.features.tobytes()
    log.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database, but long enough to look like one " * 40)
    with pytest.raises(DataError, match="not a decision log"):
        open_decision_log(tmp_path / "notes.db")
    with pytest.raises(ResourceError, match="cannot"):
        open_decision_log(tmp_path)
    with pytest.raises(ConfigError, match="kafka://; known"):
        open_decision_log("kafka://localhost")


def test_a_full_disk_stores_nothing_of_the_batch_and_all_of_it_later(tmp_path: Path) -> None:
    log = open_sqlite_log(tmp_path / "decisions.db")
    log.append([decision(0)])
    assert isinstance(log.session, SqliteSession)
    limit = log.session.connection.execute("pragma page_count").fetchone()[0] + 4
    log.session.connection.execute(f"pragma max_page_count = {limit}")
    batch = [decision(seq, actions=ActionSet(names=("x", "y", f"{seq}"))) for seq in range(1, 400)]
    with pytest.raises(DiskFullError, match=r"no space left for .*decisions\.db: nothing of this batch was stored"):
        log.append(batch)
    assert [key_of(one) for one in all_of(log)] == [("shop", "web", 0)]
    assert log.watermarks()[0].highest == 0
    log.session.connection.execute("pragma max_page_count = 100000")
    assert log.append(batch).stored == 399  # parts that were numbered in the lost transaction are stored again
    assert [bits(one) for one in all_of(log)][1:] == [bits(one) for one in batch]
    log.close()


def test_a_log_that_another_process_holds_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_WAIT_S", 0.05)
    log, other = open_decision_log(tmp_path / "decisions.db"), sqlite3.connect(tmp_path / "decisions.db")
    other.execute("begin immediate")
    with pytest.raises(ResourceError, match=r"decisions\.db: database is locked .*SQLITE_BUSY"):
        log.append([decision(0)])
    other.rollback()
    assert log.append([decision(0)]).stored == 1
    other.close()
    log.close()


def test_old_bytes_in_the_write_ahead_log_are_told_while_somebody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_WAIT_S", 0.05)
    log, reader = open_decision_log(tmp_path / "decisions.db"), sqlite3.connect(tmp_path / "decisions.db")
    log.append([decision(0, unit="eve")])
    reader.execute("begin")
    reader.execute("select count(*) from records").fetchone()
    with pytest.raises(ResourceError, match="keeps the old bytes while another process reads; erase again"):
        log.erase("shop", "eve")
    reader.rollback()
    assert log.erase("shop", "eve") == 0
    assert (tmp_path / "decisions.db-wal").stat().st_size == 0
    assert b"eve" not in (tmp_path / "decisions.db").read_bytes()
    reader.close()
    log.close()


def test_a_log_of_another_format_and_another_database_are_refused(tmp_path: Path) -> None:
    open_decision_log(tmp_path / "decisions.db").close()
    with sqlite3.connect(tmp_path / "decisions.db") as connection:
        connection.execute("update log_meta set value = '7' where name = 'format'")
    connection.close()
    with pytest.raises(DataError, match="a log of format 7, this version of hone reads 1"):
        open_decision_log(tmp_path / "decisions.db")
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("create table customers (name text)")
    connection.close()
    with pytest.raises(DataError, match="a database of something else: it has the tables customers"):
        open_decision_log(tmp_path / "shop.db")


def test_servers_that_cannot_be_reached_and_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, module in (("postgresql://me:secret@127.0.0.1:1/x?password=secret", "psycopg"),
                            ("redis://me:secret@127.0.0.1:1/0", "redis")):  # fmt: skip
        pytest.importorskip(module)
        with pytest.raises(ResourceError, match=r"cannot use the decision log .*127\.0\.0\.1:1/") as caught:
            open_decision_log(address)
        assert "secret" not in str(caught.value)
    for address, module, extra in (("postgresql://h/x", "psycopg", "postgres"), ("redis://h/0", "redis", "redis")):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, module, None)
            patched.delitem(sys.modules, f"hone.decide.log.{extra}", raising=False)
            patched.delitem(sys.modules, "hone.decide.log.redis_streams", raising=False)
            with pytest.raises(
                ResourceError, match=rf'needs {module}, which is not installed; pip .*"hone-rl\[{extra}\]"'
            ):
                open_decision_log(address)
