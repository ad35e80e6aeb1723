"""User code that forks daemons: nothing that it started is alive after its process was closed or killed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ended_processes import gone

from hone.control.expert_process import ExpertProcess
from hone.core.errors import UserCodeError
from hone.rewards.solutions import run_solutions

DAEMON = """
import os, pathlib, sys, time

def daemon(folder):
    \"\"\"A grandchild in a session of its own, orphaned, with an empty environment; returns when it runs.\"\"\"
    path = pathlib.Path(folder) / "pid"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            path.write_text(str(os.getpid()))
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"], {})
        os._exit(0)
    while not path.exists() or not path.read_text():
        time.sleep(0.01)

def act(prompt):
    daemon(FOLDER)
    if prompt == "hang":
        time.sleep(1000)
    return "done"

def expert(observations):
    act("hang" if observations[0, 0] else "")
    return observations[:, 0]
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "forking.py"
    path.write_text(DAEMON.replace("FOLDER", repr(str(tmp_path))), encoding="utf-8")
    return path


def ask_solution(module: Path, prompt: str) -> None:
    run_solutions(f"{module}:act", [{"prompt": prompt}], deadline_s=2.0)


def ask_expert(module: Path, prompt: str) -> None:
    process = ExpertProcess(f"{module}:expert", deadline_s=2.0)
    try:
        process.best(np.full((1, 1), prompt == "hang", np.float32))
    finally:
        process.close()


@pytest.mark.parametrize("ask", [ask_solution, ask_expert])
@pytest.mark.parametrize("prompt", ["hang", "return"])
def test_daemons_of_user_code_are_gone(module: Path, prompt: str, ask: Callable[[Path, str], None]) -> None:
    if prompt == "hang":
        with pytest.raises(UserCodeError, match="killed"):
            ask(module, prompt)
    else:
        ask(module, prompt)
    assert gone(int((module.parent / "pid").read_text()))
