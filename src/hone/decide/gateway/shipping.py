"""Rollouts and retraining of the service in a service file: its registry, its log, and the plan of its tables.

Belongs here: wiring of the file with `decide.rollout` and `decide.monitor`. Does not: what is printed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import hone
from hone.core.clock import Clock
from hone.core.decisions import DecisionPolicy, DecisionRecord
from hone.core.errors import ConfigError
from hone.decide.bandits.saving import open_decision_policy
from hone.decide.gateway.opening import log_address, make_wrapper, read_service_file, service_folder
from hone.decide.gateway.requests import FeatureSchema
from hone.decide.gateway.service_config import ServiceFileConfig
from hone.decide.gateway.shipped_versions import process_name
from hone.decide.joins.columns import log_columns
from hone.decide.joins.join import build_view
from hone.decide.joins.view import DecisionView
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog
from hone.decide.monitor.config import RetrainConfig
from hone.decide.monitor.retraining import JobQueue, QueuedJob, RetrainParts
from hone.decide.registry import (
    PolicyVersion,
    StageMove,
    VersionOrigin,
    VersionRegistry,
    files_of,
    open_registry,
    version_id,
)
from hone.decide.rollout.driver import RolloutDriver, RolloutTools
from hone.decide.rollout.plan import GuardrailHistory, RolloutPlan
from hone.decide.rollout.router import end_position
from hone.decide.rollout.watcher import RolloutWatcher
from hone.run.saved_config import policy_folder

_HISTORY: Final = 50_000
"""Latest records of the log that tell an outcome's mean and spread."""
_PAGE: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRollouts:
    """A service, opened to roll versions out."""

    file: Path
    service: str
    folder: Path
    config: ServiceFileConfig
    registry: VersionRegistry
    log: DecisionLog
    clock: Clock

    def tools(self) -> RolloutTools:
        """Tools of the drivers."""
        return RolloutTools(
            registry=self.registry, log=self.log, clock=self.clock, join=self.config.join,
            slack_s=self.config.rollout.slack_s, open_policy=self._policy,
        )  # fmt: skip

    def watcher(self, tell: Callable[[str, str], None]) -> RolloutWatcher:
        """Watcher of the service's rollouts, for this process."""
        return RolloutWatcher(
            tools=self.tools(), service=self.service, holder=process_name(), every_s=self.config.rollout.look_every_s,
            tell=tell,
        )  # fmt: skip

    def _policy(self, version: str) -> DecisionPolicy:
        """The policy of a version, as the service serves it."""
        wrap = make_wrapper(self.file.parent, self.config, self.clock)
        return wrap(open_decision_policy(self.registry.policy_folder(version)))

    def origin(self, parent: str) -> VersionOrigin:
        """Origin of a policy that is added now."""
        return VersionOrigin(code=f"hone {hone.__version__}", parent=parent)

    def policy_version(self, policy: Path, parent: str) -> str:
        """Identity that a policy's version has, without adding it. Raises DataError for a policy that cannot decide."""
        if self._known(policy):
            return policy.name
        self._require_decisions(policy)
        return version_id(files_of(policy_folder(policy)), self.origin(parent))

    def add(self, policy: Path, parent: str) -> PolicyVersion:
        """Add a policy to the registry, unless its version is named. Raises DataError for one that cannot decide."""
        if self._known(policy):
            return self.registry.version(policy.name)
        self._require_decisions(policy)
        at_s = self.clock.now_s()
        folder = policy_folder(policy)
        return self.registry.add(folder, self.origin(parent), at_s=at_s, made_by=f"hone ship {policy}")

    def _require_decisions(self, policy: Path) -> None:
        """Raise DataError for a policy that cannot decide; robots run their policies in their own way."""
        if self.config.fleet is None:
            open_decision_policy(policy)

    def publish(self, version: str, reason: str) -> None:
        """Make a version of a fleet live at once, without a rollout. Raises ConfigError where evidence is missing, and
        for a service that decides itself: its first versions are its own."""
        if self.config.fleet is None:
            raise ConfigError(f"{self.file} has no [fleet]: a version of a service goes through its stages")
        move = StageMove(version=version, stage="live", needs=tuple(self.config.rollout.evidence), reason=reason)
        self.registry.move(self.service, move, at_s=self.clock.now_s(), made_by="fleet")

    def _known(self, policy: Path) -> bool:
        """True for the name of a version in the registry, such as a retrained candidate's."""
        return not policy.exists() and any(one.id == str(policy) for one in self.registry.versions())

    def plan(self, version: str, name: str = "") -> RolloutPlan:
        """Plan of a rollout, by the service file."""
        return self.config.rollout.plan(
            name=name or self.next_name(), service=self.service, version=version,
            control=self.registry.live(self.service), shadow=self.config.fleet is None,  # robots score no requests
        )  # fmt: skip

    def next_name(self) -> str:
        """Name of the next rollout: r1, r2, ..."""
        return f"r{len(self.registry.rollouts(self.service)) + 1}"

    def latest(self) -> str:
        """Name of the latest rollout. Raises ConfigError if there is none."""
        names = self.registry.rollouts(self.service)
        if not names:
            raise ConfigError(_no_rollout(self.service, self.file))
        return names[-1]

    def start(self, plan: RolloutPlan) -> RolloutDriver:
        """Begin a rollout. Raises ConfigError with everything that is in its way."""
        if self.config.fleet is not None and not plan.control:
            raise ConfigError(
                f"fleet {self.service!r} has no live version to compare with: publish a first one for all robots, "
                f"`hone.api.fleet.publish(POLICY, to={str(self.file)!r})`"
            )
        return self.tools().start(plan)

    def resume(self, name: str) -> RolloutDriver:
        """Continue a rollout from its journal."""
        return self.tools().resume(self.service, name)

    def histories(self) -> list[GuardrailHistory]:
        """Mean and spread of each guardrail's outcome: as the file says, else as the latest records say."""
        measured: tuple[float, float] | None = None
        histories: list[GuardrailHistory] = []
        for one in self.config.rollout.guardrails:
            mean, sd = one.mean, one.sd
            if (mean is None or sd is None) and one.kind == self.config.join.kind:
                measured = measured or self._measured()
                mean, sd = (measured[0] if mean is None else mean), (measured[1] if sd is None else sd)
            if mean is not None and sd is not None and sd > 0 and mean != 0:
                histories.append(GuardrailHistory(kind=one.kind, mean=mean, sd=sd, worth=one.worth))
        return histories

    def _measured(self) -> tuple[float, float]:
        """Mean and standard deviation of the rewards of the latest decisions; 0 and 0 without any."""
        tenant = self.config.service.tenants[0]
        records = list(_latest(self.log, tenant))
        if not records:
            return 0.0, 0.0
        view = build_view(records, as_of_s=self.clock.now_s(), join=self.config.join, tenant=tenant)
        rewards = view.table.reward[view.table.known]
        return (float(np.mean(rewards)), float(np.std(rewards))) if len(rewards) else (0.0, 0.0)


def _latest(log: DecisionLog, tenant: str) -> Iterator[DecisionRecord]:
    position = max(0, end_position(log) - _HISTORY)
    while page := log.read(position, _PAGE, tenant=tenant):
        yield from (one.record for one in page)
        position = page[-1].position


@contextmanager
def open_rollouts(file: Path, clock: Clock, *, create: bool = True) -> Iterator[ServiceRollouts]:
    """Open the service of a file for the block; without `create`, one that had a rollout before.

    Raises ConfigError with all faults of the file, each with its line.
    """
    config = read_service_file(file).config
    folder = service_folder(file, config)
    if not create and not _registry_folder(folder, config).is_dir():
        raise ConfigError(_no_rollout(_service_name(file, config), file))
    folder.mkdir(parents=True, exist_ok=True)
    registry = open_registry(_registry_folder(folder, config), create=True)
    log = open_decision_log(log_address(folder, config.log), full_sync=config.log.full_sync)
    try:
        yield ServiceRollouts(
            file=file, service=_service_name(file, config), folder=folder, config=config, registry=registry, log=log,
            clock=clock,
        )  # fmt: skip
    finally:
        log.close()


def _no_rollout(service: str, file: Path) -> str:
    return f"service {service!r} has no rollout; begin one with `hone ship POLICY --to {file}`"


def _registry_folder(folder: Path, config: ServiceFileConfig) -> Path:
    """Folder of the service's registry."""
    return folder / config.rollout.registry


def _service_name(file: Path, config: ServiceFileConfig) -> str:
    """Name of the service: its own, or the file's."""
    return config.service.name or file.stem


# ------------------------------------------------------------------------------------------------------- retrain worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainWorker:
    """Worker of one service. Several workers share a queue; a tenant has one job at a time, and a job one worker."""

    file: Path
    queue: JobQueue
    parts: RetrainParts

    def work(self) -> QueuedJob | None:
        """Carry out the oldest job that nobody works at -> the job with its result; None: there was none."""
        claimed = self.parts.work_once(self.queue, worker=process_name())
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
    registry = open_registry(_registry_folder(folder, config), create=True)
    log = open_decision_log(log_address(folder, config.log))

    def view(tenant: str) -> DecisionView:
        columns, schema = log_columns(log, tenant=tenant), FeatureSchema(config.service.features).hash
        return build_view(columns, as_of_s=clock.now_s(), join=config.join, tenant=tenant, schema=schema)

    parts = RetrainParts(
        service=_service_name(file, config), config=retrain, folder=folder / "retraining", registry=registry, view=view,
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
