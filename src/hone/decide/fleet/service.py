"""The service of a fleet: batches into the store, ends of episodes into the decision log, manifests for robots.

FOLDER/             beside the file, named by the service
  lock              held by the process that serves
  fleet.key         the service's secret, made at the first start
  fleet.db          steps and episodes
  decisions.db      the decision log: a decision for each episode, and its return as the outcome
  registry/         versions, and the journals of rollouts

An episode on trial is a decision between two versions with probability 1/2 each, whose outcome is the return. So the
router, the stages, the evidence and the way back are those of every service, and `hone ship` and `hone log` read it.
A robot is exposed to a rollout if its bucket lies in the canary's or the control's share: at the stage `5%` 10% of the
robots are, and the new version runs half of their episodes.
"""

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from hone.core.clock import Clock
from hone.core.decisions import DecisionRecord
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.core.robot_steps import RobotSchema
from hone.decide.bandits.saving import open_decision_policy
from hone.decide.fleet.manifest import (
    FleetManifest,
    PolicyFile,
    PolicyTrial,
    manifest_signature,
    robot_secret,
    robot_token,
)
from hone.decide.fleet.store import FleetStore, StepBatch, StoredEpisode, open_fleet_store
from hone.decide.gateway.opening import log_address, read_service_file, service_folder
from hone.decide.gateway.service_config import FleetTableConfig, ServiceFileConfig
from hone.decide.gateway.shipped_versions import RolloutListener, RouterWatch
from hone.decide.gateway.shipping import open_rollouts
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog
from hone.decide.registry import VersionRegistry, open_registry
from hone.decide.rollout.driver import running_rollouts
from hone.decide.rollout.router import ARMS, RolloutRouter, TrialUnit
from hone.run.store.folder import RunLock

SOURCE: Final = "fleet"
"""Name of the fleet as a writer of the decision log."""
_PAGE: Final = 500


class UnknownSchemaError(DataError):
    """A batch whose numbers have other names than the service takes; nothing of it was stored."""


class StrangerError(DataError):
    """A robot that shows no token, or another one's."""


def schemas_of(config: FleetTableConfig) -> list[RobotSchema]:
    """Schemas that are taken, the present one first."""
    return [
        RobotSchema(observation=tuple(one.observation), action=tuple(one.action), choices=one.choices)
        for one in (config, *config.older)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegistryView:
    """What manifests need of the registry, read once for all robots that ask within a second."""

    router: RolloutRouter
    trials: Mapping[str, str]
    """Version of each rollout that has not ended, by its name."""
    files: Mapping[str, tuple[PolicyFile, ...]]
    number: int
    """Moves, and entries of journals: it only rises."""


@dataclass(slots=True, eq=False, kw_only=True)
class FleetService:
    """An opened service of a fleet. Threads may share it."""

    config: ServiceFileConfig
    fleet: FleetTableConfig
    folder: Path
    secret: str
    store: FleetStore
    log: DecisionLog
    registry: VersionRegistry
    routers: RouterWatch
    listener: RolloutListener
    clock: Clock
    held: ExitStack
    projected: int = 0
    """Episodes that the decision log has."""
    _schemas: list[RobotSchema] = field(default_factory=list[RobotSchema])
    _view: _RegistryView | None = None

    def check_robot(self, robot: str, authorization: str) -> None:
        """Raise StrangerError for a robot without its token, where tokens are wanted."""
        if not robot:
            raise StrangerError("a request names its robot in the header X-Robot")
        kind, _, token = authorization.partition(" ")
        wanted = robot_token(robot_secret(self.secret, robot))
        if self.fleet.tokens and not (kind.lower() == "bearer" and secrets.compare_digest(token.strip(), wanted)):
            raise StrangerError(f"robot {robot!r:.60} has to show its token: Authorization: Bearer TOKEN")

    def ingest(self, robot: str, batch: StepBatch) -> dict[str, object]:
        """Store a robot's batch -> the answer. Raises StrangerError, UnknownSchemaError, and what the store raises."""
        if batch.robot != robot:
            raise StrangerError(f"robot {robot!r:.60} sent a batch of robot {batch.robot!r:.60}")
        self._schemas = self._schemas or schemas_of(self.fleet)
        if batch.schema not in self._schemas:
            differ = "; ".join(self._schemas[0].differences(batch.schema))
            raise UnknownSchemaError(
                f"robot {robot!r:.60} sends another schema than {self.folder.name} takes: {differ[:500]}; update its "
                "firmware, or add the schema to [[fleet.older]]; nothing of the batch was stored"
            )
        ack = self.store.append(batch, now_s=self.clock.now_s())
        if batch.episodes:
            self.project()
        return {
            "stored": ack.stored, "repeated": ack.repeated, "lost": ack.lost,
            "refused": [{"seq": seq, "message": words} for seq, words in ack.refused],
            "watermark": ack.progress.watermark, "highest": ack.progress.highest, "missing": ack.progress.missing,
            "clock_ahead_s": ack.ahead_s,
        }  # fmt: skip

    def project(self) -> int:
        """Append the episodes that the decision log has not yet -> their number. What it has is known by number, so
        that nothing is appended twice. Raises what the log raises: the next call goes on."""
        done = 0
        with self.store.lock:
            while episodes := self.store.episodes(self.projected, _PAGE):
                self.log.append([record for one in episodes for record in self._records(one)])
                self.projected, done = episodes[-1].number + 1, done + len(episodes)
        return done

    def _records(self, one: StoredEpisode) -> tuple[DecisionRecord, DecisionRecord]:
        end = one.end
        unit = TrialUnit(
            tenant=self.config.service.tenants[0], name=f"{one.source}/{end.episode}", version=end.version,
            route=end.route, value=end.total, kind=self.config.join.kind, context=np.array(end.first, np.float64),
            at_s=end.at_s,
        )  # fmt: skip
        return unit.records(SOURCE, one.number)

    def manifest(self, robot: str) -> tuple[str, str]:
        """The manifest of a robot, and its signature. Raises DataError and ResourceError of the registry."""
        router = self.routers.router()
        if self.routers.fault:
            raise ResourceError(f"the registry cannot be read: {self.routers.fault}")
        view = self._view
        if view is None or view.router is not router:
            view = self._view = self._read_registry(router)
        route = router.route(self.config.service.tenants[0], robot)
        trial: PolicyTrial | None = None
        named = route.label.partition(":")[0]
        if route.arm in ARMS and named in view.trials and route.stage != "100%":
            trial = PolicyTrial(
                rollout=named, stage=route.stage, version=view.trials[named], exposed=True,
                episodes=self.fleet.trial_episodes,
            )  # fmt: skip
        versions = {router.live.version, "" if trial is None else trial.version} - {""}
        text = FleetManifest(
            service=self.folder.name, robot=robot, number=view.number, live=router.live.version,
            salt=self.routers.layer, trial=trial, files={version: view.files[version] for version in versions},
            numbers={version: self.store.number_of(version) for version in sorted(versions)},
        ).to_text()  # fmt: skip
        return text, manifest_signature(robot_secret(self.secret, robot), text)

    def _read_registry(self, router: RolloutRouter) -> _RegistryView:
        """The registry as a router's second knows it."""
        name, registry = self.folder.name, self.registry
        trials = {one.plan.name: one.plan.version for one in running_rollouts(registry, name)}
        files = {
            version: tuple(
                PolicyFile(path=one.path, sha256=one.sha256, size_bytes=one.size_bytes)
                for one in registry.version(version).files
            )
            for version in {router.live.version, *trials.values()} - {""}
        }
        ends = [registry.first_and_last(name, rollout) for rollout in registry.rollouts(name)]
        number = len(registry.moves(name)) + sum(0 if end is None else end[2] for end in ends)
        return _RegistryView(router=router, trials=trials, files=files, number=number)

    def policy_file(self, version: str, path: str) -> bytes:
        """A file of a version, as it was added. Raises DataError for an unknown or damaged one."""
        if path not in {one.path for one in self.registry.version(version).files}:
            raise DataError(f"version {version} has no file {path!r:.80}")
        return (self.registry.policy_folder(version) / path).read_bytes()

    def tick(self) -> None:
        """Do what is due by time: a look at the rollouts, episodes that wait for the log."""
        self.project()
        self.listener.tick(self.clock.now_s())

    def close(self) -> None:
        """Close everything, and give the folder free; a second call has no effect."""
        self.held.close()


def open_fleet(path: Path, *, clock: Clock, tell: Callable[[str], None]) -> FleetService:
    """Open the fleet of a service file; `tell` takes log lines. Raises ConfigError, DataError, ResourceError."""
    config = read_service_file(path).config
    if config.fleet is None:
        raise ConfigError(f"{path} has no [fleet]: name the numbers of an observation and of an action there")
    folder = service_folder(path, config)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        lock = RunLock.acquire(folder / "lock", folder.name)
        opened.callback(lock.close)
        store = open_fleet_store(
            folder / "fleet.db", clock_slack_s=config.fleet.clock_slack_s, full_sync=config.log.full_sync
        )
        opened.callback(store.close)
        address = log_address(folder, config.log)
        log = open_decision_log(address, full_sync=config.log.full_sync)
        opened.callback(log.close)
        registry = open_registry(folder / config.rollout.registry, create=True)
        listener = RolloutListener(
            config=config, service=folder.name, registry=registry.folder, log_address=address,
            open_policy=open_decision_policy, clock=clock, tell=lambda code, words: tell(f"{code}: {words}"),
        )  # fmt: skip
        opened.callback(listener.close)
        marks = [one for one in log.watermarks() if (one.tenant, one.source) == (config.service.tenants[0], SOURCE)]
        service = FleetService(
            config=config, fleet=config.fleet, folder=folder, secret=service_secret(folder), store=store, log=log,
            registry=registry, clock=clock, listener=listener, projected=(marks[0].highest + 1) // 2 if marks else 0,
            routers=RouterWatch(
                registry=registry, service=folder.name, layer=config.rollout.layer or folder.name, clock=clock
            ),
            held=opened.pop_all(),
        )  # fmt: skip
        service.project()
        return service


def service_secret(folder: Path) -> str:
    """The secret of a fleet's folder; made, for its owner alone, where there is none."""
    path = folder / "fleet.key"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text(encoding="ascii").strip()
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    return path.read_text(encoding="ascii").strip()


def publish_policy(file: Path, policy: Path, *, number: int | None = None, clock: Clock) -> str:
    """Make a policy live for the whole fleet at once, without a rollout -> its version.

    `number`: updates that the learner had made, by which the staleness of steps is counted; None: that of the newest
    version. Raises ConfigError where the service asks for evidence that the version has not.
    """
    with open_rollouts(file, clock) as rollouts:
        version = rollouts.add(policy, "").id
        if number is not None:
            with closing(open_fleet_store(rollouts.folder / "fleet.db")) as store:
                store.set_number(version, number)
        rollouts.publish(version, f"published {policy}")
        return version
