"""`hone retrain FILE.toml`: a worker that carries out the retraining jobs of a service, or the state of its jobs."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from hone.cli.options import CommandCall
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.config.toml import ConfigDocument, read_toml
from hone.core.clock import SystemClock
from hone.core.decisions import ActionSet, Choice, Decision, Outcome
from hone.core.errors import ConfigError, DataError, HoneError, InterruptedRun
from hone.core.strict_json import Json
from hone.decide.gateway.opening import read_service_file
from hone.decide.gateway.service_config import ServiceFileConfig
from hone.decide.gateway.shipping import RetrainWorker, open_retrain_worker
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import freeze_view
from hone.decide.monitor.retraining import QueuedJob
from hone.run.store.durable import to_json

POLL_S: Final = 10.0
"""Seconds between two looks at an empty queue."""
_SAMPLES: Final = 8
"""Decisions of each action in the log that a retraining config is checked with."""


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
        check_retraining(worker.file)
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
            # the end of a job in one sentence, with what to do next
            words = job.result.get("words", "no result: another worker took it over")
            line = f"job {job.id} of tenant {job.tenant}, attempt {job.attempt}: {job.state}: {words}"
            if job.state == "done" and job.result.get("refused") == "no":
                line += f"; hone ship {job.result['version']} --to {worker.file}"
            screen.line(line)
        if once and job is not None and job.state == "failed":
            raise DataError(f"job {job.id} failed; its folder is {worker.parts.folder / job.id}")
        if once:
            if job is None:
                screen.line("no job waits")
            return 0
        if job is None:
            time.sleep(POLL_S)


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


# ---------------------------------------------------------------------------------------------------------------- check


def check_retraining(file: Path) -> list[str]:
    """The line of the plan about `[monitor.retrain]`, none without the table. The run is opened as `hone train` opens
    it, on a small log of decisions of the service.

    Raises ConfigError for faults of the service file and, each with its line, of the config of the run: no job of the
    service could be trained.
    """
    resolved = read_service_file(file)
    config = resolved.config
    retrain = None if config.monitor is None else config.monitor.retrain
    if retrain is None:
        return []
    origin = resolved.origins.get("monitor.retrain.config", file.name)
    path = file.parent / retrain.config
    if not path.is_file():
        raise ConfigError(f"{origin}: monitor.retrain.config {retrain.config!r} is no file beside {file.name}")
    from hone.cli.commands import train  # noqa: PLC0415 - recipes take seconds

    with TemporaryDirectory(prefix="hone-retrain-check-") as folder:
        try:
            _freeze_samples(config, view := Path(folder) / "view")
            document = ConfigDocument.from_file(read_toml(path))
            key, source = tuple(retrain.log_key.split(".")), f"monitor.retrain.log_key {retrain.log_key!r}"
            if faults := document.set_value(key, str(view), source=source):
                raise ConfigError(*faults)
            stages = train.planned_runs(document)
            train.require_stage_consent(stages, yes=False)
            if len(stages) > 1:
                raise ConfigError(f"{path.name} is a pipeline of {len(stages)} stages; a job is one run")
            with train.opened_runs(stages):
                recipe = stages[0].resolved.config.recipe
        except HoneError as error:
            raise ConfigError(*(f"{origin}: monitor.retrain: {fault}" for fault in error.messages)) from None
    return [f"retrain    {retrain.config}, {recipe}; a job waits for {retrain.minimum_rewards} rewards"]


def _freeze_samples(config: ServiceFileConfig, folder: Path) -> None:
    """Write a view of a few rewarded decisions, as a log of the service has them."""
    service, draws = config.service, np.random.default_rng(0)
    names = tuple(service.actions) or ("a", "b")
    features = draws.random((len(names), len(service.action_features))) if service.action_features else None
    actions = ActionSet(names=names, features=features)
    records: list[Decision | Outcome] = []
    for number in range(_SAMPLES * len(names)):
        choice = Choice(action=number % len(names), logp=-math.log(len(names)))
        records.append(Decision(
            id=f"d{number}", tenant="default", unit=f"u{number}", at_s=float(number), actions=actions, choice=choice,
            context=draws.random(len(service.features)), executed=choice.action, executed_logp=choice.logp,
            version="v", source="check", seq=2 * number,
        ))  # fmt: skip
        reward = Outcome(
            decision_id=f"d{number}", tenant="default", kind=config.join.kind, value=float(number % 2),
            at_s=float(number), source="check", seq=2 * number + 1,
        )  # fmt: skip
        records.append(reward)
    closed_s = _SAMPLES * len(names) + config.join.window_s
    freeze_view(build_view(records, as_of_s=closed_s, join=config.join, tenant="default"), folder)
