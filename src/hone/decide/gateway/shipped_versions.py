"""Versions that `hone ship` brought into the registry: which units they serve, and their policies.

The registry may be unreachable: the last good assignment goes on, and a version that cannot be opened is answered by
the service's own policy. The logged version is always the one that decided.
"""

import os
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hone.core.clock import Clock
from hone.core.decisions import Decision, DecisionPolicy, DecisionRecord
from hone.core.errors import HoneError
from hone.decide.bandits.saving import open_decision_policy
from hone.decide.gateway.fallback_chain import GuardedPolicy, ServingVersion
from hone.decide.gateway.service_config import ServiceFileConfig
from hone.decide.log.opening import open_decision_log
from hone.decide.registry import VersionRegistry
from hone.decide.rollout.controller import StageTransition
from hone.decide.rollout.driver import RolloutTools, running_rollouts
from hone.decide.rollout.router import RolloutRouter, UnitRoute, make_router
from hone.decide.rollout.watcher import RolloutWatcher

# ---------------------------------------------------------------------------------------------------------------- watch


@dataclass(slots=True)
class RouterWatch:
    """Router of one service, read again every `every_s` seconds."""

    registry: VersionRegistry
    service: str
    layer: str
    """Salt of the assignment."""
    clock: Clock
    every_s: float = 1.0
    failures: int = 0
    """Reads that failed since the last good one."""
    fault: str = ""
    """Message of the last failure; empty after a good read."""
    _router: RolloutRouter = field(
        default_factory=lambda: RolloutRouter(UnitRoute(arm="live", stage="", version="", label=""))
    )
    _next_s: float = float("-inf")

    def router(self) -> RolloutRouter:
        """The router now. Never raises for the registry's sake: the last good router goes on."""
        now_s = self.clock.monotonic_s()
        if now_s >= self._next_s:
            self._next_s = now_s + self.every_s
            try:
                self._router = read_router(self.registry, self.service, self.layer)
                self.failures, self.fault = 0, ""
            except HoneError as error:
                self.failures += 1
                self.fault = str(error)
        return self._router


def read_router(registry: VersionRegistry, service: str, layer: str) -> RolloutRouter:
    """Router of a service as the registry says. Raises DataError and ResourceError."""
    slices = [one.state.slice(one.plan) for one in running_rollouts(registry, service)]
    return make_router(live=registry.live(service), salt=layer, slices=[one for one in slices if one is not None])


# ----------------------------------------------------------------------------------------------------- shipped versions


_RETRY_S = 10.0
"""Seconds until a version that could not be opened is tried again."""


@dataclass(slots=True, eq=False, kw_only=True)
class ShippedVersions:
    """Assignment and versions of a registry."""

    folder: Path
    """Folder of the registry; it may come later."""
    service: str
    layer: str
    wrap: Callable[[DecisionPolicy], DecisionPolicy]
    clock: Clock
    tell: Callable[[str, str], None]
    _watch: RouterWatch | None = None
    _opened: dict[str, ServingVersion] = field(default_factory=dict[str, ServingVersion])
    _failed: dict[str, float] = field(default_factory=dict[str, float])
    """Version -> monotonic time of the next try."""
    _nobody: UnitRoute = field(default_factory=lambda: UnitRoute(arm="live", stage="", version="", label=""))

    def route(self, tenant: str, unit: str) -> UnitRoute:
        """The route of a unit."""
        return self._nobody if self._watch is None else self._watch.router().route(tenant, unit)

    def version(self, number: str) -> ServingVersion | None:
        """An opened version; None: the service's own policy answers."""
        return self._opened.get(number) or (self._open(number) if number and self._watch is not None else None)

    def shadow(self, decision: Decision) -> ServingVersion | None:
        """The version in the shadow that a decision is shown to; None: none, or it is not open."""
        if not decision.route.endswith(":shadow"):
            return None
        route = self.route(decision.tenant, decision.unit)
        return self._opened.get(route.shadow) if route.label == decision.route else None

    def shadows(self) -> set[str]:
        """Versions in the shadow."""
        ranges = () if self._watch is None else self._watch.router().ranges
        return {one.route.shadow for one in ranges if one.route.shadow}

    def prepare(self) -> None:
        """Find the registry, open the versions that it serves or shows requests to, and close the others."""
        if self._watch is None and (self.folder / "registry.db").is_file():
            registry = VersionRegistry(self.folder)
            self._watch = RouterWatch(registry=registry, service=self.service, layer=self.layer, clock=self.clock)
        if self._watch is None:
            return
        router = self._watch.router()
        if self._watch.fault:
            self.tell("registry_unreachable", f"the last good assignment goes on: {self._watch.fault}")
        served = {router.live.version, *(one.route.version for one in router.ranges), *self.shadows()}
        for number in served:
            self.version(number)
        for number in self._opened.keys() - served:
            closed = self._opened.pop(number)
            if closed.guard is not None:
                closed.guard.close()

    def _open(self, number: str) -> ServingVersion | None:
        now_s = self.clock.monotonic_s()
        if self._watch is None or self._failed.get(number, 0.0) > now_s:
            return None
        try:
            policy = self.wrap(open_decision_policy(self._watch.registry.policy_folder(number)))
        except HoneError as error:
            self._failed[number] = now_s + _RETRY_S
            self.tell("version_unreadable", f"version {number}: {error}; the service's own policy answers")
            return None
        version = ServingVersion(name=number, policy=policy, guard=GuardedPolicy(policy, self.clock).start())
        self._opened[number] = version
        return version


# ----------------------------------------------------------------------------------------------------- rollout listener
# The rollouts of a service, watched by the service itself (`[rollout] watch = true`).
#
# A look reads the log, so it is made on a thread with a connection of its own: no decision waits for it.


@dataclass(slots=True, eq=False, kw_only=True)
class RolloutListener:
    """Listener of a service whose ticks are the clock of its rollouts. `close` ends the thread."""

    config: ServiceFileConfig
    service: str
    registry: Path
    """Folder of the registry; it may come later."""
    log_address: str
    open_policy: Callable[[Path], DecisionPolicy]
    """A version's folder -> the policy as the service serves it."""
    clock: Clock
    tell: Callable[[str, str], None]
    watcher: RolloutWatcher | None = None
    """None before the first rollout."""
    _held: ExitStack = field(default_factory=ExitStack)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "rollouts"))
    _look: Future[list[StageTransition]] | None = None

    def observe(self, record: DecisionRecord) -> None:
        """Nothing: looks read the log."""
        del record

    def tick(self, now_s: float) -> None:
        """Begin a look if one is due and none is under way."""
        del now_s
        if self._look is not None and not self._look.done():
            return
        if self._look is not None and (error := self._look.exception()) is not None:
            self.tell("rollout_stays", f"a look failed: {type(error).__name__}: {error!s:.200}")
        self._look = None
        if self.watcher is None and not (self.registry / "registry.db").is_file():
            return
        if self.watcher is None or self.watcher.due():
            self._look = self._thread.submit(self._looked)

    def settle(self) -> list[StageTransition]:
        """Wait for the look that is under way -> the transitions of the last one."""
        return [] if self._look is None else self._look.result()

    def close(self) -> None:
        """Wait for the look under way, and give the lease back."""
        self._thread.shutdown(wait=True)
        if self.watcher is not None:
            self.watcher.stop()
        self._held.close()

    def _looked(self) -> list[StageTransition]:
        if self.watcher is None:
            try:
                self.watcher = self._opened()
            except HoneError as error:
                self.tell("rollout_stays", f"rollouts of {self.service}: {error}")
                return []
        return self.watcher.look()

    def _opened(self) -> RolloutWatcher:
        registry, rollout = VersionRegistry(self.registry), self.config.rollout
        log = open_decision_log(self.log_address)
        self._held.callback(log.close)
        tools = RolloutTools(
            registry=registry, log=log, clock=self.clock, join=self.config.join, slack_s=rollout.slack_s,
            made_by="hone serve", open_policy=lambda version: self.open_policy(registry.policy_folder(version)),
        )  # fmt: skip
        return RolloutWatcher(
            tools=tools, service=self.service, holder=process_name(), every_s=rollout.look_every_s, tell=self.tell
        )


def process_name() -> str:
    """Name of this process among those that could watch a rollout."""
    return f"{socket.gethostname()}-{os.getpid()}"
