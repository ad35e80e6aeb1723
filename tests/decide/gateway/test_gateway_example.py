"""The example of a shop does what its README says."""

import runpy
import shutil
import time
from pathlib import Path

import pytest
from manual_clock import ManualClock

from hone.cli.commands import retrain
from hone.cli.main import main
from hone.decide.monitor.retraining import JobQueue

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "decisions" / "shop"


def test_the_shop_learns_and_its_file_can_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    runpy.run_path(str(tmp_path / "example" / "shop.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert int(said.split(" clicks")[0]) > 200
    assert "600 decisions in the log" in said
    assert main(["serve", str(tmp_path / "example" / "shop.toml"), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "floor 0.05, every action has probability 0.0167 or more" in plan
    assert "retrain    retrain.toml, linucb; a job waits for 4000 rewards" in plan


def test_the_example_of_a_feature_store_does_what_its_readme_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLE.parent / "features", tmp_path / "example")
    monkeypatch.chdir(tmp_path / "example")
    assert main(["service", "shop.toml", "--features", "rows.jsonl"]) == 0
    assert "stored 3 rows of features" in capsys.readouterr().out
    runpy.run_path("shop.py", run_name="__main__")
    printed = capsys.readouterr().out
    assert "zoe: none by version default:none, fallback: features: visitor missing" in printed
    assert "the log has what was served: spent_30d = 81.5" in printed


@pytest.mark.slow
def test_a_job_of_the_shop_trains_with_the_config_that_it_ships(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    monkeypatch.chdir(tmp_path / "example")
    runpy.run_path("shop.py", run_name="__main__")
    work = {"since_s": "0.0", "words": "drift"}
    JobQueue(Path("shop/jobs.db")).submit("j1", tenant="default", work=work, at_s=1.0)
    tomorrow = ManualClock(time.time() + 86400.0)  # every window has closed
    monkeypatch.setattr(retrain, "SystemClock", lambda: tomorrow)
    assert main(["retrain", "shop.toml", "--once"]) == 0
    assert "job j1 of tenant default, attempt 1: done: version" in " ".join(capsys.readouterr().out.split())
