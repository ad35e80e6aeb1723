"""`hone init`: every choice writes a config that is planned, and the first of each kind that trains."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import hone
from hone.cli.commands.init import KINDS, config_text
from hone.cli.commands.train import planned_runs
from hone.cli.main import main
from hone.config.resolve import read_document

CHOICES = [(kind, method) for kind, one in KINDS.items() for method in one.methods]
TINY = {
    "sft": ["steps=2"], "grpo": ["stage.0.steps=2", "stage.1.steps=1"], "dpo": ["steps=2"],
    "dqn": ["steps=20"], "sac": ["steps=20"], "ppo": ["steps=1"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("kind", "method"), CHOICES)
def test_every_choice_writes_a_config_that_can_be_planned(kind: str, method: str) -> None:
    assert main(["init", "new/run.toml", "--what", kind, "--by", method]) == 0
    stages = planned_runs(read_document("new/run.toml", []))
    assert stages[-1].resolved.config.recipe == method
    assert len(stages) == (2 if method == "grpo" else 1)
    assert Path("new/sums.jsonl").exists() is (kind == "language")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "method"), CHOICES)
def test_every_choice_trains(kind: str, method: str) -> None:
    assert main(["init", "--what", kind, "--by", method]) == 0
    quiet = "shared.run.certify=false" if method == "grpo" else "run.certify=false"
    assert main(["train", "run.toml", quiet, *TINY.get(method, ["steps=10"])]) == 0


def test_own_data_and_environments_are_taken() -> None:
    Path("mine.jsonl").write_text('{"prompt": "a", "completion": "b"}\n', encoding="utf-8")
    assert main(["init", "own.toml", "--what", "language", "--by", "sft", "--on", "mine.jsonl"]) == 0
    assert planned_runs(read_document("own.toml", []))[0].resolved.settings()["task.source"].value == "mine.jsonl"
    assert not Path("sums.jsonl").exists()
    Path("asked.jsonl").write_text('{"prompt": "a", "answer": "b"}\n', encoding="utf-8")
    assert main(["init", "reward.toml", "--by", "grpo", "--on", "asked.jsonl"]) == 0
    assert len(planned_runs(read_document("reward.toml", []))) == 1, "no start: its rows have no completions"
    assert 'id = "Acrobot-v1"' in config_text("control", "ppo", "Acrobot-v1")
    assert "rates = [0.0, 1.0]" in config_text("bandit", "thompson", "0,1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--what", "langauge"], "did you mean language"),
        (["--what", "control", "--by", "grpo"], "known: ppo, dqn, sac"),
        (["--what", "bandit", "--on", "0.5"], "two numbers from 0 to 1"),
        (["--what", "bandit", "--on", "0.5,1.5"], "two numbers from 0 to 1"),
        (["--what", "bandit", "--on", "a,b"], "two numbers from 0 to 1"),
    ],
)
def test_other_answers_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("run.toml").exists()


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    before = Path("run.toml").read_bytes()
    assert json.loads(Path("sums.jsonl").read_text().splitlines()[0])["answer"] == "0"
    assert main(["init", "--what", "control"]) == 2
    assert "run.toml exists" in capsys.readouterr().err
    assert main(["init", "other.toml"]) == 2
    assert "sums.jsonl exists" in capsys.readouterr().err
    assert Path("run.toml").read_bytes() == before


@pytest.mark.slow
def test_a_terminal_is_asked_three_questions() -> None:
    parent, child = pty.openpty()
    code = "import sys; from hone.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(Path(hone.__file__).parents[1])}
    command = [sys.executable, "-c", code, "init"]
    with subprocess.Popen(command, stdin=child, stdout=subprocess.PIPE, env=environment) as process:
        os.write(parent, b"control\ndqn\nAcrobot-v1\n")
        out = process.communicate(timeout=300)[0].decode()
    os.close(parent)
    os.close(child)
    assert process.returncode == 0, out
    assert [question in out for question in ("What learns?", "From what does it learn?", "On what?")] == [True] * 3
    assert 'id = "Acrobot-v1"' in Path("run.toml").read_text()
