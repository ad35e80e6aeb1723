"""Shadows: versions that see the requests of real units after the answer has left, and answer none.

A thread asks them, with a bound on the queue, on a request's wait and on each ask; what is above a bound is dropped and
counted. Their choices go into the log as outcomes of a kind of their own (`core.decisions.ShadowChoice`), a few in a
commit, so that an answer waits at most for one such commit.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from hone.core.clock import Clock
from hone.core.decisions import Decision, DecisionRecord, ShadowChoice
from hone.decide.gateway.fallback_chain import ServingVersion, check_choice
from hone.decide.gateway.guarded_policy import GuardedPolicy, PolicyFailureError, describe_error
from hone.decide.gateway.requests import RequestError

MOST_WAITING: Final = 1000
"""Requests that wait for a shadow; more are dropped."""
MOST_WAIT_S: Final = 5.0
"""Longest wait of a request."""
ASK_S: Final = 1.0
"""Longest time that a shadow may take; then it rests."""
FIRST_PAUSE_S: Final = 0.05
"""Time in which requests gather and their answers leave."""
PAUSE_S: Final = 0.005
"""Time between two commits, while more wait than one holds."""
BATCH: Final = 32
"""Choices in one commit."""
_REASONS: Final = {
    "full": f"{MOST_WAITING} wait already",
    "late": f"they waited for more than {MOST_WAIT_S:g} s",
    "log": "the log took no records",
    "stopped": "the service stopped",
}
ShadowWriter = Callable[[Sequence[tuple[Decision, ShadowChoice]]], None]
"""Writes choices into the log. Raises RequestError if it does not take them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitingShadow:
    """A request that its shadow has not seen yet."""

    decision: Decision
    version: ServingVersion
    since_s: float


@dataclass(slots=True, eq=False, kw_only=True)
class ShadowAsker:
    """Listener of a service that asks shadows. `start` before use, `close` at the end."""

    shadow_of: Callable[[Decision], ServingVersion | None]
    """Version that the decision is shown to; None: none."""
    versions: Callable[[], Collection[str]]
    """Shadows of now."""
    clock: Clock
    tell: Callable[[str, str], None]
    """Takes the code and the words of what was dropped."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Requests by version and what became of them: `logged`, or `full`, `late`, `failed`, `log`, `stopped`."""
    _failure: str = ""
    """Words of the last ask that failed."""
    _told: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    _waiting: deque[_WaitingShadow] = field(default_factory=deque[_WaitingShadow])
    _guards: dict[str, GuardedPolicy] = field(default_factory=dict[str, GuardedPolicy])
    _wake: threading.Event = field(default_factory=threading.Event)
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self, write: ShadowWriter) -> "ShadowAsker":
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, args=(write,), name="shadows", daemon=True)
        self._thread.start()
        return self

    def observe(self, record: DecisionRecord) -> None:
        """Note a decision that a shadow is to see. Takes microseconds: the answer has not left yet."""
        if not isinstance(record, Decision) or not record.route:
            return
        version = self.shadow_of(record)
        if version is None:
            return
        if len(self._waiting) >= MOST_WAITING:
            self.counts[version.name, "full"] += 1
            return
        self._waiting.append(_WaitingShadow(decision=record, version=version, since_s=self.clock.monotonic_s()))
        if not self._wake.is_set():
            self._wake.set()

    def tick(self, now_s: float) -> None:
        """Tell what was dropped since the last time, and let go of versions that are shadows no more."""
        del now_s
        for (version, reason), count in list(self.counts.items()):
            new = count - self._told[version, reason]
            if new and reason != "logged":
                words = self._failure if reason == "failed" else _REASONS[reason]
                self.tell("shadow_dropped", f"version {version} in the shadow did not see {new} requests: {words}")
            self._told[version, reason] = count
        for name in set(self._guards) - set(self.versions()):
            self._guards.pop(name).close()

    def ask(self, write: ShadowWriter) -> int:
        """Ask for the oldest requests, as many as a commit holds, and log the choices -> requests that were taken."""
        choices: list[tuple[Decision, ShadowChoice]] = []
        taken = 0
        while self._waiting and taken < BATCH:
            one = self._waiting.popleft()
            taken += 1
            if self.clock.monotonic_s() - one.since_s > MOST_WAIT_S:
                self.counts[one.version.name, "late"] += 1
                continue
            try:
                choices.append((one.decision, self._choice(one.version, one.decision)))
            except Exception as error:  # noqa: BLE001 - a version is anybody's code
                self._failure = str(error) if isinstance(error, PolicyFailureError) else describe_error(error)
                self.counts[one.version.name, "failed"] += 1
        self._log(choices, write)
        return taken

    def close(self) -> None:
        """End the thread; requests that still wait are dropped and counted."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(2 * ASK_S)
        for one in self._waiting:
            self.counts[one.version.name, "stopped"] += 1
        self._waiting.clear()
        self.tick(0.0)
        for guard in self._guards.values():
            guard.close()

    def _choice(self, version: ServingVersion, decision: Decision) -> ShadowChoice:
        guard = self._guards.get(version.name)
        if guard is None:
            guard = self._guards[version.name] = GuardedPolicy(version.policy, self.clock).start()
        choice = guard.act(decision.context, decision.actions, decision.draw_key, ASK_S)
        check_choice(choice, decision.actions)
        return ShadowChoice(version=version.name, action=choice.action, logp=min(0.0, choice.logp))

    def _log(self, choices: Sequence[tuple[Decision, ShadowChoice]], write: ShadowWriter) -> None:
        result = "logged"
        try:
            if choices:
                write(choices)
        except RequestError:  # the service has told it
            result = "log"
        for _, choice in choices:
            self.counts[choice.version, result] += 1

    def _work(self, write: ShadowWriter) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(FIRST_PAUSE_S)
            self._wake.clear()
            while not self._closing.is_set() and self.ask(write) == BATCH:
                self._closing.wait(PAUSE_S)
