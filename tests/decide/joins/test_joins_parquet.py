"""Views on disk: exact, whole or not there, and refused when changed."""

from pathlib import Path

import duckdb
import numpy as np
import pytest

from hone.core.errors import ConfigError, DataError, ResourceError
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import freeze_view, is_frozen_view, read_view, view_bytes, view_hash
from hone.decide.joins.view import DecisionView, JoinConfig
from hone.run.store.durable import to_json
from support.decision_records import ARMS, decision, outcome


@pytest.fixture
def view() -> DecisionView:
    log = [
        decision("d0", 0.1, seq=0, p=1 / 3), decision("d1", 1.0, seq=1, executed=2, unit="ü'; drop table"),
        outcome("d0", 5.0, 0.1, seq=0), outcome("d1", 90.0, seq=1), decision("d2", 95.0, seq=2),
    ]  # fmt: skip
    return build_view(log, as_of_s=100.0, join=JoinConfig(window_s=10.0))


def test_a_view_is_read_back_to_the_bit(tmp_path: Path, view: DecisionView) -> None:
    digest = freeze_view(view, tmp_path / "monday")
    again = read_view(tmp_path / "monday")
    assert view_bytes(again) == view_bytes(view)
    assert view_hash(again) == digest
    assert (again.counts, again.join, again.table.units) == (view.counts, view.join, view.table.units)
    assert again.table.action_sets == (ARMS,)


def test_a_frozen_view_is_frozen(tmp_path: Path, view: DecisionView) -> None:
    folder = tmp_path / "monday"
    assert freeze_view(view, folder) == freeze_view(view, folder)
    other = build_view([decision("d0", 0.1, seq=0)], as_of_s=1.0)
    with pytest.raises(ConfigError, match="monday exists already; a frozen view never changes"):
        freeze_view(other, folder)
    (folder / "view.parquet").write_bytes(view_bytes(other))
    with pytest.raises(DataError, match="it was changed after it was frozen"):
        read_view(folder)


def test_a_view_that_cannot_be_written_is_not_there(
    tmp_path: Path, view: DecisionView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HONE_FAILPOINT", "view.before_manifest:raise")
    with pytest.raises(ResourceError, match="failpoint"):
        freeze_view(view, tmp_path / "monday")
    assert list(tmp_path.iterdir()) == []
    assert not is_frozen_view(tmp_path / "monday")


def test_other_files_are_refused_by_name(tmp_path: Path, view: DecisionView) -> None:
    (tmp_path / "torn.parquet").write_bytes(view_bytes(view)[:200])
    with pytest.raises(DataError, match=r"torn.parquet: not a complete parquet file"):
        read_view(tmp_path / "torn.parquet")
    with pytest.raises(DataError, match=r"is not a frozen view: it needs view.parquet and manifest.json"):
        read_view(tmp_path)
    (tmp_path / "view.parquet").write_bytes(view_bytes(view))
    (tmp_path / "manifest.json").write_bytes(to_json({"format": 1}))
    with pytest.raises(DataError, match="is not the manifest of a frozen view"):
        read_view(tmp_path)


def test_other_programs_read_the_file(tmp_path: Path, view: DecisionView) -> None:
    freeze_view(view, tmp_path / "monday")
    path = tmp_path / "monday" / "view.parquet"
    rows = duckdb.connect().execute(f"select id, exp(logp), known, context from '{path}' order by at_s").fetchall()
    assert [row[0] for row in rows] == ["d0", "d1", "d2"]
    assert rows[0][1] == pytest.approx(1 / 3)
    assert [row[2] for row in rows] == [True, True, False]
    assert np.array_equal(rows[0][3], [1.0, 0.0])
