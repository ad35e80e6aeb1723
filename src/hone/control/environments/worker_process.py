"""A process of environments and the memory shared with it, and the replies of several such processes.

Belongs here: the interface of a block's process, the shared memory, and the deadline of each environment's call. The
process itself is `process.child`, `remote_block.py` has one on another machine, messages are `protocol.py`, and
`subprocess_env.py` decides on requests and on losses.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hone.control.environments.protocol import (
    HEADER_BYTES,
    MessageParser,
    SharedMemoryLayout,
    SharedStep,
    WorkerMessage,
    map_shared_step,
)
from hone.core.clock import Clock
from hone.process.child import ChildLostError, ChildProcess, pump_children

START_S = 120.0
"""Seconds until the process runs and the user's module is imported."""
_TICK_S = 0.25


class BlockProcess(Protocol):
    """What runs a block of environments: a child process, here or on another machine."""

    calls: NDArray[np.int64]
    """`[2]` calls of environments so far; the environment being called, -1 for all at once."""

    @property
    def alive(self) -> bool:
        """True if it was started and has not ended."""
        ...

    def start(self) -> None:
        """Start it. Raises ResourceError."""
        ...

    def send(self, data: bytes) -> None:
        """Send a request, with the actions in the shared memory."""
        ...

    def map_step(self, layout: SharedMemoryLayout) -> SharedStep:
        """The memory of a step; the `map` request, which follows, lets the other side map it as well."""
        ...

    def pump(self) -> None:
        """Receive what has come, without waiting."""
        ...

    def take_reply(self) -> WorkerMessage | ChildLostError | None:
        """The next reply if it is here, the error when none can come, else None."""
        ...

    def timeout_error(self, message: str) -> ChildLostError:
        """The error for one that is too slow."""
        ...

    def kill(self, reason: str = "") -> None:
        """End it at once, with everything that it started."""
        ...

    def request_exit(self) -> None:
        """Let it clean up and end."""
        ...

    def shut_down(self, patience_s: float) -> None:
        """Request an exit, wait up to `patience_s` seconds for it, then kill it."""
        ...


class BlockTransport(Protocol):
    """Where the blocks of a vector environment run."""

    @property
    def slack_s(self) -> float:
        """Seconds that a message may take on top of an environment's call."""
        ...

    def make(self, clock: Clock) -> BlockProcess:
        """A process that is not started yet."""
        ...

    def wait(self, processes: Sequence[BlockProcess], timeout_s: float) -> None:
        """Wait until one of the processes may have a reply, at most `timeout_s` seconds."""
        ...


class EnvProcess(ChildProcess[WorkerMessage]):
    """One child process of environments and the memory shared with it."""

    def __init__(self, clock: Clock) -> None:
        self.memory_fd = _memory()
        super().__init__(
            "hone.control.environments.worker", MessageParser(), clock=clock, arguments=[str(self.memory_fd)]
        )
        os.ftruncate(self.memory_fd, HEADER_BYTES)
        self.calls: NDArray[np.int64] = np.frombuffer(mmap.mmap(self.memory_fd, HEADER_BYTES), np.int64, count=2)
        """`[2]` in shared memory: calls of environments so far; the environment being called, -1 for all at once."""

    def start(self, *, pass_fds: Sequence[int] = ()) -> None:
        super().start(pass_fds=(self.memory_fd, *pass_fds))

    def map_step(self, layout: SharedMemoryLayout) -> SharedStep:
        """The memory of a step, shared with the child once it has mapped it as well."""
        os.ftruncate(self.memory_fd, layout.total_bytes())
        return map_shared_step(mmap.mmap(self.memory_fd, layout.total_bytes()), layout)

    def kill(self, reason: str = "") -> None:
        super().kill(reason)
        if self.memory_fd >= 0:
            os.close(self.memory_fd)
            self.memory_fd = -1


class ChildBlocks:
    """Blocks as child processes of this one."""

    slack_s = 0.0

    def make(self, clock: Clock) -> BlockProcess:
        return EnvProcess(clock)

    def wait(self, processes: Sequence[BlockProcess], timeout_s: float) -> None:
        pump_children([one for one in processes if isinstance(one, EnvProcess)], timeout_s)


def gather_replies(
    processes: Sequence[BlockProcess],
    *,
    clock: Clock,
    call_s: float,
    start_s: float | None = None,
    transport: BlockTransport | None = None,
) -> list[WorkerMessage | ChildLostError]:
    """The next message of each process, in order; for a process that ended or hangs, the error.

    A process hangs when none of its environments returned from a call for `call_s` seconds (`start_s` before the first
    call of all). Processes that hang are not killed here.
    """
    where = transport or ChildBlocks()
    answers = [_PendingReply(process, clock.monotonic_s()) for process in processes]
    while waiting := [answer for answer in answers if not answer.complete()]:
        where.wait([answer.process for answer in waiting], min(_TICK_S, call_s / 4))
        now_s = clock.monotonic_s()
        for answer in waiting:
            allowed_s = start_s if start_s is not None and answer.process.calls[0] == 0 else call_s
            answer.check_deadline(now_s, allowed_s, where.slack_s)
    return [answer.reply for answer in answers if answer.reply is not None]


@dataclass
class _PendingReply:
    """The reply expected from one process."""

    process: BlockProcess
    last_progress_s: float
    """Time of the last return from an environment's call, or of the begin of the wait."""
    calls: int = -1
    reply: WorkerMessage | ChildLostError | None = None

    def complete(self) -> bool:
        """True if the reply is here, or can never come."""
        if self.reply is None:
            self.reply = self.process.take_reply()
        return self.reply is not None

    def check_deadline(self, now_s: float, allowed_s: float, slack_s: float) -> None:
        """Kill a process whose environments made no call for more than `allowed_s` seconds."""
        calls = int(self.process.calls[0])
        if calls != self.calls:
            self.calls, self.last_progress_s = calls, now_s
        if now_s - self.last_progress_s > allowed_s + slack_s:
            self.process.pump()  # once more: this thread may have slept while the answer was ready
            late = f"no answer within {allowed_s:g} s (env.step_timeout_s)"
            self.reply = self.process.take_reply() or self.process.timeout_error(late)


def _memory() -> int:
    """Anonymous file for memory shared with a child; it is freed when both processes have closed it."""
    if sys.platform == "linux":
        return os.memfd_create("hone-environments")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
