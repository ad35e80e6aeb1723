"""The rollouts of a service, watched by the service itself (`[rollout] watch = true`).

A look reads the log, so it is made on a thread with a connection of its own: no decision waits for it.
"""

import os
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hone.core.clock import Clock
from hone.core.decisions import DecisionPolicy, DecisionRecord
from hone.core.errors import HoneError
from hone.decide.gateway.service_config import ServiceFileConfig
from hone.decide.log.opening import open_decision_log
from hone.decide.registry.registry import VersionRegistry
from hone.decide.rollout.controller import StageTransition
from hone.decide.rollout.driver import RolloutTools
from hone.decide.rollout.watcher import RolloutWatcher


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
