"""The trainer's end of a process of environments: start it, talk to it under a deadline, kill it with all it started.

Belongs here: the life of the process and its channel. What is said is in `gym_wire.py`; who is asked for what, and what
a loss means, is in `gym_spread.py`.
"""

import contextlib
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock
from hone.core.errors import ResourceError
from hone.envs.gym.protocol import HEADER_BYTES, MessageParser, WorkerMessage

START_S = 120.0
"""Until the process is up and the user's module is imported."""
_TOKEN = "HONE_ENV_WORKER"
"""Environment variable by which a process's descendants are known even after they left its session."""
_TICK_S = 0.25
_READ_BYTES = 1 << 18
_TAIL_BYTES = 4000
_OUTPUT_CHARACTERS = 400
_FATAL = "Fatal Python error"
_OWN_FRAMES_FILE = "gym_worker.py"
_EXIT_GRACE_S = 1.0
_PROC = Path("/proc")


class ProcessLostError(Exception):
    """The process is gone, or had to be killed; the message says how."""

    def __init__(self, message: str, *, timeout: bool = False) -> None:
        super().__init__(message)
        self.timeout = timeout


class EnvProcess:
    """One child process and the memory that it shares with us."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._token = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self._request_fd = self._reply_fd = self._log_fd = self._life_fd = self.memory_fd = -1
        self._out = memoryview(b"")
        self._parser = MessageParser()
        self._messages: deque[WorkerMessage] = deque()
        self._tail = b""
        self._broken = ""
        self.calls: NDArray[np.int64] = np.zeros(2, np.int64)
        """`[2]` in shared memory: calls of environments so far; the one that is being called, -1 for all at once."""

    def start(self) -> None:
        """Start the interpreter. Raises ResourceError."""
        request_read, self._request_fd = os.pipe()
        self._reply_fd, reply_write = os.pipe()
        self._log_fd, log_write = os.pipe()
        life_read, self._life_fd = os.pipe()  # nobody writes here: its end is what a child hears when we are gone
        self.memory_fd = _memory()
        os.ftruncate(self.memory_fd, HEADER_BYTES)
        self.calls = np.frombuffer(mmap.mmap(self.memory_fd, HEADER_BYTES), np.int64, count=2)
        given = (request_read, reply_write, life_read, self.memory_fd)
        paths = [entry or str(Path.cwd()) for entry in sys.path]
        defaults = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **os.environ}
        own = {"PYTHONPATH": os.pathsep.join([*paths, str(Path.cwd())]), _TOKEN: self._token}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "faulthandler", "-m", "hone.envs.gym.worker", *map(str, given)],
                stdin=subprocess.DEVNULL,
                stdout=log_write,
                stderr=log_write,
                pass_fds=given,
                start_new_session=True,
                env={**defaults, **own},
            )
        except OSError as error:
            self._close()
            raise ResourceError(f"cannot start a process for environments: {error}") from None
        finally:
            for fd in (request_read, reply_write, log_write, life_read):
                os.close(fd)
        for fd in (self._request_fd, self._reply_fd, self._log_fd):
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it runs no more"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, data: bytes) -> None:
        """Write, or queue what the child does not take yet: it is written while we wait for its answer."""
        if self._request_fd < 0:
            return  # it was killed; whoever waits for its answer is told so
        self._out = memoryview(data) if not self._out else memoryview(self._out.tobytes() + data)
        self._write()

    def kill(self, why: str = "") -> None:
        """SIGKILL to the child, its process group and whatever else it started; leaves no zombie. Whoever asks it later
        is told `why`."""
        process, self._process = self._process, None
        self._broken = why or self._broken or "its process was killed"
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
            _kill_descendants(self._token)
        self._close()

    def request_exit(self) -> None:
        """Ask the child to close its environments and go."""
        if self._request_fd >= 0:
            os.close(self._request_fd)
            self._request_fd = -1
            self._out = memoryview(b"")

    def shut_down(self, patience_s: float) -> None:
        """Hang up, and kill the child where it does not go."""
        self.request_exit()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=patience_s)
        self.kill()

    # ------------------------------------------------------------------------------------------ for `gather`

    def register_with(self, poll: select.poll) -> None:
        """Register what is to be looked at."""
        for fd in (self._reply_fd, self._log_fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        if self._out:
            poll.register(self._request_fd, select.POLLOUT)

    def pump(self, ready: Container[int] | None = None) -> None:
        """Write what the child will take, read what it has said, keep the end of what it printed; where `ready` says
        which descriptors have something, only those."""
        if self._out:
            self._write()
        if ready is None or self._reply_fd in ready:
            self._read()
        if ready is None or self._log_fd in ready:
            self._drain()

    def next_message(self) -> WorkerMessage | None:
        return self._messages.popleft() if self._messages else None

    def is_drained(self) -> bool:
        """Whether nothing more can come."""
        return bool(self._broken) or not self.alive

    def exit_reason(self) -> str:
        """How the process ended, with the last thing that it printed."""
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its channel is closed a moment before it is gone
                code = self._process.wait(timeout=_EXIT_GRACE_S)
        self._drain()
        if code is None:
            how = self._broken or "it closed its channel"
        elif code < 0:
            how = f"its process was killed by {signal.Signals(-code).name}"
        else:
            how = f"its process left with exit code {code}"
        return how if code is None and self._process is None else how + self.last_output()

    def last_output(self) -> str:
        """`; it printed: ...`, or nothing. Of a fatal error the user's own frames."""
        said = self._tail.decode(errors="replace").strip()
        start = said.rfind(_FATAL)
        told = said[start:] if start >= 0 else said[-_OUTPUT_CHARACTERS:]
        lines = [line.strip() for line in told.splitlines() if line.strip()]
        ours = [number for number, line in enumerate(lines) if start >= 0 and _OWN_FRAMES_FILE in line]
        shown = " | ".join(lines[: ours[0]] if ours else lines)[:_OUTPUT_CHARACTERS]
        return f"; it printed: {shown}" if shown else ""

    # ------------------------------------------------------------------------------------------ inside

    def _write(self) -> None:
        try:
            self._out = self._out[os.write(self._request_fd, self._out) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._out = memoryview(b"")  # it is dying; `how` will say of what

    def _read(self) -> None:
        if self._reply_fd < 0:
            return
        try:
            while data := os.read(self._reply_fd, _READ_BYTES):
                self._messages.extend(self._parser.feed(data))
                if len(data) < _READ_BYTES:
                    return
            self._broken = "it closed its channel"
        except BlockingIOError:
            return
        except (ValueError, TypeError, KeyError) as error:
            self._broken = f"its process sent what is no message ({error})"

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._log_fd >= 0:
                data = os.read(self._log_fd, _READ_BYTES)
                self._tail = (self._tail + data)[-_TAIL_BYTES:]
                if not data:
                    os.close(self._log_fd)
                    self._log_fd = -1
                if len(data) < _READ_BYTES:
                    return

    def _close(self) -> None:
        for fd in (self._request_fd, self._reply_fd, self._log_fd, self._life_fd, self.memory_fd):
            if fd >= 0:
                os.close(fd)
        self._request_fd = self._reply_fd = self._log_fd = self._life_fd = self.memory_fd = -1
        self._out = memoryview(b"")


def gather_replies(
    processes: Sequence[EnvProcess], *, clock: Clock, call_s: float, start_s: float | None = None
) -> list[WorkerMessage | ProcessLostError]:
    """The next message of each, in order; for those that ended or hang, how.

    A process hangs when none of its environments came back from a call for `call_s`; until the first call of all,
    `start_s` stands in for that. Processes that hang are not killed here.
    """
    answers = [_PendingReply(process, clock.monotonic_s()) for process in processes]
    while True:
        waiting = [answer for answer in answers if not answer.complete()]
        if not waiting:
            return [answer.reply for answer in answers if answer.reply is not None]
        poll = select.poll()
        for answer in waiting:
            answer.process.register_with(poll)
        heard = {fd for fd, _ in poll.poll(min(_TICK_S, call_s / 4) * 1000)}
        now_s = clock.monotonic_s()
        for answer in waiting:
            if heard:
                answer.process.pump(heard)
            allowed_s = start_s if start_s is not None and answer.process.calls[0] == 0 else call_s
            answer.check_deadline(now_s, allowed_s)


@dataclass
class _PendingReply:
    """What is waited for from one process."""

    process: EnvProcess
    last_progress_s: float
    """When an environment last came back from a call, or we began to wait."""
    calls: int = -1
    reply: WorkerMessage | ProcessLostError | None = None

    def complete(self) -> bool:
        """Whether its message is there, or can never come."""
        if self.reply is None:
            self.reply = self.process.next_message()
        if self.reply is None and self.process.is_drained():
            self.process.pump()
            self.reply = self.process.next_message() or ProcessLostError(self.process.exit_reason())
        return self.reply is not None

    def check_deadline(self, now_s: float, allowed_s: float) -> None:
        """Give up a process that made no call for longer than allowed."""
        made = int(self.process.calls[0])
        if made != self.calls:
            self.calls, self.last_progress_s = made, now_s
        if now_s - self.last_progress_s > allowed_s:
            self.process.pump()  # once more: we may have slept while the answer lay ready
            told = (
                f"no answer within {allowed_s:g} s (env.step_timeout_s), so it was killed{self.process.last_output()}"
            )
            self.reply = self.process.next_message() or ProcessLostError(told, timeout=True)


def _memory() -> int:
    """A file without a name, for memory shared with a child: nothing is left of it when both are gone."""
    if sys.platform == "linux":
        return os.memfd_create("hone-environments")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _kill_descendants(token: str) -> None:
    """SIGKILL to all that carries the token, until nothing is found; a daemon leaves the group, not its environment."""
    mark = f"{_TOKEN}={token}".encode()
    for _ in range(50 if _PROC.is_dir() else 0):
        members = [entry for entry in _PROC.iterdir() if entry.name.isdigit() and mark in _environment(entry)]
        if not members:
            return
        for entry in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry.name), signal.SIGKILL)


def _environment(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except OSError:
        return b""  # another user's, or gone
