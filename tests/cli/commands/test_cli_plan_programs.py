"""`hone plan` runs the reference solutions and an empty program through the tests of code datasets."""

import json
from pathlib import Path
from typing import Any

import pytest

from hone.cli.main import main
from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import CodeSandbox, close_shared

CONFIG = """
recipe = "grpo"
steps = 2
task = { source = "programs.jsonl" }
rewards.functions = [{ use = "code_tests" }]
rollout = { prompts_per_step = 2, samples_per_prompt = 2, max_tokens = 8 }
learner = { lr = 1e-4, micro_batch_tokens = 64 }
[model.new]
hidden_size = 32
layers = 1
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
"""
HUMANEVAL = {
    "prompt": "def half(x):\n",
    "canonical_solution": "    return x / 2\n",
    "test": "def check(candidate):\n    assert candidate(1) == 0.5\n",
    "entry_point": "half",
}
MBPP = {
    "prompt": "Sort.",
    "code": "def sorted(x):\n    return [*x][::-1]",
    "test_list": ["assert sorted([2, 1]) == [1, 2]"],
}
APPS = {"prompt": "Double.", "solutions": '["print(2 * int(input()))"]', "inputs": ["2"], "outputs": ["4"]}
PLAIN = {"prompt": "Add.", "tests": ["assert add(1, 2) == 3"]}
SOLVED = "2 reference solutions score 1, 2 empty programs score 0"
ANSWERED = {**PLAIN, "completion": "So:\n```python\ndef add(a, b):\n    return a + b\n```"}


@pytest.fixture(scope="module", autouse=True)
def _needs_a_rung() -> Any:
    with CodeSandbox(SandboxPolicy()) as opened:
        if not opened.probe().rung:
            pytest.skip("this machine cannot confine programs")
    yield
    close_shared()


def plan(folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any], options: str = "") -> int:
    (folder / "run.toml").write_text(CONFIG.replace('"code_tests" }', f'"code_tests"{options} }}'), encoding="utf-8")
    (folder / "programs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.chdir(folder)
    return main(["plan", "run.toml"])


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([HUMANEVAL, HUMANEVAL | {"prompt": "def  half(x):\n"}], SOLVED),
        ([MBPP, MBPP | {"prompt": "Sort it."}], SOLVED),
        ([APPS, APPS | {"prompt": "Twice."}], SOLVED),
        ([ANSWERED, ANSWERED | {"prompt": "Sum."}], SOLVED),
        ([PLAIN, PLAIN | {"prompt": "Sum."}], "0 reference solutions score 1, 2 empty programs score 0; 2 rows"),
    ],
)  # fmt: skip
def test_right_rows_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rows: Any, note: str
) -> None:
    assert plan(tmp_path, monkeypatch, *rows) == 0
    assert note in " ".join(capsys.readouterr().out.split())


def test_wrong_rows_are_refused_with_what_they_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = PLAIN | {"reference_solution": "def add(a, b):\n    return a - b"}
    hollow = PLAIN | {"tests": [{"input": "", "output": ""}], "reference_solution": "pass"}
    broken = PLAIN | {"tests": ["import no_such_module\nassert add(1, 2) == 3"], "reference_solution": "pass"}
    assert plan(tmp_path, monkeypatch, wrong, hollow, broken) == 3
    err = " ".join(capsys.readouterr().err.split())
    assert "row 1: reward function 'code_tests': the reference solution in column 'reference_solution' scores 0" in err
    assert "row 2: reward function 'code_tests': an empty program scores 1, not 0" in err
    assert (
        "row 3: reward function 'code_tests': the reference solution in column 'reference_solution' scores nothing"
        in err
    )
    assert "no_such_module" in err
