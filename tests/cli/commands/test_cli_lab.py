"""`hone lab`: a verdict that does not hold is said, and ends with 1."""

from pathlib import Path

import pytest

from hone.cli.commands import lab
from hone.cli.main import main
from hone.lab.finding import BarPlot, BoundedClaim, Experiment, ExperimentResult


def experiment(name: str) -> Experiment:
    def run(seed: int, *, quick: bool = False) -> ExperimentResult:
        value = 1.0 if name == "good" else 0.0
        claim = BoundedClaim(says="it is so", value=value, at_least=0.5)
        panel = BarPlot(title="t", labels=["a"], values=[value])
        return ExperimentResult(header=("a",), rows=[("1",)], panels=[panel], verdict=f"{name} verdict", claims=[claim])

    return Experiment(title=name, question="is it?", run=run)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "experiment_names", lambda: ["bad", "good"])
    monkeypatch.setattr(lab, "load_experiment", experiment)


def test_the_exit_code_says_whether_the_verdicts_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "all", "--out", str(tmp_path)]) == 1
    assert "1 of 2 verdicts hold" in capsys.readouterr().out
    assert main(["lab", "run", "good", "--out", str(tmp_path)]) == 0
    assert main(["lab", "run", "bad", "--out", str(tmp_path)]) == 1
