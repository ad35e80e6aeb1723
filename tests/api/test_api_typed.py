"""The package is typed for its users: a type checker sees through `hone.api`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
from hone.api import StepEvent, evaluate, sample, train, train_seeds

def on_step(event: StepEvent) -> bool:
    return event.step < 3

result = train({"recipe": "ppo", "steps": 4}, on_step=on_step)
reveal_type(result)
reveal_type(evaluate(result))
reveal_type(sample(result, prompt="1+1=")[0].score)
train("file.toml", runs=5)
train_seeds({"recipe": "ppo"}, "three")

def wrong(event: StepEvent) -> bool:
    return event.stepp

train({}, on_step=wrong)
"""


def test_the_marker_of_typed_packages_is_in_the_package() -> None:
    assert (ROOT / "src/hone/py.typed").is_file()


@pytest.mark.slow  # pyright takes ten seconds to read the package
def test_a_type_checker_sees_through_the_api(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "program.py"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    told = answer.stdout
    assert 'Type of "result" is "TrainingResult"' in told, answer.stderr
    assert 'Type of "evaluate(result)" is "Mapping[str, float]"' in told
    assert 'is "float | None"' in told
    errors = [line for line in told.splitlines() if " - error: " in line]
    assert [int(line.split(":")[1]) for line in errors] == [11, 12, 15], told
