"""A worker whose jobs run elsewhere, by a runner of the test's own: ends, wishes, and a lease that is lost."""

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from manual_clock import ManualClock

from hone.process.commands import CommandEnd, HoneCommand
from hone.run.queue.database import open_queue_database
from hone.run.queue.job_queue import RunQueue
from hone.run.queue.local_worker import LocalWorker
from hone.run.queue.use import ClaimUse, RunMeter, write_service_use


@dataclass
class ScriptedRunner:
    """A runner whose only command ends after so many waits, or once it is asked to stop."""

    clock: ManualClock
    waits: int
    code: int = 0
    wait_s: float = 3.0
    slots: int = 1
    core_us: int = 0
    started: list[HoneCommand] = field(default_factory=list)
    stopped: int = 0
    closed: int = 0

    def start(self, command: HoneCommand) -> None:
        self.started.append(command)

    def wait(self, timeout_s: float) -> list[CommandEnd]:
        self.clock.advance(self.wait_s)
        self.waits -= 1
        if self.stopped:
            return [CommandEnd(name=self.started[-1].name, code=143)]
        lines = ("first", "error: no such file") if self.code else ()
        end = CommandEnd(name=self.started[-1].name, code=self.code, lines=lines, core_us=self.core_us)
        return [end] if self.waits < 0 else []

    def stop(self) -> None:
        self.stopped += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def queue(tmp_path: Path) -> RunQueue:
    return RunQueue(open_queue_database(str(tmp_path / "queue.db")), ManualClock(), lease_s=10.0)


def run(queue: RunQueue, tmp_path: Path, runner: ScriptedRunner, *, only: int = 0) -> str | None:
    worker = LocalWorker(queue, "w", tmp_path / "runs", lambda _: None, runner=runner, only=only)
    job = queue.claim("w", only=only)
    assert job is not None
    return worker.run(job)


def test_a_job_runs_as_a_command_and_its_time_is_charged(queue: RunQueue, tmp_path: Path) -> None:
    queue.submit("red", "a", ["a.toml", "steps=2"])
    runner = ScriptedRunner(queue.clock, waits=2)
    assert run(queue, tmp_path, runner) == "done" and runner.closed == 1
    arguments = ("train", "a.toml", "steps=2", "--name", "a", "--runs", str(tmp_path / "runs"))
    assert runner.started == [HoneCommand(name="a", arguments=arguments)]
    assert queue.shares()[0].used_us == 9_000_000
    queue.submit("red", "b", ["b.toml"])
    assert run(queue, tmp_path, ScriptedRunner(queue.clock, waits=0, code=3)) == "failed"
    assert queue.jobs()[1].why == "error: no such file"


def test_a_claim_has_the_runs_core_time_steps_tokens_and_bytes(queue: RunQueue, tmp_path: Path) -> None:
    """Steps and tokens behind the checkpoint that it began from: a line of two steps has their mean."""
    queue.submit("red", "a", ["a.toml"])
    run_folder = tmp_path / "runs" / "a"
    (run_folder / "checkpoints" / "step_00000004").mkdir(parents=True)
    (run_folder / "checkpoints" / "step_00000004" / "manifest.json").write_text("{}")
    (run_folder / "old.bin").write_bytes(bytes(5000))
    lines = [{"step": step, "learner/tokens": 10.0, "rollout/tokens": 2.5} for step in (2, 4, 6, 8)]
    lines.append({"step": 9, "learner/tokens": None, "rollout/tokens": 1.0})
    text = "".join(json.dumps(line) + "\n" for line in lines)

    class Writing(ScriptedRunner):
        def start(self, command: HoneCommand) -> None:
            super().start(command)
            (run_folder / "metrics.jsonl").write_text(text)
            (run_folder / "new.bin").write_bytes(bytes(3000))

    runner = Writing(queue.clock, waits=1, core_us=1_234_567)
    assert run(queue, tmp_path, runner) == "done"
    expected = ClaimUse(core_us=1_234_567, tokens=4 * 12 + 2 + 1, bytes=3000 + len(text), steps=5)
    assert queue.claims()[0].use == expected == queue.shares()[0].use
    assert expected.text == f"1.2 core-seconds, 5 steps, 51 tokens, {expected.bytes / 2**20:.1f} MiB"


def test_claims_of_a_service_have_what_its_totals_grew_by_whoever_was_killed(queue: RunQueue, tmp_path: Path) -> None:
    """A worker that vanished charged for half; what the service wrote behind that is the next claim's."""
    queue.submit("red", "lesson", ["serve", "training", "service.toml"])
    store, file = tmp_path / "store", tmp_path / "runs" / "lesson.use.json"
    store.mkdir()
    (store / "before.bin").write_bytes(bytes(7000))
    amounts = {"tokens": 90, "steps": 9}

    def write() -> None:
        tokens = {("red", "train_tokens"): 50.0, ("blue", "sampled_tokens"): amounts["tokens"] - 50.0}
        write_service_use(file, store, {**tokens, ("red", "steps"): amounts["steps"], ("red", "core_s"): 7.7})

    def serve(tokens: int, steps: int, size: int) -> None:
        amounts["tokens"] += tokens
        amounts["steps"] += steps
        (store / f"{amounts['tokens']}.bin").write_bytes(bytes(size))
        write()

    class Serving(ScriptedRunner):
        def start(self, command: HoneCommand) -> None:
            super().start(command)
            write()
            serve(40, 2, 300)

    lost = queue.claim("vanished")
    assert lost is not None and lost.service_use(tmp_path / "runs") == file
    file.parent.mkdir()
    write()
    serve(100, 5, 1000)
    meter = RunMeter.begin(tmp_path / "runs" / "lesson", file)
    queue.heartbeat(lost.id, lost.token, meter.use(5))
    serve(20, 1, 500)
    queue.clock.advance(1e6)
    runner = Serving(queue.clock, waits=1, core_us=11)
    assert run(queue, tmp_path, runner) == "done"
    assert runner.started[0].arguments[-4:] == ("--claim", str(lost.token + 1), "--use", str(file))
    uses = [one.use for one in queue.claims()]
    assert uses == [
        ClaimUse(core_us=5, tokens=100, bytes=1000, steps=5), ClaimUse(core_us=11, tokens=60, bytes=800, steps=3)
    ]  # fmt: skip
    assert ClaimUse.total(uses) == ClaimUse(core_us=16, tokens=160, bytes=1800, steps=8) == queue.shares()[0].use
    assert ClaimUse.total([]) == ClaimUse()
    assert RunMeter.begin(tmp_path, tmp_path / "none.json").use(3) == ClaimUse(core_us=3), "it never came so far"


def test_the_time_of_a_process_in_progress_is_the_kernels(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("/proc is Linux's")
    meter, spent = RunMeter.begin(tmp_path), time.process_time()
    while time.process_time() - spent < 0.05:
        pass
    used = meter.use(pid=os.getpid())
    assert abs(used.core_us / 1e6 - sum(os.times()[:4])) < 0.1 and used.steps == 0
    assert meter.use(7, pid=2**30) == ClaimUse(core_us=7), "no such process"


def test_a_command_gives_way_and_is_resumed_but_where_others_decide_on_the_order(
    queue: RunQueue, tmp_path: Path
) -> None:
    queue.submit("red", "a", ["a.toml"])
    job = queue.claim("w")
    assert job is not None
    queue.clock.advance(9.0)
    queue.finish(job.id, job.token, "queued")
    queue.submit("red", "c", ["c.toml"], priority=1)
    queue.submit("blue", "b", ["b.toml"])
    queue.set_tenant("blue", slots=0)
    queue.clock.advance(1.0)
    alone = ScriptedRunner(queue.clock, waits=4)
    assert run(queue, tmp_path, alone, only=2) == "done" and not alone.stopped
    (tmp_path / "runs" / "a" / "checkpoints").mkdir(parents=True)
    yielding = ScriptedRunner(queue.clock, waits=4)
    worker = LocalWorker(queue, "w", tmp_path / "runs", lambda _: None, runner=yielding)
    first = queue.claim("w", only=1)
    assert first is not None and worker.run(first) == "queued" and yielding.stopped == 1
    assert queue.jobs()[0].why == "gave way at a checkpoint" and yielding.started[0].arguments[-1] == "--resume"


def test_a_lost_lease_kills_the_command_and_writes_nothing(queue: RunQueue, tmp_path: Path) -> None:
    queue.submit("red", "a", ["a.toml"])
    runner = ScriptedRunner(queue.clock, waits=9)
    worker = LocalWorker(queue, "w", tmp_path / "runs", lambda _: None, runner=runner)
    first = queue.claim("w")
    queue.clock.advance(11.0)
    second = queue.claim("other")
    assert first is not None and second is not None and worker.run(first) is None
    assert runner.closed == 1 and queue.jobs()[0].worker == "other"
