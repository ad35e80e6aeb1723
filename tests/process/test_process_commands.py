"""Commands of hone as child processes: their ends, their errors, and what happens to those that are killed."""

import os
import signal
import time
from pathlib import Path

import pytest

from hone.core.clock import SystemClock
from hone.process.command_child import error_lines
from hone.process.commands import LOST, HoneCommand, LocalCommands, run_commands


def test_ends_and_errors_are_told_whatever_the_order() -> None:
    started: list[str] = []
    ends = run_commands(
        [
            HoneCommand(name="good", arguments=("--version",)),
            HoneCommand(name="bad", arguments=("trian",)),
        ],
        LocalCommands(1, clock=SystemClock()),
        started=lambda one: started.append(one.name),
    )
    assert started == ["good", "bad"]
    assert {name: end.code for name, end in ends.items()} == {"good": 0, "bad": 2}
    assert ends["bad"].lines[0].startswith("hone has no command 'trian'; did you mean train?")


def test_a_killed_command_is_lost_and_the_rest_is_killed_on_close() -> None:
    runner = LocalCommands(2, clock=SystemClock())
    runner.start(HoneCommand(name="one", arguments=("doctor", "machine")))
    runner.start(HoneCommand(name="two", arguments=("--version",)))
    pids = [child.pid for child in runner._children.values()]
    while not (below := _children_of(pids[0])):
        time.sleep(0.01)
    os.kill(pids[0], signal.SIGKILL)  # the child alone: its command dies with it
    assert _living(below) == []
    ends = []
    while not any(end.name == "one" for end in ends):
        ends += runner.wait(0.1)
    assert next(end for end in ends if end.name == "one").code == LOST
    runner.close()
    assert runner.wait(0) == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _children_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _living(pids: list[int]) -> list[int]:
    limit = time.monotonic() + 300
    while time.monotonic() < limit:
        states = [Path(f"/proc/{pid}/stat") for pid in pids]
        alive = [pid for pid, one in zip(pids, states, strict=True) if one.exists() and ") Z" not in one.read_text()]
        if not alive:
            return []
        time.sleep(0.02)
    return alive


def test_nothing_starts_after_a_stop() -> None:
    commands = [HoneCommand(name="one", arguments=("--version",))]
    assert run_commands(commands, LocalCommands(1, clock=SystemClock()), stopping=lambda: True) == {}


def test_errors_are_told_or_else_the_end_of_the_output() -> None:
    assert error_lines("noise\nerror: a\nerror: b\n", 2) == ["a", "b"]
    assert error_lines("\n".join(map(str, range(20))), 1) == list(map(str, range(8, 20)))
    assert error_lines("", 3) == ["ended with code 3 without a message"]
