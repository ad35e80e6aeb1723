"""Watcher of a service's rollouts: looks at each of them on its own clock, and makes the moves that the evidence asks
for. Of several watchers of one registry one leads, by a lease; when it dies, another goes on from the journals.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hone.core.errors import ConfigError, HoneError
from hone.decide.rollout.controller import StageTransition
from hone.decide.rollout.driver import RolloutDriver, RolloutTools, running_rollouts

LEASES = 3.0
"""Length of a lease, in times between two looks."""


@dataclass(slots=True, kw_only=True)
class RolloutWatcher:
    """Watcher of one service. `look` is called as often as one likes, by one thread at a time."""

    tools: RolloutTools
    service: str
    holder: str
    """Name of this watcher among those of the service; no other process has it."""
    every_s: float
    """Seconds between two looks."""
    tell: Callable[[str, str], None]
    """Takes the code and the words of transitions and faults."""
    leading: bool = False
    _holder: str = ""
    """Holder of the lease, when it was last asked for."""
    _next_s: float = float("-inf")
    _drivers: dict[str, RolloutDriver] = field(default_factory=dict[str, RolloutDriver])
    _told: dict[str, str] = field(default_factory=dict[str, str])
    """Last fault of each rollout: an obstacle that stays is told once."""

    def due(self) -> bool:
        """True if it is time for a look."""
        return self.tools.clock.monotonic_s() >= self._next_s

    def look(self) -> list[StageTransition]:
        """Look at every rollout that has not ended, if this watcher leads -> the transitions that it made.

        Faults are told and tried again at the next look: a registry that cannot be reached, evidence that is missing.
        """
        self._next_s = self.tools.clock.monotonic_s() + self.every_s
        try:
            if not self.lead():
                return []
            names = [one.plan.name for one in running_rollouts(self.tools.registry, self.service)]
        except HoneError as error:
            self._fault("", error)
            return []
        self._drivers = {name: driver for name, driver in self._drivers.items() if name in names}
        self._told = {name: words for name, words in self._told.items() if name in names}
        return [transition for name in names for transition in self._step(name)]

    def lead(self) -> bool:
        """Take or extend the lease -> True if this watcher has it. Raises DataError and ResourceError."""
        lease_s, now_s = LEASES * self.every_s, self.tools.clock.now_s()
        holder = self.tools.registry.take_lease(self._work, self.holder, now_s=now_s, lease_s=lease_s)
        self.leading = holder == self.holder
        if holder != self._holder:
            self._holder = holder
            words = "this process" if self.leading else f"another process, {holder}"
            self.tell("rollout_watch", f"rollouts of {self.service} are watched by {words}")
            self._drivers.clear()
        return self.leading

    def stop(self) -> None:
        """Give the lease back, so that another watcher leads at its next look."""
        self._drivers.clear()
        if self.leading:
            self.leading = False
            try:
                self.tools.registry.give_lease_back(self._work, self.holder)
            except HoneError as error:
                self._fault("", error)

    @property
    def _work(self) -> str:
        return f"rollouts of {self.service}"

    def _step(self, name: str) -> list[StageTransition]:
        try:
            driver = self._drivers.get(name)
            if driver is None or driver.behind():
                driver = self._drivers[name] = self.tools.resume(self.service, name)
            done = driver.step()
        except HoneError as error:
            if not isinstance(error, ConfigError):  # another one moved it, or the log was away
                self._drivers.pop(name, None)
            self._fault(name, error)
            return []
        self._told.pop(name, None)
        for one in done:
            self.tell("rollout", f"{name}: {one.before} -> {one.after}: {one.words}")
        return done

    def _fault(self, name: str, error: HoneError) -> None:
        words = str(error)
        if self._told.get(name) != words:
            self._told[name] = words
            about = f"rollout {name}" if name else f"rollouts of {self.service}"
            self.tell("rollout_stays", f"{about}: {words}")
