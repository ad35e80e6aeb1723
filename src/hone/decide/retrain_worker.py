"""Worker of a service's retraining jobs: one after another, each in a process of its own.

Belongs here: wiring of the service file (`serve.gateway`) with retraining (`serve.monitor`). Does not: what is printed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hone.core.clock import Clock
from hone.core.errors import ConfigError
from hone.decide.gateway.opening import log_address, read_service_file, service_folder
from hone.decide.gateway.rollout_listener import process_name
from hone.decide.gateway.schemas import FeatureSchema
from hone.decide.gateway.service_config import ServiceFileConfig
from hone.decide.gateway.shipping import registry_folder, service_name
from hone.decide.joins.join import build_view
from hone.decide.joins.reading import log_columns
from hone.decide.joins.view import DecisionView
from hone.decide.log.opening import open_decision_log
from hone.decide.monitor.config import RetrainConfig
from hone.decide.monitor.jobs import JobQueue, QueuedJob
from hone.decide.monitor.retraining import RetrainParts, work_once
from hone.decide.registry.registry import open_registry


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainWorker:
    """Worker of one service. Several workers share a queue; a tenant has one job at a time, and a job one worker."""

    file: Path
    queue: JobQueue
    parts: RetrainParts

    def work(self) -> QueuedJob | None:
        """Carry out the oldest job that nobody works at -> the job with its result; None: there was none."""
        claimed = work_once(self.queue, self.parts, worker=process_name())
        if claimed is None:
            return None
        return next(job for job in self.queue.jobs() if job.id == claimed.id)


@contextmanager
def open_retrain_worker(file: Path, clock: Clock) -> Iterator[RetrainWorker]:
    """Open the worker of a service file for the block. Raises ConfigError with what is missing in the file."""
    config = read_service_file(file).config
    retrain = _retrain_config(file, config)
    folder = service_folder(file, config)
    folder.mkdir(parents=True, exist_ok=True)
    registry = open_registry(registry_folder(folder, config), create=True)
    log = open_decision_log(log_address(folder, config.log))

    def view(tenant: str) -> DecisionView:
        columns, schema = log_columns(log, tenant=tenant), FeatureSchema(config.service.features).hash
        return build_view(columns, as_of_s=clock.now_s(), join=config.join, tenant=tenant, schema=schema)

    parts = RetrainParts(
        service=service_name(file, config), config=retrain, folder=folder / "retraining", registry=registry, view=view,
        clock=clock,
    )  # fmt: skip
    try:
        yield RetrainWorker(file=file, queue=JobQueue(folder / "jobs.db"), parts=parts)
    finally:
        log.close()


def _retrain_config(file: Path, config: ServiceFileConfig) -> RetrainConfig:
    """The table `[monitor.retrain]`, its config as a path from the service file. Raises ConfigError."""
    if config.monitor is None or config.monitor.retrain is None:
        raise ConfigError(
            f"{file} has no table [monitor.retrain]: nothing would be retrained; add it with `config`, the run's file"
        )
    path = file.parent / config.monitor.retrain.config
    if not path.is_file():
        raise ConfigError(f"{file}: monitor.retrain.config {config.monitor.retrain.config!r} is no file: {path}")
    return config.monitor.retrain.model_copy(update={"config": str(path)})
