"""A worker of the queue whose jobs are tasks of a real Ray cluster."""

import os
import threading
import time
from pathlib import Path

import pytest

from hone.core.clock import SystemClock
from hone.parallel.connect import RayCommands
from hone.run.queue.database import open_queue_database
from hone.run.queue.job_queue import RunQueue
from hone.run.queue.local_worker import LocalWorker

pytestmark = pytest.mark.slow  # a task imports torch
CONFIG = """
recipe = "sft"
steps = 300
batch = 2
[model.new]
hidden_size = 32
layers = 1
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
[task]
source = "sums.jsonl"
[learner]
lr = 1e-3
[run]
threads = 1
checkpoint_every = 0
certify = false
"""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunQueue:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1+1=", "completion": "2", "answer": "2"}\n' * 4)
    (tmp_path / "sums.toml").write_text(CONFIG)
    return RunQueue(open_queue_database(str(tmp_path / "queue.db")), SystemClock(), lease_s=3.0)


def worker_of(queue: RunQueue, folder: Path) -> LocalWorker:
    runner = RayCommands(1, address="auto", folder=folder, cpus=1)
    return LocalWorker(queue, "ray", folder / "runs", lambda line: None, runner=runner)


def wait_for_lines(log: Path, lines: int) -> None:
    """Until a run has logged so many steps, or two minutes."""
    for _ in range(12_000):
        if log.exists() and log.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.01)


def weights(folder: Path) -> bytes:
    (file,) = folder.glob("checkpoints/step_00000300/policy/*.safetensors")
    return file.read_bytes()


@pytest.mark.usefixtures("two_nodes")
def test_jobs_are_tasks_that_end_fail_and_give_way_with_the_bits_of_an_undisturbed_run(
    queue: RunQueue, tmp_path: Path
) -> None:
    config = str(tmp_path / "sums.toml")
    queue.submit("red", "undisturbed", [config])
    queue.submit("red", "wrong", [config, "steps=0"], priority=-1)
    assert worker_of(queue, tmp_path).work(until_empty=True) == 1
    done, wrong = queue.jobs()
    assert (done.state, wrong.state) == ("done", "failed") and "steps" in wrong.why
    use = queue.claims()[0].use
    assert use.steps == 300 and use.tokens > 0 and use.bytes > 0 and use.core_us > 100_000

    queue.submit("blue", "preempted", [config])
    worker, log = worker_of(queue, tmp_path), tmp_path / "runs" / "preempted" / "metrics.jsonl"

    def stop_early() -> None:
        wait_for_lines(log, 5)
        worker.stopping = True

    thread = threading.Thread(target=stop_early, daemon=True)
    thread.start()
    assert worker.work(until_empty=True) == 0
    thread.join()
    assert (queue.jobs()[2].state, queue.jobs()[2].why) == ("queued", "gave way at a checkpoint")
    assert worker_of(queue, tmp_path).work(until_empty=True) == 1
    runs = tmp_path / "runs"
    assert weights(runs / "preempted") == weights(runs / "undisturbed")
    first, second = queue.claims()[2:]
    assert first.use.steps > 0 and second.use.steps > 0 and first.use.steps + second.use.steps == 300
    for share in queue.shares():
        spans = [one for one in queue.claims() if one.tenant == share.name]
        assert share.used_us == sum(one.to_us - one.from_us for one in spans)
        assert share.use.core_us == sum(one.use.core_us for one in spans)


@pytest.mark.usefixtures("two_nodes")
def test_a_task_whose_process_is_killed_fails_and_says_so(queue: RunQueue, tmp_path: Path) -> None:
    queue.submit("red", "killed", [str(tmp_path / "sums.toml"), "steps=100000"])
    log = tmp_path / "runs" / "killed" / "metrics.jsonl"

    def kill() -> None:
        wait_for_lines(log, 1)
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and b"--name\x00killed\x00" in _command(entry):
                os.kill(int(entry.name), 9)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    assert worker_of(queue, tmp_path).work(until_empty=True) == 0
    thread.join()
    (job,) = queue.jobs()
    assert job.state == "failed" and job.why


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
