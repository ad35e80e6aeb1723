"""Whole runs on a CUDA device, by the commands that a user types: examples, resumes, evaluation, samples."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from tiny_runs import EVALUATION, GRPO, MODEL, hone, lay_out

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
CONTROL = sorted(path.name for path in (ROOT / "examples" / "control").glob("*.toml"))
SHORT = ["steps=2", "evaluation.episodes=2", "name=short"]
PAIRS = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1)} for a in range(6) for b in range(4)]
LOGGED = {
    "sft": "sums", "dpo": "pairs", "simpo": "pairs", "orpo": "pairs", "kto": "unpaired", "reward_pairs": "pairs",
    "reward_outcome": "unpaired", "implicit_prm": "unpaired",
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    unpaired = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in PAIRS
        for side in ("chosen", "rejected")
    ]
    for name, rows in (("pairs", PAIRS), ("unpaired", unpaired)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    return tmp_path


@pytest.mark.parametrize("name", CONTROL)
def test_a_control_recipe_runs_or_says_that_it_is_for_the_cpu(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (place / "examples" / "control" / name).read_text(encoding="utf-8")
    if "log =" in text:
        pytest.skip("needs a log")
    known = SHORT if "evaluation" in tomllib.loads(text) else ["steps=2", "name=short"]
    code = hone("train", f"examples/control/{name}", "--device", "cuda", *known)
    told = capsys.readouterr().err
    assert code == 0 or (code == 2 and "run.device" in told), told


def test_a_text_run_is_resumed_evaluated_and_sampled(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "grpo.toml").write_text(GRPO + EVALUATION, encoding="utf-8")
    assert hone("train", "grpo.toml", "--device", "cuda") == 0, capsys.readouterr().err
    assert hone("train", "grpo.toml", "--device", "cuda", "name=half", "steps=4") == 0, capsys.readouterr().err
    again = ("train", "grpo.toml", "--device", "cuda", "name=half", "steps=6", "--resume")
    assert hone(*again) == 0, capsys.readouterr().err
    lines = (place / "runs" / "half" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["step"] == 6
    assert hone("eval", "tiny", "--device", "cuda") == 0, capsys.readouterr().err
    assert hone("sample", "tiny", "--prompt", "1+2=", "--device", "cuda") == 0, capsys.readouterr().err


@pytest.mark.parametrize("recipe", LOGGED)
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_recipe_on_recorded_answers_runs(
    recipe: str, compute: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = f"""
recipe = "{recipe}"
name = "logged"
steps = 4
batch = 8
{MODEL.replace('"float32"', f'"{compute}"')}
[task]
source = "{LOGGED[recipe]}.jsonl"
[learner]
lr = 1e-2
minibatches = 2
[run]
threads = 1
checkpoint_every = 2
"""
    (place / "logged.toml").write_text(config, encoding="utf-8")
    assert hone("train", "logged.toml", "--device", "cuda") == 0, capsys.readouterr().err
    assert hone("train", "logged.toml", "--device", "cuda", "steps=6", "--resume") == 0, capsys.readouterr().err
