"""A worker on this machine: it claims jobs one after another, runs each in a process, and gives way at checkpoints.

A run that gets SIGTERM saves a checkpoint and ends with 143; its job goes back, and the next worker resumes it. So does
a training service: what it acknowledged is on the disk, models as their last optimizer step left them, and the service
of the next claim does the rest. Its process hears of that claim by its own folder, and writes nothing more.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hone.process.commands import CommandRunner, HoneCommand, ended_core_us
from hone.run.queue.job_queue import JobState, LostLeaseError, QueuedRun, RunQueue, Wish
from hone.run.queue.limits import RunLimits
from hone.run.queue.use import ClaimUse, RunMeter

_STOPPED: Final = (130, 143, -signal.SIGTERM)
"""Exit codes of a run that saved a checkpoint and stopped."""
_TAIL: Final = 300


@dataclass(frozen=True, slots=True)
class _JobEnd:
    code: int
    cancelled: bool
    last_line: str
    """Of what it wrote."""
    core_us: int


@dataclass(slots=True, eq=False)
class LocalWorker:
    """Runs jobs until none is left, or for good."""

    queue: RunQueue
    name: str
    runs: Path
    tell: Callable[[str], None]
    limits: RunLimits = field(default_factory=RunLimits)
    only: int = 0
    """The only job that it takes, and does not give way with: somebody else decides on the order. 0: any."""
    runner: CommandRunner | None = None
    """What runs the jobs in place of this machine, one at a time: tasks of Ray, say. They have its limits."""
    idle_s: float = 2.0
    stopping: bool = False
    """Set by a signal: the job in progress goes back."""

    def work(self, *, until_empty: bool) -> int:
        """Run jobs; returns how many were done. `until_empty`: end where none may run now."""
        done = 0
        while not self.stopping:
            job = self.queue.claim(self.name, only=self.only)
            if job is None:
                if until_empty:
                    break
                time.sleep(self.idle_s)
                continue
            done += self.run(job) == "done"
        return done

    def run(self, job: QueuedRun) -> JobState | None:
        """Run a claimed job to its end, or until it goes back; returns its state, None where its lease was lost."""
        self.runs.mkdir(parents=True, exist_ok=True)
        if job.serves:
            charged = ClaimUse.total(one.use for one in self.queue.claims() if one.job == job.id)
            meter = RunMeter.begin(self.runs / job.name, job.service_use(self.runs), charged)
        else:
            meter = RunMeter.begin(self.runs / job.name)
        try:
            end = self._in_process(job, meter) if self.runner is None else self._elsewhere(job, meter, self.runner)
            state = _state_of(end.code, cancelled=end.cancelled)
            place = "between two requests" if job.serves else "at a checkpoint"
            why = "" if state == "done" else f"gave way {place}" if state == "queued" else end.last_line
            self.queue.finish(job.id, job.token, state, why, meter.use(end.core_us))
        except LostLeaseError as error:
            self.tell(f"job {job.id}: {error}")
            return None
        self.tell(f"job {job.id}: {state}{f', {why}' if why else ''}")
        return state

    def _in_process(self, job: QueuedRun, meter: RunMeter) -> _JobEnd:
        command, log = [sys.executable, "-m", "hone", *job.arguments(self.runs)], self.runs / f"{job.name}.log"
        group = self.limits.make_group(f"{job.id}-{job.token}")
        self._tell_begin(job, self.limits.describe(group))
        before_us = ended_core_us()
        with log.open("ab") as output:
            child = subprocess.Popen(
                self.limits.command(command, group), stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=self.limits.environment(),
            )  # fmt: skip
            try:
                cancelled = self._watch(job, meter, child)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
                self.limits.remove_group(group)
        words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = words[-1][-_TAIL:] if words else "it said nothing"
        return _JobEnd(child.returncode, cancelled, last, ended_core_us() - before_us)

    def _elsewhere(self, job: QueuedRun, meter: RunMeter, runner: CommandRunner) -> _JobEnd:
        """Run a job as a command of a runner, which kills it where the lease is lost."""
        self._tell_begin(job, "")
        asked, cancelled = False, False
        try:
            runner.start(HoneCommand(name=job.name, arguments=tuple(job.arguments(self.runs))))
            while not (ends := runner.wait(self.queue.lease_s / 3)):
                wish = self._wish(job, meter.use())
                cancelled = cancelled or wish == "cancel"
                if (wish or self.stopping) and not asked:
                    runner.stop()
                    asked = True
        finally:
            runner.close()
        (end,) = ends
        return _JobEnd(end.code, cancelled, end.lines[-1][-_TAIL:] if end.lines else "it said nothing", end.core_us)

    def _tell_begin(self, job: QueuedRun, within: str) -> None:
        begins = "serving" if job.serves else "resuming" if "--resume" in job.arguments(self.runs) else "starting"
        self.tell(f"job {job.id} of {job.tenant}: {begins} {job.name}{f', at most {within}' if within else ''}")

    def _wish(self, job: QueuedRun, use: ClaimUse) -> Wish:
        """A sign of life with what was used so far, and what the job is asked for."""
        wish = self.queue.heartbeat(job.id, job.token, use)
        return "" if self.only and wish == "yield" else wish

    def _watch(self, job: QueuedRun, meter: RunMeter, child: subprocess.Popen[bytes]) -> bool:
        """Wait for a run, with signs of life; returns whether it was cancelled."""
        asked, cancelled = False, False
        while True:
            try:
                child.wait(timeout=self.queue.lease_s / 3)
            except subprocess.TimeoutExpired:
                wish = self._wish(job, meter.use(pid=child.pid))
                cancelled = cancelled or wish == "cancel"
                if (wish or self.stopping) and not asked:
                    child.send_signal(signal.SIGTERM)
                    asked = True
                continue
            return cancelled


def _state_of(code: int, *, cancelled: bool) -> JobState:
    if code == 0:
        return "done"
    if cancelled:
        return "cancelled"
    return "queued" if code in _STOPPED else "failed"
