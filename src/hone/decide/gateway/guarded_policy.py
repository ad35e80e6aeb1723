"""Policies that may be late or fail: each acts on a thread of its own, and a caller waits until a deadline.

A late policy's thread cannot be ended. While it is at work, and for a while after, its callers are refused at once: one
late answer costs one caller one deadline, not every caller. Code that holds Python's global lock for long delays
everybody; serve such a policy from a process of its own.
"""

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue

from hone.core.clock import Clock
from hone.core.decisions import ActionSet, Choice, DecisionPolicy, Floats

FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0


class PolicyFailureError(Exception):
    """A policy gave no usable choice; the message is the reason that is logged: `timeout`, `exception: ...` ..."""


@dataclass(slots=True)
class RestTimer:
    """Rest of a policy that was late: one second, doubled with each late answer in a row, at most a minute."""

    until_s: float = 0.0
    rest_s: float = FIRST_REST_S

    def late(self, now_s: float) -> None:
        """Begin a rest."""
        self.until_s = now_s + self.rest_s
        self.rest_s = min(2 * self.rest_s, LONGEST_REST_S)

    def in_time(self) -> None:
        """Forget earlier late answers."""
        self.rest_s = FIRST_REST_S

    def resting(self, now_s: float) -> bool:
        """True while nobody should wait for the policy."""
        return now_s < self.until_s


@dataclass(slots=True, eq=False)
class _PolicyCall:
    context: Floats
    actions: ActionSet
    draw_key: int
    done: threading.Event = field(default_factory=threading.Event)
    choice: Choice | None = None
    error: str = ""


class GuardedPolicy:
    """A policy on a thread of its own. `start` before use; `close` lets the thread end."""

    def __init__(self, policy: DecisionPolicy, clock: Clock) -> None:
        self.policy = policy
        self._clock = clock
        self._calls: SimpleQueue[_PolicyCall | None] = SimpleQueue()
        self._rest = RestTimer()
        self._busy: _PolicyCall | None = None
        self._thread = threading.Thread(target=self._work, name="guarded-policy", daemon=True)

    def start(self) -> "GuardedPolicy":
        """Start the thread."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Let the thread end after its present call."""
        self._calls.put(None)

    def act(self, context: Floats, actions: ActionSet, draw_key: int, wait_s: float) -> Choice:
        """Draw an action within `wait_s`. Raises PolicyFailureError: late, still busy, resting, or an exception."""
        if self._busy is not None and not self._busy.done.is_set():
            raise PolicyFailureError("timeout: an earlier call is still running")
        if self._rest.resting(self._clock.monotonic_s()):
            raise PolicyFailureError("timeout: it was late a moment ago")
        self._busy = call = _PolicyCall(context, actions, draw_key)
        self._calls.put(call)
        if not call.done.wait(max(0.0, wait_s)):
            self._rest.late(self._clock.monotonic_s())
            raise PolicyFailureError("timeout")
        self._rest.in_time()
        if call.choice is None:
            raise PolicyFailureError(call.error)
        return call.choice

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.choice = self.policy.act(call.context, call.actions, call.draw_key)
            except Exception as error:  # noqa: BLE001 - a policy's failure is answered by the next version
                call.error = describe_error(error)
            finally:
                call.done.set()


def describe_error(error: Exception) -> str:
    """The reason that is logged for an exception; characters that not every log holds are question marks."""
    words = "".join(letter if letter.isprintable() else "?" for letter in f"{error!s:.120}")
    return f"exception: {type(error).__name__}: {words}"
