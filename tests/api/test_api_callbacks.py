"""Callbacks hear of every step, evaluation and checkpoint, and can end the run."""

from pathlib import Path

import pytest
from test_api_python_config import PPO, figures

from hone.api import CheckpointEvent, EvaluationEvent, StepEvent, train
from hone.core.errors import UserCodeError

LONGER = {**PPO, "steps": 4, "evaluation": {"episodes": 2, "every": 2}, "run": {"checkpoint_every": 2}}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_callbacks_hear_of_everything_in_its_order() -> None:
    heard: list[tuple[str, int]] = []

    def on_step(event: StepEvent) -> None:
        heard.append(("step", event.step))
        assert (event.steps, event.run) == (4, Path("runs/short"))
        assert "loss" in " ".join(event.metrics)

    def on_evaluation(event: EvaluationEvent) -> None:
        heard.append(("evaluation", event.step))
        assert event.low <= event.score <= event.high
        assert event.score == event.metrics["eval/score"]
        assert event.n == 2

    def on_checkpoint(event: CheckpointEvent) -> None:
        heard.append(("checkpoint", event.step))
        assert (event.checkpoint / "policy").is_dir()

    result = train(LONGER, on_step=on_step, on_evaluation=on_evaluation, on_checkpoint=on_checkpoint)
    each = [("evaluation", 2), ("step", 2), ("checkpoint", 2)]
    assert heard == [("step", 1), *each, ("step", 3), *((name, 4) for name, _ in each)]
    quiet = train({**LONGER, "name": "quiet"})
    assert figures(quiet.folder) == figures(result.folder)


@pytest.mark.parametrize("name", ["on_step", "on_evaluation", "on_checkpoint"])
def test_false_ends_the_run_after_the_step_and_a_resume_is_the_same_run(name: str) -> None:
    def stops(event: StepEvent | EvaluationEvent | CheckpointEvent) -> bool:
        return event.step < 2

    stopped = train(LONGER, **{name: stops})
    assert stopped.step == 2
    assert f"stopped after step 2 of 4: {name} returned False" in (stopped.folder / "log.txt").read_text()
    assert stopped.report.is_file()
    whole = train({**LONGER, "name": "whole"})
    assert figures(train(LONGER, resume=True).folder) == figures(whole.folder)


def test_none_and_zero_do_not_end_it() -> None:
    for number, answer in enumerate([None, 0, True, ""]):
        assert train({**LONGER, "name": f"run{number}"}, ["steps=2"], on_step=lambda _, a=answer: a).step == 2


@pytest.mark.parametrize("name", ["on_step", "on_evaluation", "on_checkpoint"])
def test_an_exception_in_a_callback_loses_nothing(name: str) -> None:
    def fails(event: StepEvent | EvaluationEvent | CheckpointEvent) -> None:
        raise KeyError("wandb")

    with pytest.raises(UserCodeError) as caught:
        train(LONGER, **{name: fails})
    told = "\n".join(caught.value.messages)
    step = 1 if name == "on_step" else 2
    assert f"{name} raised KeyError: 'wandb'" in told
    assert f"step {step} of 4 is saved" in told
    assert "test_api_callbacks.py" in told
    assert train(LONGER, resume=True).step == 4


def test_a_callback_may_stop_the_program() -> None:
    def interrupts(event: StepEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(LONGER, on_step=interrupts)


def test_progress_is_shown_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    train(LONGER, ["steps=1"])
    assert capsys.readouterr().out == ""
    train({**LONGER, "name": "shown"}, ["steps=1"], progress=True)
    assert "step 1/1" in capsys.readouterr().out
