"""Limits of a run: what a child sees of them, by a control group and by the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from hone.run.queue.limits import RunLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's")
GREEDY = "held = bytearray(300 << 20); print(len(held))"


def started(limits: RunLimits, code: str, group: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = limits.command([sys.executable, "-c", code], group)
    return subprocess.run(command, env=limits.environment(), capture_output=True, text=True, check=False)


def test_a_process_has_no_more_memory_than_its_bound() -> None:
    assert started(RunLimits(), GREEDY).stdout.strip() == str(300 << 20)
    assert started(RunLimits(memory_bytes=600 << 20), GREEDY).returncode == 0
    refused = started(RunLimits(memory_bytes=100 << 20), GREEDY)
    assert refused.returncode == 1 and "MemoryError" in refused.stderr


def test_a_run_is_scheduled_on_its_cores_and_starts_as_many_threads() -> None:
    code = "import os; print(len(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    assert started(RunLimits(cores=1), code).stdout.split() == ["1", "1"]


def test_a_group_has_the_bound_and_the_process(tmp_path: Path) -> None:
    """A folder in place of the system's: it shows what is written, and bounds nothing."""
    limits = RunLimits(memory_bytes=5 << 20, groups=tmp_path)
    assert limits.make_group("1-1") is None, "no control groups here"
    (tmp_path / "cgroup.subtree_control").write_text("cpu pids")
    assert limits.make_group("1-1") is None, "they do not count memory"
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    group = limits.make_group("1-1")
    assert group is not None and (group / "memory.max").read_text() == str(5 << 20)
    done = started(
        limits, "import os, resource; print(os.getpid(), resource.getrlimit(resource.RLIMIT_DATA)[0])", group
    )
    pid, bound = done.stdout.split()
    assert (group / "cgroup.procs").read_text() == pid and bound == "-1", "the group bounds it, the process need not"
    assert limits.describe(group) == "5 MiB in a control group"
    assert RunLimits(groups=tmp_path).make_group("2-1") is None and RunLimits().describe(None) == ""
