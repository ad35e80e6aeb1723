"""The pipeline of the early-experience example, with fewer steps."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

from hone.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
SMALLER = {
    r"^steps = (?!20$)\d+": "steps = 2",  # imitation goes on until it names doors
    r"^batch = \d+": "batch = 8",
    r"prompts_per_step = \d+": "prompts_per_step = 4",
    r"best_of:64": "best_of:4",
    r"samples_per_prompt = \d+": "samples_per_prompt = 16",
}


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shutil.copytree(ROOT / "examples" / "early_experience", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    runpy.run_path("examples/doors.py", run_name="__main__")
    held = Path("held_out.jsonl").read_text(encoding="utf-8").splitlines()
    Path("held_out.jsonl").write_text("\n".join(held[:16]) + "\n", encoding="utf-8")
    path = tmp_path / "examples" / "pipeline.toml"
    text = path.read_text(encoding="utf-8")
    for pattern, smaller in SMALLER.items():
        text = re.sub(pattern, smaller, text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")
    return "examples/pipeline.toml"


def test_the_plan_says_what_training_meets(pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", pipeline]) == 0, capsys.readouterr().err
    assert "16 prompts stand in the training and in the evaluation set" in capsys.readouterr().out


@pytest.mark.slow  # six stages, each judged by worker processes
def test_the_pipeline_runs(pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", pipeline]) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert "dialogues answer the question that hone.text.games.doors:goal_of gave them" in told
    assert "are the warm buffer" in told
    page = Path("runs/early_experience/report.html").read_text(encoding="utf-8")
    assert "hindsight" in page and "rl" in page
