"""The example of a shop does what its README says."""

import runpy
import shutil
from pathlib import Path

import pytest

from hone.cli.main import main

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "decisions" / "shop"


def test_the_shop_learns_and_its_file_can_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    runpy.run_path(str(tmp_path / "example" / "shop.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert int(said.split(" clicks")[0]) > 200
    assert "600 decisions in the log" in said
    assert main(["serve", str(tmp_path / "example" / "shop.toml"), "--dry-run"]) == 0
    assert "floor 0.05, every action has probability 0.0167 or more" in capsys.readouterr().out
