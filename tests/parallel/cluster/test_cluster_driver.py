"""The driver of a run with replicas is interrupted or killed: no process is left, and a resume is the same run."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from tiny_runs import differences, files_of, hone, lay_out, lines_of, start, steps_logged, wait_for

from hone.parallel.ray_transport import start_ticks

pytestmark = pytest.mark.slow  # each starts Ray on its own, in a process
pytest.importorskip("ray")

FLEET = ("cluster.rollout.replicas=2", "cluster.rollout.cpus=0.5")
LEFT_S = 300.0


def descendants(root: int) -> list[tuple[int, int | None]]:
    """Processes below `root`, each with its start."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                parent = int((path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(path.name))
    found, waiting = list[tuple[int, int | None]](), [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append((child, start_ticks(child)))
            waiting.append(child)
    return found


def wait_until_gone(processes: list[tuple[int, int | None]], *, seconds: float = LEFT_S) -> None:
    end = time.monotonic() + seconds
    while left := [pid for pid, started in processes if started is not None and start_ticks(pid) == started]:
        assert time.monotonic() < end, [Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:3] for pid in left]
        time.sleep(0.2)


@pytest.fixture
def whole(tmp_path, monkeypatch) -> Path:
    """The run without replicas and without interruption."""
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    assert hone("train", "grpo.toml", "name=whole", "run.certify=false") == 0
    return tmp_path / "runs/whole"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_is_left_and_a_resume_is_the_same_run(tmp_path, whole, number, code, monkeypatch) -> None:
    sessions = Path(tempfile.mkdtemp(dir="/tmp"))  # the path of a socket is short
    monkeypatch.setenv("RAY_TMPDIR", str(sessions))
    (tmp_path / "hold").touch()  # rewards wait, so that the run is met in a step
    driver = start(tmp_path, "train", "grpo.toml", "name=cut", "run.certify=false", *FLEET)
    (tmp_path / "hold").unlink()
    run = tmp_path / "runs/cut"
    wait_for(lambda: steps_logged(run) >= 2, driver, seconds=120)
    (tmp_path / "hold").touch()
    below = descendants(driver.pid)
    replicas = [one for one in below if b"ray::ReplicaActor" in Path(f"/proc/{one[0]}/cmdline").read_bytes()]
    assert replicas
    os.kill(driver.pid, number)
    time.sleep(0.5)
    (tmp_path / "hold").unlink()
    printed, _ = driver.communicate(timeout=LEFT_S)
    assert driver.returncode == code, printed
    wait_until_gone(below)  # Ray's own agents too, which look for their parent once in a while
    end = time.monotonic() + LEFT_S
    while left := list(sessions.iterdir()):
        assert time.monotonic() < end, left
        time.sleep(0.2)
    sessions.rmdir()
    assert hone("train", "grpo.toml", "name=cut", "run.certify=false", "--resume") == 0
    assert lines_of(run) == lines_of(whole)
    assert files_of(run, 6) == files_of(whole, 6)


@pytest.mark.parametrize("on_publish", ["keep", "recompute"])
def test_a_recorded_run_of_replicas_is_replayed_by_one_process(tmp_path, monkeypatch, on_publish) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    table = f'rollout.max_staleness={{steps=2, on_publish="{on_publish}", '
    given = ("grpo.toml", "run.certify=false", "rollout.max_tokens=16", "rollout.max_concurrent=2", "learner.lr=0.1")
    driver = start(tmp_path, "train", *given, table + "interleaving='record'}", "name=first", *FLEET)
    printed, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, printed
    assert hone("train", *given, table + 'interleaving="runs/first"}', "name=again") == 0
    found = differences(tmp_path / "runs/first", tmp_path / "runs/again", step=6)
    assert [one for one in found if not one.startswith(("metrics", "state"))] == []


def test_a_run_under_random_kills_and_stops_is_the_same_run(tmp_path, whole) -> None:
    driver = start(tmp_path, "train", "grpo.toml", "name=cut", "run.certify=false", "cluster.patience_s=3", *FLEET)
    run, harmed = tmp_path / "runs/cut", list[int]()
    for step, number in ((1, signal.SIGKILL), (2, signal.SIGSTOP), (4, signal.SIGKILL)):
        wait_for(lambda step=step: steps_logged(run) >= step, driver, seconds=120)
        replicas = [
            (pid, started)
            for pid, started in descendants(driver.pid)
            if b"ray::ReplicaActor" in Path(f"/proc/{pid}/cmdline").read_bytes() and pid not in harmed
        ]
        if replicas:
            pid, started = replicas[0]
            assert start_ticks(pid) == started
            harmed.append(pid)
            os.kill(pid, number)
    printed, _ = driver.communicate(timeout=180)
    assert driver.returncode == 0, printed
    assert len(harmed) >= 2
    assert "its work is asked of others" in printed
    assert differences(run, whole, step=6) == []
