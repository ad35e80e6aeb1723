"""The order of failure: the present version, the last good one, the safe default.

Each is asked until one gives a usable choice, so every request is answered. The choice is logged with the distribution
that it was drawn from: a decision of the last good version has that version's name and log-probability. Whether a
version fails does not depend on the action that it would have drawn, so the logged propensity is the right one.

Policies that may be late or fail: each acts on a thread of its own, and a caller waits until a deadline.

A late policy's thread cannot be ended. While it is at work, its callers are refused at once: one late answer costs one
caller one deadline, not every caller. Code that holds Python's global lock for long delays
everybody; serve such a policy from a process of its own.

Shadows: versions that see the requests of real units after the answer has left, and answer none.

A thread asks them, with a bound on the queue, on a request's wait and on each ask; what is above a bound is dropped and
counted. Their choices go into the log as outcomes of a kind of their own (`core.decisions.ShadowChoice`), a few in a
commit, so that an answer waits at most for one such commit.
"""

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Final

import numpy as np

from hone.core.clock import Clock
from hone.core.decisions import (
    ActionSet,
    Choice,
    Decision,
    DecisionPolicy,
    DecisionRecord,
    Floats,
    ShadowChoice,
    draw_action,
)
from hone.decide.gateway.requests import RequestError

# ------------------------------------------------------------------------------------------------------- guarded policy


FIRST_REST_S: Final = 0.05
LONGEST_REST_S: Final = 5.0


class PolicyFailureError(Exception):
    """A policy gave no usable choice; the message is the reason that is logged: `timeout`, `exception: ...` ..."""


@dataclass(slots=True, eq=False)
class _PolicyCall:
    context: Floats
    actions: ActionSet
    draw_key: int
    done: threading.Event = field(default_factory=threading.Event)
    choice: Choice | None = None
    error: str = ""
    took_s: float = 0.0
    """Seconds that the policy took, without the wait for its thread."""


class GuardedPolicy:
    """A policy on a thread of its own. `start` before use; `close` lets the thread end.

    A policy that was late is tried on calls that nobody waits for: these callers get the next version's choice at once.
    As soon as such a trial takes no longer than a caller would wait, callers are served again: one late answer, as a
    busy machine causes, costs one caller the wait and the next one or two the policy. Trials that are late themselves
    are made 0.05 s apart, twice as far each time, at most 5 s.
    """

    def __init__(self, policy: DecisionPolicy, clock: Clock) -> None:
        self.policy = policy
        self._clock = clock
        self._calls: SimpleQueue[_PolicyCall | None] = SimpleQueue()
        self._trial: _PolicyCall | None = None
        """The latest call of a policy that was late; None: it is in time."""
        self._rest_s = 0.0
        self._rests_until_s = float("-inf")
        self._thread = threading.Thread(target=self._work, name="guarded-policy", daemon=True)

    def start(self) -> "GuardedPolicy":
        """Start the thread."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Let the thread end after its present call."""
        self._calls.put(None)

    def act(self, context: Floats, actions: ActionSet, draw_key: int, wait_s: float) -> Choice:
        """Draw an action within `wait_s`. Raises PolicyFailureError: late, still busy, on trial, or an exception."""
        call = _PolicyCall(context, actions, draw_key)
        if self._trial is not None:
            self._try_again(self._trial, call, wait_s)
        self._calls.put(call)
        if not call.done.wait(max(0.0, wait_s)):
            self._trial = call
            raise PolicyFailureError("timeout")
        if call.choice is None:
            raise PolicyFailureError(call.error)
        return call.choice

    def _try_again(self, trial: _PolicyCall, call: _PolicyCall, wait_s: float) -> None:
        """Return if the trial was in time. Else raise PolicyFailureError; `call` becomes the next trial once the rest
        is over."""
        if not trial.done.is_set():
            raise PolicyFailureError("timeout: an earlier call is still running")
        if trial.took_s <= wait_s:
            self._trial, self._rest_s, self._rests_until_s = None, 0.0, float("-inf")
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._rests_until_s:
            raise PolicyFailureError("timeout: it was late a moment ago")
        self._rests_until_s = now_s + self._rest_s
        self._rest_s = min(max(FIRST_REST_S, 2 * self._rest_s), LONGEST_REST_S)
        self._trial = call
        self._calls.put(call)
        raise PolicyFailureError("timeout: it was late, and is tried again on a call that nobody waits for")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            began_s = self._clock.monotonic_s()
            try:
                call.choice = self.policy.act(call.context, call.actions, call.draw_key)
            except Exception as error:  # noqa: BLE001 - a policy's failure is answered by the next version
                call.error = describe_error(error)
            finally:
                call.took_s = self._clock.monotonic_s() - began_s
                call.done.set()


def describe_error(error: Exception) -> str:
    """The reason that is logged for an exception; characters that not every log holds are question marks."""
    words = "".join(letter if letter.isprintable() else "?" for letter in f"{error!s:.120}")
    return f"exception: {type(error).__name__}: {words}"


# ------------------------------------------------------------------------------------------------------- fallback chain


_ROUNDING: Final = 1e-9
"""A log-probability may exceed 0 by so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingVersion:
    """A policy under the name of its version."""

    name: str
    policy: DecisionPolicy
    guard: GuardedPolicy | None = None
    """Thread of a policy that may be late; None: it acts in the caller's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedChoice:
    """A usable choice, the version that made it, and the failures before it."""

    choice: Choice
    version: str
    failures: tuple[tuple[str, str], ...] = ()
    """Version and reason of each that failed, in order."""


class SafeDefault:
    """A policy that cannot fail: a named action where it is on offer, else each action with equal probability."""

    def __init__(self, action: str = "") -> None:
        self._action = action
        self.version = f"default:{action or 'uniform'}"

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[K]`."""
        del context
        if self._action in actions.names:
            return np.where(np.array([name == self._action for name in actions.names]), 0.0, -np.inf)
        return np.full(len(actions), 0.0 - math.log(len(actions)))  # of one action 0, not -0

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[n, K]`."""
        return np.tile(self.logp(contexts, actions), (len(contexts), 1))

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        """Draw an action."""
        logp = self.logp(context, actions)
        action = draw_action(logp, draw_key)
        return Choice(action=action, logp=float(logp[action]))


class FallbackChain:
    """Versions in the order in which they are asked; the last one must not fail."""

    def __init__(self, versions: tuple[ServingVersion, ...], clock: Clock) -> None:
        self.versions = versions
        self._clock = clock

    def choose(
        self, context: Floats, actions: ActionSet, draw_key: int, deadline_s: float, hand_over: str = ""
    ) -> ServedChoice:
        """A choice before `deadline_s` on the monotonic clock, by the first version that gives a usable one; with a
        reason to `hand_over`, by the last one.

        A version that may be late gets half of the time that is left. Raises PolicyFailureError if even the default
        fails.
        """
        failures = [(self.versions[0].name, hand_over)] if hand_over else list[tuple[str, str]]()
        for version in self.versions[-1:] if hand_over else self.versions:
            try:
                choice = self._ask(version, context, actions, draw_key, deadline_s)
            except PolicyFailureError as failure:
                failures.append((version.name, str(failure)))
                continue
            if failures or choice.logp > 0.0:
                reasons = [f"fallback: {failures[0][1]}"] if failures and failures[0][1] else []
                reasons += [choice.intervention] if choice.intervention else []
                # a rounding error above 0 is taken off
                choice = replace(choice, logp=min(choice.logp, 0.0), intervention="; ".join(reasons))
            return ServedChoice(choice=choice, version=version.name, failures=tuple(failures))
        raise PolicyFailureError("; ".join(f"{name}: {reason}" for name, reason in failures))

    def _ask(
        self, version: ServingVersion, context: Floats, actions: ActionSet, draw_key: int, deadline_s: float
    ) -> Choice:
        if version.guard is not None:
            left_s = deadline_s - self._clock.monotonic_s()
            choice = version.guard.act(context, actions, draw_key, left_s / 2)
        else:
            try:
                choice = version.policy.act(context, actions, draw_key)
            except Exception as error:  # noqa: BLE001 - a policy's failure is answered by the next version
                raise PolicyFailureError(describe_error(error)) from None
        _check_choice(choice, actions)
        return choice


def _check_choice(choice: object, actions: ActionSet) -> None:
    """Raise PolicyFailureError for a choice with an unsound action, probability or score."""
    if not isinstance(choice, Choice):
        raise PolicyFailureError(f"not a Choice: {type(choice).__name__}")
    if not 0 <= choice.action < len(actions):
        raise PolicyFailureError(f"action {choice.action} of {len(actions)}")
    if not math.isfinite(choice.logp):
        raise PolicyFailureError(f"non-finite log-probability {choice.logp}")
    if choice.logp > _ROUNDING:
        raise PolicyFailureError(f"log-probability {choice.logp} above 0")
    if choice.scores is not None and np.isnan(choice.scores).any():
        raise PolicyFailureError("non-finite scores")


# --------------------------------------------------------------------------------------------------------- shadow asker


MOST_WAITING: Final = 1000
"""Requests that wait for a shadow; more are dropped."""
MOST_WAIT_S: Final = 5.0
"""Longest wait of a request."""
ASK_S: Final = 1.0
"""Longest time that a shadow may take."""
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
        _check_choice(choice, decision.actions)
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
