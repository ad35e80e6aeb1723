"""The pipeline of the preference examples, with fewer steps."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

from hone.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
SMALLER = {
    r"^steps = \d+": "steps = 2",
    r"^batch = \d+": "batch = 8",
    r"prompts_per_step = \d+": "prompts_per_step = 4",
}


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shutil.copytree(ROOT / "examples" / "preferences", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    runpy.run_path("examples/strings.py", run_name="__main__")
    path = tmp_path / "examples" / "pipeline.toml"
    text = path.read_text(encoding="utf-8")
    for pattern, smaller in SMALLER.items():
        text = re.sub(pattern, smaller, text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")
    return "examples/pipeline.toml"


def test_the_prompts_that_are_judged_are_in_no_data(pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", pipeline]) == 0, capsys.readouterr().err
    assert "stand in the training and in the evaluation set" not in capsys.readouterr().out


@pytest.mark.slow  # five stages, three of them judged on 128 prompts by worker processes
def test_the_pipeline_runs(pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", pipeline]) == 0, capsys.readouterr().err
    page = Path("runs/preferences/report.html").read_text(encoding="utf-8")
    assert "dpo" in page and "rloo" in page
