"""From the file of a training service to a listening port, until a signal.

FOLDER/
  lock                       held by the process that serves
  ledger.db                  sessions, models, samplers, checkpoints, requests and their results
  models/ID/step_SEQ/        the newest snapshots of a model: adapter and optimizer
  checkpoints/ID/KIND/NAME/  what clients saved: policy/ is a folder of PEFT, state/ resumes
  samplers/ID/               adapters of samplers that have no name
"""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import uvicorn

from hone.config.resolve import load
from hone.core.clock import Clock, SystemClock
from hone.core.config import is_loopback
from hone.core.errors import ConfigError, ResourceError
from hone.native.build import return_freed_memory
from hone.run.http.listening import listening, signals_end_quietly
from hone.run.http.server import RunningServer, ServerEvents, TimedConnection
from hone.run.queue.use import write_service_use
from hone.run.store.durable import writing
from hone.run.store.folder import RunLock
from hone.text.training_service.app import TrainingRoutes
from hone.text.training_service.catalogue import ACTIVE_S, Catalogue, remove_checkpoint
from hone.text.training_service.desk import RequestDesk
from hone.text.training_service.learner import open_base
from hone.text.training_service.ledger import CheckpointRecord, Ledger, SessionRecord
from hone.text.training_service.row_ranks import open_row_ranks
from hone.text.training_service.sampler import SamplingWorker, WholeWeights
from hone.text.training_service.sampling_engine import open_sampling_engine
from hone.text.training_service.service_config import TenantKeys, TrainingServiceConfig
from hone.text.training_service.turns import Turns
from hone.text.training_service.worker import TrainingWorker

_SWEEP_TICKS: Final = 60
"""Seconds between two looks at what has expired."""
_USE_TICKS: Final = 5
_STOP_S: Final = 5
_TAKEOVER_S: Final = 30.0
"""Seconds within which the process of an earlier claim sees that it has ended, and leaves the folder."""
PREEMPTED: Final = 143
"""Exit code of a queue's job that gave way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlace:
    """Where the service listens."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    claim: int = 0
    """Number under which a queue's worker runs the service as a job, which ends with its sessions; 0: it runs for
    good."""
    use: Path | None = None
    """File in which a queue's job keeps what it used."""


@dataclass(slots=True, eq=False)
class TrainingService:
    """The parts of a running service."""

    config: TrainingServiceConfig
    routes: TrainingRoutes
    desk: RequestDesk
    trainer: TrainingWorker
    sampler: SamplingWorker
    lock: RunLock
    resumed: int
    """Requests that the last process acknowledged and did not answer."""
    claim: int = 0
    use: Path | None = None
    """As of `TrainingPlace`."""
    over: bool = False
    """Whether the sessions of a queue's job have ended."""
    _ticks: int = 0
    _began_s: float = 0.0
    _resumed: bool = False
    """Whether sessions were open when this process began."""

    def start(self) -> None:
        self.keep_use()
        self._began_s = self.desk.clock.now_s()
        self._resumed = any(one.finished is None for one in self.desk.ledger.records(SessionRecord, {}))
        self.trainer.thread.start()
        self.sampler.thread.start()

    def close(self) -> None:
        """End after the turns in progress; what waits is done by the next process."""
        self.desk.close()
        self.trainer.thread.join()
        self.sampler.thread.join()
        if self.trainer.ranks is not None:
            self.trainer.ranks.close()
        self.sampler.engine.close()
        if self.claim:
            self.trainer.keep()
        self.keep_use()
        self.desk.ledger.close()
        self.lock.release()

    def tick(self) -> None:
        """Called once a second: remove what has expired, now and then; end where a thread has ended, so that the next
        process goes on, where a job's sessions are over, and at once where a later claim has the folder."""
        try:
            self.desk.ledger.check_claim()
        except ResourceError as error:
            sys.stderr.write(f"{error}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        self.over = self.over or (self.claim > 0 and self.sessions_over())
        if self.over or not (self.trainer.thread.alive and self.sampler.thread.alive):
            os.kill(os.getpid(), signal.SIGTERM)
        self._ticks += 1
        if self._ticks % _USE_TICKS == 0:
            self.keep_use()
        if self._ticks % _SWEEP_TICKS == 1:
            self.sweep()

    def sessions_over(self) -> bool:
        """Whether every session of this process was finished, or none gave a sign of life for long."""
        with self.desk.wake:
            if self.desk.waiting:
                return False
        sessions = self.desk.ledger.records(SessionRecord, {})
        alive = [one for one in sessions if one.finished is None]
        if not alive and (self._resumed or any(one.created_s >= self._began_s for one in sessions)):
            return True
        last = max([self._began_s, *(one.beat_s for one in alive)])
        return self.desk.clock.now_s() - last >= ACTIVE_S

    def keep_use(self) -> None:
        """Write what was used so far for the queue."""
        if self.use is not None:
            write_service_use(self.use, self.trainer.folder, self.desk.ledger.usage())

    def sweep(self) -> None:
        """Remove checkpoints whose time is over, and results that nobody fetches any more; give memory back that
        nothing uses, such as that of gradients."""
        ledger, now = self.desk.ledger, self.desk.clock.now_s()
        for saved in ledger.records(CheckpointRecord, {}):
            if saved.expires_s is not None and saved.expires_s <= now:
                ledger.delete(CheckpointRecord, saved.path)
                remove_checkpoint(saved)
        ledger.forget_results(now - self.config.limits.keep_results_s)
        return_freed_memory()


def read_service_file(path: Path) -> TrainingServiceConfig:
    """The config of a file. Raises ConfigError with every fault, by line and key."""
    return load(TrainingServiceConfig, path).config


def open_training_service(
    config: TrainingServiceConfig, *, beside: Path, clock: Clock, claim: int = 0
) -> TrainingService:
    """Open everything that the file names; paths are seen from the folder `beside`. `claim` is that of
    `TrainingPlace`. Raises ConfigError, DataError and ResourceError."""
    keys = TenantKeys(config.tenants)
    torch.set_num_threads(config.threads)
    policy, base, context = open_base(config, beside)
    folder = beside / config.folder
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    engine, decoder = open_sampling_engine(config, policy, base.rows, context)
    whole = WholeWeights(base, decoder, engine) if config.model.whole else None
    ledger = Ledger(folder / "ledger.db", claim)
    lock = _acquire(folder, config.folder, _TAKEOVER_S if claim else 0.0)
    lock.write_holder(str(clock.now_s()))
    desk = RequestDesk(ledger, clock, Turns(weights={one.name: one.weight for one in config.tenants}))
    limits = config.limits
    trainer = TrainingWorker(base, desk, folder, context, limits.pass_tokens, limits.resident_models)
    if config.run.ranks > 1:
        trainer.ranks = open_row_ranks(config, base.rows, beside=beside)
    if config.model.whole:
        trainer.resident = 1  # each has weights, gradient and moments of its own
    replicas = 0 if config.cluster is None else config.cluster.rollout.replicas
    sampler = SamplingWorker(base, desk, engine, trainer, context, limits.slots * max(replicas, 1), whole)
    routes = TrainingRoutes(config, base, desk, trainer, sampler, keys, context, Catalogue(desk, folder))
    return TrainingService(config, routes, desk, trainer, sampler, lock, desk.restore(), claim)


def _acquire(folder: Path, name: str, seconds: float) -> RunLock:
    """The folder's lock, for which `seconds` are waited. Raises ResourceError."""
    end = time.monotonic() + seconds
    while True:
        try:
            return RunLock.acquire(folder / "lock", name)
        except ResourceError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.1)


def plan_lines(config: TrainingServiceConfig) -> list[str]:
    """What the service would be, for `--dry-run`. Raises ConfigError for a tenant without a key."""
    TenantKeys(config.tenants)
    weight = sum(one.weight for one in config.tenants)
    whole = ", all weights trained, by one tenant at a time" if config.model.whole else ""
    lines = [f"model {config.model.path}, for clients {', '.join(config.names)}; folder {config.folder}{whole}"]
    if config.run.ranks > 1:
        on_ray = config.cluster is not None and config.cluster.learner is not None
        where = f"processes of Ray ({config.cluster.address})" if config.cluster and on_ray else "child processes"
        lines.append(
            f"rows of a pass are shared by {config.run.ranks} ranks: this process and {where}, each with the base and "
            f"{config.threads} threads; bits are those of one process; layers are whole"
        )
    if config.cluster is not None and config.cluster.rollout.replicas:
        lines.append(
            f"samples are drawn by {config.cluster.derive()['replicas']}, each with the base and up to "
            f"{config.limits.slots} answers at a time; bits are those of one process"
        )
    lines += [
        f"tenant {one.name}: {one.weight / weight:.1%} of the work under load, scopes {', '.join(one.scopes)}, "
        f"at most {one.max_models} models"
        for one in config.tenants
    ] or ["no tenants: everybody on this machine is one tenant"]
    return lines


def serve_training(path: Path, place: TrainingPlace, tell: Callable[[str], None]) -> int:
    """Serve until SIGTERM or Ctrl-C, or as a queue's job until its sessions are over; returns the exit code. Raises
    ConfigError for an address that others reach without a key, and as `open_training_service`."""
    config = read_service_file(path)
    if not config.tenants and not is_loopback(place.host):
        raise ConfigError(f"--host {place.host} is reached from other machines: give [[tenants]] with keys in {path}")
    service = open_training_service(config, beside=path.parent, clock=SystemClock(), claim=place.claim)
    service.use = place.use
    with listening(place.host, place.port) as listener, signals_end_quietly() as signals:
        host, port = listener.getsockname()[:2]
        options = uvicorn.Config(
            service.routes.app(),
            http=TimedConnection,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_STOP_S,
        )
        gc.freeze()
        service.start()
        shown = f"[{host}]" if ":" in host else host
        again = f"; {service.resumed} requests of the last process go on" if service.resumed else ""
        tell(
            f"training service for {', '.join(config.names)} at http://{shown}:{port}: context "
            f"{service.routes.context} tokens, {len(config.tenants) or 1} tenants{again}"
        )
        events = ServerEvents(stop=service.routes.drain, reload=lambda: None, tick=service.tick)
        try:
            RunningServer(options, events, signals).run(sockets=[listener])
        finally:
            service.close()
    tell("its sessions are over" if service.over else "stopped: what waits goes on at the next start")
    return PREEMPTED if place.claim and not service.over else 0
