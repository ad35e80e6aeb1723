"""Debugging: planted faults are found by tensor, row and line; a failure of user code comes back where it was."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import REWARDS, hone, lay_out

from hone.evaluate.debugging import FiniteWatch, smallest_cause
from hone.run.capsule import read_batch, read_capsule
from hone.run.store.events import read_events

BROKEN = '''
"""A loss with a fault: the square root of an advantage."""

import torch

from hone.credit.group import group_relative
from hone.objectives.weights import token_mean
from hone.text import recipe


class Broken(recipe.TextGradientRunConfig):
    def method(self, policies):
        def objective(view):
            return recipe.LossTerms(loss=-torch.sqrt(view.advantage) * view.logp)

        loss = recipe.TokenLossSpec(objective=objective, scheme=token_mean, proportional_to_advantage=True)
        return recipe.TextMethod(credit=group_relative, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.RecipeSpec(config=Broken, summary="broken", paper="nobody", limitation="It fails.")
'''
FAILING = (
    REWARDS
    + '''
def failing(completions, answer, step=[0], **columns):
    """Raises from its third call on, while a file `mended` is not there."""
    step[0] += 1
    if step[0] > 2 and not pathlib.Path("mended").exists():
        raise KeyError("no such answer")
    return close(completions, answer)
'''
)
QUIET = ("run.certify=false", "learner.epochs=1", "learner.minibatches=1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "failing.py").write_text(FAILING)
    text = (tmp_path / "grpo.toml").read_text().split("[algorithm]")[0].replace('"grpo"', '"broken.py"')
    (tmp_path / "broken.toml").write_text(text)
    return tmp_path


def test_a_loss_that_is_not_finite_is_named_with_its_line_and_rows(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hone("train", "broken.toml", *QUIET) == 6
    run = here / "runs" / "tiny"
    batch, failure = read_batch(run), read_capsule(run)
    assert (failure.kind, failure.step, failure.has_batch, failure.checkpoint) == ("refused_update", 1, True, 0)
    capsys.readouterr()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}
    assert hone("debug", "tiny") == 0
    shown = capsys.readouterr().out
    assert "first tensor that is not finite: aten.sqrt gave" in shown
    assert "broken.py:14, in objective: return recipe.LossTerms(loss=-torch.sqrt(view.advantage) * view.logp)" in shown
    assert "gradients that are not finite: decoder." in shown
    line = next(line for line in shown.splitlines() if "answer" in line and "row" in line and "group" in line)
    group = int(line.split("group ")[1].split(",")[0])
    negative = batch.credits.advantage < 0
    assert group in batch.episodes.group[batch.episodes.owner[negative]], "the rows are those of a negative advantage"
    report = run / "capsule" / "report.md"
    assert "# Failure in step 1" in report.read_text()
    assert {path: path.read_bytes() for path in before} == before, "the run is as it was"
    assert hone("train", "grpo.toml", *QUIET) == 0, "the name of a run that saved nothing is free"
    assert not report.exists()


def test_a_failing_reward_comes_back_from_the_checkpoint(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "rewards.functions=[{use='failing.py:failing'}]"
    assert hone("train", "grpo.toml", asked, *QUIET) == 4
    run = here / "runs" / "tiny"
    failure = read_capsule(run)
    assert (failure.kind, failure.checkpoint) == ("user_code", 2)
    assert any("KeyError" in message for message in failure.messages)
    last = read_events(run).events[-1]
    assert (last.kind, last.data["capsule"]) == ("failure", "capsule")
    lines = (run / "metrics.jsonl").read_bytes()
    (here / "mended").touch()
    capsys.readouterr()
    assert hone("debug", "tiny") == 0
    assert "repeated from the checkpoint of step 2: no failure" in capsys.readouterr().out
    assert (run / "metrics.jsonl").read_bytes() == lines
    assert hone("train", "grpo.toml", asked, *QUIET, "--resume") == 0
    assert [one.kind for one in read_events(run).events if one.kind in ("start", "failure", "resume", "finish")] == [
        "start", "failure", "resume", "finish",
    ]  # fmt: skip
    steps = [json.loads(line)["step"] for line in (run / "histograms.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 7)), "no step twice"


def test_a_failure_of_the_first_step_is_repeated(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hone("train", "grpo.toml", "rewards.functions=[{use='rewards.py:close'}, {use='bad.py:bad'}]", *QUIET) == 2
    (here / "bad.py").write_text("def bad(completions, **columns):\n    raise OSError('no disk')\n")
    assert hone("train", "grpo.toml", "rewards.functions=[{use='bad.py:bad'}]", *QUIET) == 4
    capsys.readouterr()
    assert hone("debug", "tiny") == 0
    shown = capsys.readouterr().out
    assert "repeated from the first step: the same failure comes back" in shown
    raised = "it is raised at " + str(here / "bad.py") + ":2, in bad: raise OSError('no disk')"
    assert raised in shown, "the line of the user's code, which runs in another process"


def test_a_run_without_a_failure_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hone("train", "grpo.toml", "steps=1", *QUIET) == 0
    assert hone("debug", "tiny") == 3
    assert "it ended without a failure" in capsys.readouterr().err
    assert not (here / "runs" / "tiny" / "capsule").exists()


# --------------------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize(("count", "bad"), [(1, 0), (7, 4), (64, 63), (1000, 500)])
def test_a_single_row_is_found_in_a_logarithm_of_calls(count: int, bad: int) -> None:
    calls = 0

    def fails(rows: np.ndarray) -> bool:
        nonlocal calls
        calls += 1
        return bad in rows

    assert smallest_cause(count, fails).tolist() == [bad]
    assert calls <= 2 * max(1, count).bit_length()


def test_rows_that_fail_only_together_are_kept_together() -> None:
    assert smallest_cause(8, lambda rows: {1, 6} <= set(rows.tolist())).tolist() == list(range(8))


def test_the_watch_names_the_first_nan_and_passes_masks() -> None:
    with FiniteWatch() as watch:
        scores = torch.zeros(3).masked_fill(torch.tensor([True, False, False]), -torch.inf).softmax(0)
        assert watch.first == {}, "an infinity that a mask puts there is no fault"
        (scores - 1).sqrt().log().exp()
    assert set(watch.first) == {"NaN"}
    broken = watch.first["NaN"]
    assert (broken.operation, broken.shape, broken.count) == ("aten.sqrt", (3,), 3)
    assert "in test_the_watch_names_the_first_nan_and_passes_masks: (scores - 1).sqrt()" in broken.place
    with FiniteWatch() as watch:
        torch.tensor([1e30]).square()
    assert watch.first["infinity"].operation in ("aten.pow.Tensor_Scalar", "aten.square")
