"""Callbacks that a config names: all of an event are called, checked before the run, and one may end it."""

from pathlib import Path

import pytest
from tiny_runs import hone, lay_out

from hone.core.errors import ConfigError, UserCodeError
from hone.run.callbacks import RunCallbacks, StepEvent, check_callbacks, load_callbacks

CALLBACKS = '''
class Follow:
    """Writes down what it hears."""

    def write(self, line):
        with open("heard.txt", "a") as file:
            print(line, file=file)

    def on_step(self, event):
        self.write(f"step {event.step}")

    def on_checkpoint(self, event):
        self.write(f"checkpoint {event.step}")

def stop(event):
    return event.step < 3

def fail(event):
    raise KeyError("gone")

class Silent: ...

class Broken:
    def __init__(self):
        raise OSError("no network")

number = 3
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    (tmp_path / "mine.py").write_text(CALLBACKS)
    return tmp_path


def test_callbacks_of_a_config_follow_the_run_and_end_it(here: Path) -> None:
    named = "run.callbacks=['mine.py:Follow', 'mine.py:stop']"
    assert hone("train", "sft.toml", named, "run.certify=false") == 0
    assert (here / "heard.txt").read_text().splitlines() == [
        "step 1", "step 2", "checkpoint 2", "step 3", "checkpoint 3"
    ], "the class hears of the step at which the function ends the run"  # fmt: skip
    assert hone("train", "sft.toml", "run.callbacks=[]", "run.certify=false", "--resume") == 0


def event(step: int) -> StepEvent:
    return StepEvent(step=step, steps=9, metrics={}, run=Path())


def test_all_callbacks_of_an_event_are_called_and_named(here: Path) -> None:
    heard: list[int] = []
    hooks = load_callbacks(["mine.py:stop", "mine.py:Follow"], RunCallbacks(on_step=lambda one: heard.append(one.step)))
    assert hooks.on_step is not None
    assert [hooks.on_step(event(step)) for step in (2, 3)] == [True, False]
    assert heard == [2, 3], "callbacks of Python come first"
    assert (here / "heard.txt").read_text().splitlines() == ["step 2", "step 3"], "also after one that ends the run"
    assert hooks.on_evaluation is None
    with pytest.raises(UserCodeError, match=r"mine.py:fail raised KeyError: 'gone'"):
        load_callbacks(["mine.py:fail"]).on_step(event(1))  # type: ignore[misc]


@pytest.mark.usefixtures("here")
def test_what_is_no_callback_is_told() -> None:
    with pytest.raises(ConfigError) as told:
        check_callbacks(["mine.py", "mine.py:Follow", "absent.py:Follow"])
    assert ["write path/to/file.py:name" in told.value.messages[0], "absent.py" in told.value.messages[1]] == [True] * 2
    with pytest.raises(ConfigError, match="neither a function nor a class with on_step, on_evaluation or on_check"):
        load_callbacks(["mine.py:Silent"])
    with pytest.raises(ConfigError, match="neither"):
        load_callbacks(["mine.py:number"])
    with pytest.raises(UserCodeError, match="no network"):
        load_callbacks(["mine.py:Broken"])
    with pytest.raises(UserCodeError, match="has no 'Fellow'; did you mean Follow"):
        load_callbacks(["mine.py:Fellow"])


@pytest.mark.usefixtures("here")
def test_an_absent_callback_is_refused_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert hone("train", "sft.toml", "run.callbacks=['absent.py:Follow']") == 2
    assert "run.callbacks: 'absent.py:Follow': no such file absent.py" in capsys.readouterr().err
    assert not Path("runs/tiny").exists()
