"""A process of environments and the memory shared with it, and the replies of several such processes.

Belongs here: the shared memory, and the deadline of each environment's call. The process itself is `process.child`,
messages are `protocol.py`, and `subprocess_env.py` decides on requests and on losses.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock
from hone.envs.gym.protocol import HEADER_BYTES, MessageParser, WorkerMessage
from hone.process.child import ChildLostError, ChildProcess, pump_children

START_S = 120.0
"""Seconds until the process runs and the user's module is imported."""
_TICK_S = 0.25


class EnvProcess(ChildProcess[WorkerMessage]):
    """One child process of environments and the memory shared with it."""

    def __init__(self, clock: Clock) -> None:
        self.memory_fd = _memory()
        super().__init__("hone.envs.gym.worker", MessageParser(), clock=clock, arguments=[str(self.memory_fd)])
        os.ftruncate(self.memory_fd, HEADER_BYTES)
        self.calls: NDArray[np.int64] = np.frombuffer(mmap.mmap(self.memory_fd, HEADER_BYTES), np.int64, count=2)
        """`[2]` in shared memory: calls of environments so far; the environment being called, -1 for all at once."""

    def start(self, *, pass_fds: Sequence[int] = ()) -> None:
        super().start(pass_fds=(self.memory_fd, *pass_fds))

    def kill(self, reason: str = "") -> None:
        super().kill(reason)
        if self.memory_fd >= 0:
            os.close(self.memory_fd)
            self.memory_fd = -1


def gather_replies(
    processes: Sequence[EnvProcess], *, clock: Clock, call_s: float, start_s: float | None = None
) -> list[WorkerMessage | ChildLostError]:
    """The next message of each process, in order; for a process that ended or hangs, the error.

    A process hangs when none of its environments returned from a call for `call_s` seconds (`start_s` before the first
    call of all). Processes that hang are not killed here.
    """
    answers = [_PendingReply(process, clock.monotonic_s()) for process in processes]
    while waiting := [answer for answer in answers if not answer.complete()]:
        pump_children([answer.process for answer in waiting], min(_TICK_S, call_s / 4))
        now_s = clock.monotonic_s()
        for answer in waiting:
            allowed_s = start_s if start_s is not None and answer.process.calls[0] == 0 else call_s
            answer.check_deadline(now_s, allowed_s)
    return [answer.reply for answer in answers if answer.reply is not None]


@dataclass
class _PendingReply:
    """The reply expected from one process."""

    process: EnvProcess
    last_progress_s: float
    """Time of the last return from an environment's call, or of the begin of the wait."""
    calls: int = -1
    reply: WorkerMessage | ChildLostError | None = None

    def complete(self) -> bool:
        """True if the reply is here, or can never come."""
        if self.reply is None:
            self.reply = self.process.take_reply()
        return self.reply is not None

    def check_deadline(self, now_s: float, allowed_s: float) -> None:
        """Kill a process whose environments made no call for more than `allowed_s` seconds."""
        calls = int(self.process.calls[0])
        if calls != self.calls:
            self.calls, self.last_progress_s = calls, now_s
        if now_s - self.last_progress_s > allowed_s:
            self.process.pump()  # once more: this thread may have slept while the answer was ready
            late = f"no answer within {allowed_s:g} s (env.step_timeout_s)"
            self.reply = self.process.take_reply() or self.process.timeout_error(late)


def _memory() -> int:
    """Anonymous file for memory shared with a child; it is freed when both processes have closed it."""
    if sys.platform == "linux":
        return os.memfd_create("hone-environments")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
