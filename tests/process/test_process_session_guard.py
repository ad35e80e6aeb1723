"""A guard ends what its starter started, however the starter ends, and removes the folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ended_processes import gone

from hone.process.session_guard import VARIABLE, SessionGuard

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")

STARTER = """
import subprocess, sys, time
from pathlib import Path
from hone.process.session_guard import SessionGuard

guard = SessionGuard.start("guarded_", base=Path(sys.argv[1]))
with guard.marking():
    marked = subprocess.Popen(["sleep", "600"], start_new_session=True)
log = (guard.folder / "server.log").open("w")
titled = subprocess.Popen(["sleep", "600"], start_new_session=True, env={}, stdout=log)
other = subprocess.Popen(["sleep", "600"], start_new_session=True)
log.close()
if sys.argv[2] == "fork":  # before the line that the test waits for: a kill must not come between
    import os
    if os.fork() == 0:  # it holds the pipe to the guard
        time.sleep(600)
print(guard.folder, guard.process.pid, marked.pid, titled.pid, other.pid, flush=True)
time.sleep(600)
"""


def started(base: Path, how: str = "plain") -> tuple[subprocess.Popen[str], Path, list[int]]:
    """A starter, its folder, and the guard, two guarded processes and one that is not."""
    command = [sys.executable, "-c", STARTER, str(base), how]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert starter.stdout is not None
    folder, *pids = starter.stdout.readline().split()
    starter.stdout.close()
    return starter, Path(folder), [int(pid) for pid in pids]


def wait_for_removal(folder: Path) -> None:
    limit = time.monotonic() + 300
    while folder.exists():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGKILL, "plain"), (signal.SIGTERM, "plain"), (signal.SIGKILL, "fork")]
)
def test_nothing_is_left_of_a_killed_starter(number: signal.Signals, how: str, tmp_path: Path) -> None:
    """Neither the marked process, nor one that lost its environment and holds a file of the folder open."""
    starter, folder, (guard, marked, titled, other) = started(tmp_path, how)
    os.kill(starter.pid, number)
    assert starter.wait(300) == -number
    assert gone(marked)
    assert gone(titled)
    assert gone(guard)
    wait_for_removal(folder)
    assert not gone(other, within_s=0.0)
    os.killpg(other, signal.SIGKILL)
    if how == "fork":
        os.killpg(starter.pid, signal.SIGKILL)


def test_a_closed_guard_spares_its_starter(tmp_path: Path) -> None:
    guard = SessionGuard.start("guarded_", base=tmp_path)
    with guard.marking():
        marked = subprocess.Popen(["sleep", "600"])
        assert os.environ[VARIABLE] == str(guard.folder)
    assert VARIABLE not in os.environ
    with (guard.folder / "mine").open("w"):  # the starter's own file
        guard.close()
    assert marked.wait(300) == -signal.SIGKILL
    assert not guard.folder.exists()
    assert guard.process.returncode == 0


def test_the_folder_of_a_killed_guard_goes_with_the_next_one(tmp_path: Path) -> None:
    starter, folder, (guard, marked, titled, other) = started(tmp_path)
    os.kill(guard, signal.SIGKILL)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait(300)
    assert gone(guard)
    assert folder.exists()
    fresh = SessionGuard.start("guarded_", base=tmp_path)
    assert not folder.exists()
    assert gone(marked)
    assert gone(titled)
    second = SessionGuard.start("guarded_", base=tmp_path)  # leaves the folder of a living guard alone
    assert fresh.folder.exists()
    for one in (fresh, second):
        one.close()
    os.kill(other, signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
