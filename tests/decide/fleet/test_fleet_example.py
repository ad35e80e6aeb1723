"""The example of a fleet does what its README says."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hone.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "decisions" / "fleet"


def test_its_files_are_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    monkeypatch.chdir(tmp_path / "example")
    assert main(["serve", "fleet.toml", "--dry-run"]) == 0
    assert "0.1 of the robots, 0.5 of the robots, 1 of the robots" in capsys.readouterr().out
    assert main(["plan", "learner.toml"]) == 3
    assert "fleet/fleet.db: no log of a fleet" in capsys.readouterr().err


@pytest.mark.slow
def test_one_command_runs_the_fleet_from_its_first_policy_to_its_page(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE / "fleet.py"), str(tmp_path / "life")],
        env={"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert "steps of 50 robots" in run.stdout
    assert "went back to" in run.stdout
    harmed = int(run.stdout.split(" episodes were run by the bad version")[0].split()[-1])
    assert 0 < harmed <= 200
    assert "<h1>fleet: 50 robots" in (tmp_path / "life" / "fleet.html").read_text()
    lines = (tmp_path / "life" / "runs" / "learner" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["robots/staleness_above"] == 0.0
