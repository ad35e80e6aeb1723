"""The monitor of a service, and the answers to drift: a line, a recall in the registry, or a job that retrains.

A recall makes an older version of the registry live again; the router reads it within a second. A service that learns
while it serves has no versions there: it retrains, or tells.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.decisions import DecisionPolicy, DecisionRecord
from hone.core.errors import HoneError
from hone.decide.monitor.jobs import JobQueue
from hone.decide.monitor.monitor import ServiceMonitor
from hone.decide.monitor.recall import RegistryLibrary
from hone.decide.monitor.response import DriftAction, DriftResponder
from hone.decide.monitor.retraining import submit_retraining
from hone.decide.registry.registry import VersionRegistry


class ShippedLibrary:
    """Older versions of a registry that may come later: none before the first rollout."""

    def __init__(self, folder: Path, service: str, load: Callable[[Path], DecisionPolicy]) -> None:
        self._folder = folder
        self._library = RegistryLibrary(VersionRegistry(folder), service, load)

    def older(self, tenant: str) -> Sequence[str]:
        """Versions that were live before the present one."""
        return self._library.older(tenant) if (self._folder / "registry.db").is_file() else ()

    def policy(self, version: str) -> DecisionPolicy:
        """Open a version. Raises DataError for a damaged one."""
        return self._library.policy(version)


@dataclass(slots=True, eq=False, kw_only=True)
class DriftWatch:
    """Listener of a service's records that answers drift."""

    monitor: ServiceMonitor
    responder: DriftResponder
    registry: Path
    service: str
    jobs: Path
    """File of the queue of retraining jobs."""
    tell: Callable[[str, str], None]

    def observe(self, record: DecisionRecord) -> None:
        """Read a record."""
        self.monitor.observe(record)

    def tick(self, now_s: float) -> None:
        """Look for silent tenants, and answer drift; what fails is told and tried at the next alarm."""
        self.monitor.tick(now_s)
        try:
            for action in self.responder.step(self.monitor, now_s):
                self._answer(action, now_s)
        except HoneError as error:
            self.tell("drift_unanswered", str(error))

    def _answer(self, action: DriftAction, now_s: float) -> None:
        self.tell("drift", action.line())
        if action.kind == "recall":
            registry = VersionRegistry(self.registry)
            registry.add_evidence(action.version, action.evidence)
            words = action.evidence.words
            registry.recall(self.service, action.version, at_s=now_s, made_by="monitor", reason=words)
        elif action.kind == "retrain":
            submit_retraining(JobQueue(self.jobs), action, service=self.service, at_s=now_s)
