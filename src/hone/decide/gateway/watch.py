"""The routers that gateways use, read from the registry's journal; the last good one serves while it is unreachable."""

from dataclasses import dataclass, field

from hone.core.clock import Clock
from hone.core.errors import HoneError
from hone.decide.registry.registry import VersionRegistry
from hone.decide.rollout.controller import rollout_slice
from hone.decide.rollout.driver import running_rollouts
from hone.decide.rollout.router import RolloutRouter, UnitRoute, make_router


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
    slices = [rollout_slice(one.plan, one.state) for one in running_rollouts(registry, service)]
    return make_router(live=registry.live(service), salt=layer, slices=[one for one in slices if one is not None])
