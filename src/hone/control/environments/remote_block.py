"""Blocks of environments on another machine: a host there keeps the process, and this side keeps a copy of the memory.

Belongs here: the two ends and what passes between them. Whatever carries it (`ray_blocks`: Ray) implements
`BlockHandle`. Seeds, losses and the fault budget are those of `subprocess_env.py`, for every transport.
"""

import json
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hone.control.environments.protocol import (
    MessageParser,
    SharedMemoryLayout,
    SharedStep,
    WorkerMessage,
    encode,
    map_shared_step,
)
from hone.control.environments.worker_process import START_S, BlockProcess, gather_replies
from hone.core.clock import Clock
from hone.process.child import ChildLostError

_STEP_ARRAYS = ("seen", "reward", "terminated", "truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """A request for a block, sent again under its number where it is not known to have arrived."""

    number: int
    data: bytes
    """Message of `protocol.py`."""
    chosen: bytes
    """Actions of a step."""
    call_s: float
    """Seconds that an environment's call may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReply:
    """The answer to a request, or the loss of the block's process."""

    number: int
    data: bytes = b""
    calls: tuple[int, int] = (0, -1)
    """As `BlockProcess.calls`."""
    lost: str = ""
    timeout: bool = False


class BlockHandle(Protocol):
    """A host on another machine, as this side sees it."""

    def submit(self, request: BlockRequest) -> None:
        """Send a request."""
        ...

    def reply(self) -> BlockReply | ChildLostError | None:
        """The reply to the last request if it is here; the error when none can come."""
        ...

    def calls(self) -> int:
        """Calls of environments so far, as last heard."""
        ...

    def end(self) -> None:
        """End the host, and its process with it."""
        ...


class BlockHost:
    """The other machine's end: one block's process, which is lost and killed there as it would be here."""

    def __init__(self, process: BlockProcess, clock: Clock) -> None:
        self.process = process
        self._clock = clock
        self._step: SharedStep | None = None
        self._last: BlockReply | None = None

    def exchange(self, request: BlockRequest) -> BlockReply:
        """Pass a request on and wait for its answer. A request that was answered before gets the same answer."""
        if self._last is None or self._last.number != request.number:
            self._last = self._exchange(request)
        return self._last

    def _exchange(self, request: BlockRequest) -> BlockReply:
        head = json.loads(request.data[: request.data.index(b"\n")])
        stepping = head["do"] == "step"
        if head["do"] == "map":
            self._step = self.process.map_step(SharedMemoryLayout(**head["layout"]))
        if stepping and self._step is not None:
            self._step.chosen[:] = np.frombuffer(request.chosen, np.uint8)
        self.process.send(request.data)
        (reply,) = gather_replies([self.process], clock=self._clock, call_s=request.call_s, start_s=START_S)
        calls = (int(self.process.calls[0]), int(self.process.calls[1]))
        if isinstance(reply, ChildLostError):
            self.process.kill()
            return BlockReply(number=request.number, calls=calls, lost=str(reply), timeout=reply.timeout)
        arrays = dict(reply.arrays)
        if stepping and "fault" not in reply.head and self._step is not None:
            step = self._step
            ended = step.terminated.any() or step.truncated.any()  # else there are no last observations
            masks = ("mask", "final_mask") if step.mask.shape[1] else ()
            names = (*_STEP_ARRAYS, *masks[:1], *(("final", *masks[1:]) if ended else ()))
            arrays = {name: step.array(name) for name in names}
        return BlockReply(number=request.number, data=encode(reply.head, arrays), calls=calls)


class RemoteProcess:
    """This machine's end: a `BlockProcess` whose child and memory are elsewhere."""

    def __init__(self, open_handle: Callable[[], BlockHandle], call_s: float) -> None:
        self.calls = np.array([0, -1], np.int64)
        self._open, self._call_s = open_handle, call_s
        self._handle: BlockHandle | None = None
        self._step: SharedStep | None = None
        self._number = 0
        self._broken = ""

    @property
    def handle(self) -> BlockHandle:
        """The host; it must have been started."""
        assert self._handle is not None
        return self._handle

    @property
    def alive(self) -> bool:
        return self._handle is not None

    def start(self) -> None:
        self._handle = self._open()

    def send(self, data: bytes) -> None:
        if self._handle is not None:
            self._number += 1
            chosen = b"" if self._step is None else self._step.chosen.tobytes()
            self._handle.submit(BlockRequest(number=self._number, data=data, chosen=chosen, call_s=self._call_s))

    def map_step(self, layout: SharedMemoryLayout) -> SharedStep:
        self._step = map_shared_step(mmap.mmap(-1, layout.total_bytes()), layout)
        return self._step

    def pump(self) -> None:
        if self._handle is not None:
            self.calls[0] = max(int(self.calls[0]), self._handle.calls())

    def take_reply(self) -> WorkerMessage | ChildLostError | None:
        if self._handle is None:
            return ChildLostError(self._broken or "its process was never started")
        reply = self._handle.reply()
        if reply is None or isinstance(reply, ChildLostError):
            self.pump()
            return reply
        self.calls[:] = reply.calls
        if reply.lost:
            return ChildLostError(reply.lost, timeout=reply.timeout)
        (message,) = MessageParser().feed(reply.data)
        if self._step is not None and _STEP_ARRAYS[-1] in message.arrays:
            for name, values in message.arrays.items():
                self._step.array(name)[:] = values
        return message

    def timeout_error(self, message: str) -> ChildLostError:
        return ChildLostError(f"{message}, so it was killed", timeout=True)

    def kill(self, reason: str = "") -> None:
        handle, self._handle = self._handle, None
        self._broken = reason or self._broken or "its process was killed"
        if handle is not None:
            handle.end()

    def request_exit(self) -> None:
        """Nothing to clean up: the host ends its process."""

    def shut_down(self, patience_s: float) -> None:
        del patience_s
        self.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBlocks:
    """Blocks on other machines: `open_handle` starts a host, `wait_handles` waits for a reply of one of several."""

    open_handle: Callable[[], BlockHandle]
    wait_handles: Callable[[Sequence[BlockHandle], float], None]
    call_s: float
    slack_s: float = 10.0

    def make(self, clock: Clock) -> BlockProcess:
        del clock
        return RemoteProcess(self.open_handle, self.call_s)

    def wait(self, processes: Sequence[BlockProcess], timeout_s: float) -> None:
        alive = [one.handle for one in processes if isinstance(one, RemoteProcess) and one.alive]
        if alive:
            self.wait_handles(alive, timeout_s)
