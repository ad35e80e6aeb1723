"""The driver of verifiers' environments, with a stand-in for the package; tests/peers runs it with the package."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hone.cli.main import main
from hone.core.dialogue import PlannedSession, SessionReport
from hone.core.errors import ConfigError, HoneError, LostResourceError, UserCodeError
from hone.process.child import ForeignProgram
from hone.run.store.metrics import without_clock_metrics
from hone.text.adapters.verifiers import VerifiersDriver

STAND_IN = Path(__file__).with_name("verifiers_stand_in")


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that has the stand-in."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec env PYTHONPATH={STAND_IN} {sys.executable} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def driver(python: str, tmp_path: Path) -> Iterator[VerifiersDriver]:
    made = VerifiersDriver(name="sums", python=python, folder=tmp_path, opening_s=30)
    yield made
    made.close()


def test_tasks_are_rows_of_a_dataset(driver: VerifiersDriver) -> None:
    rows = driver.examples().rows
    assert [row.prompt for row in rows] == [
        [{"role": "user", "content": "1+1="}],
        [{"role": "system", "content": "2"}, {"role": "user", "content": "1+2="}],
    ]
    assert [row.columns["task"] for row in rows] == [0, 1]


def test_failures_of_sessions_are_reports_and_the_others_go_on(python: str, tmp_path: Path) -> None:
    config = {"taskset": {"prompts": ["raises", "fails"]}}
    driver = VerifiersDriver(name="sums", python=python, folder=tmp_path, config=config)
    reports: dict[str, SessionReport] = {}
    done = threading.Event()

    def report(one: SessionReport) -> None:
        reports[one.session] = one
        if len(reports) == 2:
            done.set()

    planned = [PlannedSession(id=f"s{task}", group="0", columns={"task": task}, seed=0) for task in (0, 1)]
    try:
        driver.begin(planned, "http://127.0.0.1:9/{}".format, report)
        assert done.wait(300)
        driver.check()
    finally:
        driver.close()
    assert reports["s0"].error == "RuntimeError: a harness broke"
    assert reports["s1"].error == "EnvError: no luck"


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("broken", "verifiers:broken cannot be opened: ValueError: its data is gone", UserCodeError),
        ("dies", "verifiers:dies cannot be opened: it ended with code 9", UserCodeError),
    ],
)
def test_environments_that_cannot_be_opened_say_why(
    python: str, tmp_path: Path, name: str, words: str, kind: type[HoneError]
) -> None:
    with pytest.raises(kind, match=words):
        VerifiersDriver(name=name, python=python, folder=tmp_path).examples()


def test_an_interpreter_without_the_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{sys.executable} has no package verifiers; .* user_code\.agents\.python"):
        VerifiersDriver(name="sums", folder=tmp_path).examples()


CONFIG = """
recipe = "grpo"
steps = 3
[model]
compute = "float32"
[model.new]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
max_positions = 64
alphabet = "0123456789+="
[task]
source = "verifiers:sums"
[user_code]
agents.python = "{python}"
[rollout]
prompts_per_step = 2
samples_per_prompt = 3
max_tokens = 3
[learner]
lr = 1e-2
[run]
checkpoint_every = 1
certify = false
"""


def test_a_resumed_run_of_an_environment_is_the_same_run(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge's answers are no rows, and the environment's own figures are metrics."""
    monkeypatch.chdir(tmp_path)
    Path("vf.toml").write_text(CONFIG.format(python=python), encoding="utf-8")
    assert main(["train", "vf.toml", "--runs", "whole"]) == 0
    assert main(["train", "vf.toml", "--runs", "cut", "steps=2"]) == 0
    assert main(["train", "vf.toml", "--runs", "cut", "steps=3", "--resume"]) == 0
    whole, cut = (
        without_clock_metrics((tmp_path / name / "vf" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        for name in ("whole", "cut")
    )
    assert whole == cut
    told = [json.loads(line) for line in whole]
    assert [(one["capture/requests"], one["capture/rows"], one["world/long"]) for one in told] == [(2.0, 1.0, 1.0)] * 3


def test_a_process_that_was_killed_stops_the_run(driver: VerifiersDriver) -> None:
    driver.begin([], str, lambda _: None)
    assert driver._program is not None and driver._program._process is not None
    os.kill(driver._program._process.pid, 9)
    driver._program._process.wait()
    with pytest.raises(LostResourceError, match="the process of the environment is gone: it ended with code -9"):
        driver.check()


def test_a_program_has_ended_when_its_lines_are_handed_on(tmp_path: Path) -> None:
    """Its last line is its reason: who saw the end before the line took the exit code for the reason."""
    lines: list[dict[str, Any]] = []

    def take(line: dict[str, Any]) -> None:
        time.sleep(0.3)
        lines.append(line)

    program = ForeignProgram([sys.executable, "-c", "print('{\"fault\": 1}')"], folder=tmp_path, on_line=take)
    program.start()
    try:
        while not (reason := program.ended()):
            time.sleep(0.01)
    finally:
        program.close()
    assert (reason, lines) == ("it ended with code 0", [{"fault": 1}])
