"""`hone retrain FILE.toml`: a worker that carries out the retraining jobs of a service, or the state of its jobs."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hone.cli.options import CommandCall
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, InterruptedRun
from hone.core.strict_json import Json
from hone.decide.gateway.shipping import RetrainWorker, open_retrain_worker
from hone.decide.monitor.retraining import QueuedJob
from hone.run.store.durable import to_json

POLL_S: Final = 10.0
"""Seconds between two looks at an empty queue."""


def run(call: CommandCall) -> int:
    """Work at a service's jobs, or show them; returns the exit code."""
    if call.switch("once") and call.switch("status"):
        raise ConfigError("--once and --status exclude each other; give one of them")
    with open_retrain_worker(Path(call.text("file")), SystemClock()) as worker:
        screen = standard_screen()
        if call.switch("status"):
            _show(screen, worker.queue.jobs(), call)
            return 0
        if call.switch("json"):
            raise ConfigError("--json is for --status")
        try:
            return _work(screen, worker, once=call.switch("once"))
        except KeyboardInterrupt:
            raise InterruptedRun(
                f"a job that was under way waits for half a minute; then `hone retrain {worker.file}` goes on with it"
            ) from None


def _work(screen: TerminalScreen, worker: RetrainWorker, *, once: bool) -> int:
    """Carry out jobs until a signal, or one. Raises DataError for one job that failed."""
    screen.line(f"working at the retraining jobs of {worker.parts.service}, in {worker.parts.folder}")
    while True:
        job = worker.work()
        if job is not None:
            screen.line(_job_words(job, worker))
        if once and job is not None and job.state == "failed":
            raise DataError(f"job {job.id} failed; its folder is {worker.parts.folder / job.id}")
        if once:
            if job is None:
                screen.line("no job waits")
            return 0
        if job is None:
            time.sleep(POLL_S)


def _job_words(job: QueuedJob, worker: RetrainWorker) -> str:
    """The end of a job in one sentence, with what to do next."""
    words = job.result.get("words", "no result: another worker took it over")
    line = f"job {job.id} of tenant {job.tenant}, attempt {job.attempt}: {job.state}: {words}"
    if job.state == "done" and job.result.get("refused") == "no":
        line += f"; hone ship {job.result['version']} --to {worker.file}"
    return line


def _show(screen: TerminalScreen, jobs: Sequence[QueuedJob], call: CommandCall) -> None:
    if call.switch("json"):
        table: list[Json] = [
            {"id": job.id, "tenant": job.tenant, "state": job.state, "attempt": job.attempt, "worker": job.worker,
             "asked_because": job.work.get("words", ""), "result": dict(job.result)}
            for job in jobs
        ]  # fmt: skip
        print(to_json(table, indent=1).decode(), end="")
        return
    if not jobs:
        screen.line("no job was queued yet")
        return
    rows = [[job.id, job.tenant, job.state, str(job.attempt), job.result.get("words", "")] for job in jobs]
    screen.table(("job", "tenant", "state", "attempts", "result"), rows)
