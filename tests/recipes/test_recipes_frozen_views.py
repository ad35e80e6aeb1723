"""`hone train` on a frozen view of a decision log."""

from pathlib import Path

import numpy as np
import pytest

from hone.cli.main import main
from hone.core.decisions import DecisionRecord
from hone.core.errors import DataError
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import freeze_view
from hone.decide.joins.view import JoinConfig
from hone.recipes.decision_logs import frozen_view_log
from support.decision_records import decision, outcome

CONFIG = """
recipe = "cql"
log = "{folder}"
steps = 2
batch = 8
network = {{ hidden = [8] }}
learner.updates_per_iteration = 2
"""


def _frozen(folder: Path, *, features: int = 2) -> Path:
    log: list[DecisionRecord] = []
    for row in range(40):
        context = np.eye(2)[row % 2][:features]
        log.append(decision(f"d{row}", float(row), seq=row, executed=row % 3, p=1 / 3, context=context))
        log.append(outcome(f"d{row}", row + 1.0, float(row % 3 == row % 2), seq=row))
    freeze_view(build_view(log, as_of_s=40.0, join=JoinConfig(window_s=5.0)), folder)
    return folder


def test_a_frozen_view_trains_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG.format(folder=_frozen(tmp_path / "monday").name))
    assert main(["train", "run.toml"]) == 0
    assert "4 decisions are left out, as their window is open" in "".join(capsys.readouterr())


def test_its_decisions_keep_their_probabilities(tmp_path: Path) -> None:
    log = frozen_view_log(_frozen(tmp_path / "monday"))
    assert log.episodes.decisions == 36
    assert np.exp(log.episodes.logp) == pytest.approx(1 / 3)


def test_a_view_without_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="its decisions have no features"):
        frozen_view_log(_frozen(tmp_path / "monday", features=0))
