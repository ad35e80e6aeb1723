"""The trainer's end of a worker: start it, talk to it under a deadline, and kill it with all that it started."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from hone.core.clock import Clock
from hone.core.errors import ResourceError

_TOKEN = "HONE_REWARD_WORKER"
"""Environment variable by which a worker's descendants are known even after they left its session."""
_TICK_S = 0.05
"""How often a worker that says nothing is looked at; its words are heard at once."""
_READ_BYTES = 1 << 16
_MAX_PENDING_BYTES = 1 << 28
_TAIL_BYTES = 4000
_FATAL = "Fatal Python error"
_EXIT_GRACE_S = 1.0
_PROC = Path("/proc")


class WorkerHungError(Exception):
    """Nothing came before the deadline."""


class WorkerDiedError(Exception):
    """The process is gone; the message says how."""


class WorkerProcess:
    """One child process, spoken to in lines. Used by one thread, which must outlive it: Linux kills a child that asked
    to die with its parent when the *thread* that started it ends."""

    def __init__(self, clock: Clock, *, abandoned: Callable[[], bool]) -> None:
        """`abandoned` says that nobody waits any more: `receive` then gives up at the next tick."""
        self._clock = clock
        self._abandoned = abandoned
        self._token = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self._request_fd = self._reply_fd = self._log_fd = -1
        self._out = memoryview(b"")
        self._lines: deque[bytes] = deque()
        self._part: list[bytes] = []
        self._pending = 0
        self._tail = b""
        self._open = True

    def start(self) -> None:
        """Start the interpreter; what it says first is read with `receive`. Raises ResourceError."""
        request_read, self._request_fd = os.pipe()
        self._reply_fd, reply_write = os.pipe()
        self._log_fd, log_write = os.pipe()
        paths = [entry or str(Path.cwd()) for entry in sys.path]
        defaults = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **os.environ}
        own = {"PYTHONPATH": os.pathsep.join([*paths, str(Path.cwd())]), _TOKEN: self._token}
        channel = [str(request_read), str(reply_write), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "faulthandler", "-m", "hone.rewards.worker", *channel],
                stdin=subprocess.DEVNULL,
                stdout=log_write,
                stderr=log_write,
                pass_fds=(request_read, reply_write),
                start_new_session=True,
                env={**defaults, **own},
            )
        except OSError as error:
            self._close()
            raise ResourceError(f"cannot start a process for reward functions: {error}") from None
        finally:
            for fd in (request_read, reply_write, log_write):
                os.close(fd)
        for fd in (self._request_fd, self._reply_fd, self._log_fd):
            os.set_blocking(fd, False)

    def send(self, line: bytes) -> None:
        """Queue a line; it is written while `receive` waits, so that a child that does not read cannot block us."""
        self._out = memoryview(self._out.tobytes() + line)

    def receive(self, deadline_s: float) -> bytes:
        """The next line from the child. Raises WorkerHungError, WorkerDiedError."""
        limit = self._clock.monotonic_s() + deadline_s
        while not self._lines:
            if not self._open or self._exited():
                self._pump(0.0)
                if not self._lines:
                    raise WorkerDiedError(self._exit_reason())
                break
            if self._abandoned():
                raise WorkerDiedError("the worker pool was closed")
            left = limit - self._clock.monotonic_s()
            self._pump(max(0.0, min(left, _TICK_S)))
            # Looked at once more after the deadline: this thread may have slept while the answer lay ready.
            if left <= 0 and not self._lines:
                raise WorkerHungError
        return self._lines.popleft()

    def kill(self) -> None:
        """SIGKILL to the child and to every process that it started, daemons too; leaves no zombie."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)  # it starts nothing more while its children are counted
            _kill_descendants(process.pid, self._token)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
        _kill_descendants(None, self._token)
        self._close()

    def _exited(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _pump(self, timeout_s: float) -> None:
        """Write what the child will take, read what it has said, keep the end of what it printed."""
        poll = select.poll()
        for fd in (self._reply_fd, self._log_fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        if self._out:
            poll.register(self._request_fd, select.POLLOUT)
        for fd, _ in poll.poll(timeout_s * 1000):
            if fd == self._request_fd:
                self._write()
            elif fd == self._reply_fd:
                self._read()
            else:
                self._drain()

    def _write(self) -> None:
        try:
            self._out = self._out[os.write(self._request_fd, self._out) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._out = memoryview(b"")  # it is dying; `receive` will say how

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._reply_fd, _READ_BYTES)
            except BlockingIOError:
                return
            *ended, rest = data.split(b"\n")
            for piece in ended:
                self._lines.append(b"".join([*self._part, piece]))
                self._part, self._pending = [], 0
            self._part.append(rest)
            self._pending += len(rest)
            if not data or self._pending > _MAX_PENDING_BYTES:
                self._open = False
                return
            if len(data) < _READ_BYTES:
                return

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._log_fd, _READ_BYTES)
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            if not data:
                os.close(self._log_fd)
                self._log_fd = -1

    def _exit_reason(self) -> str:
        """How the process ended, with the last thing that it printed."""
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its channel is closed a moment before it is gone
                code = self._process.wait(timeout=_EXIT_GRACE_S)
        if code is None:
            how = "closed its channel"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"left with exit code {code}"
        said = self._tail.decode(errors="replace").strip()
        start = said.rfind(_FATAL)
        told = said[start : start + 500] if start >= 0 else said[-200:]
        return f"the worker {how}" + (f"; it printed: {told}" if told else "")

    def _close(self) -> None:
        for fd in (self._request_fd, self._reply_fd, self._log_fd):
            if fd >= 0:
                os.close(fd)
        self._request_fd = self._reply_fd = self._log_fd = -1


def _kill_descendants(worker: int | None, token: str) -> None:
    """SIGKILL to all descendants of a worker, until none is found."""
    for _ in range(50):
        members = list(_living_descendants(worker, token))
        if not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _living_descendants(worker: int | None, token: str) -> Iterator[int]:
    """Living processes that carry the token, or descend from a worker that still lives (not the worker itself)."""
    if not _PROC.is_dir():
        return
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (parent := _living_parent(entry)) is not None:
            parents[int(entry.name)] = parent
    mark = f"{_TOKEN}={token}".encode()
    for pid in parents:
        if pid not in (worker, os.getpid()) and (_descends(pid, worker, parents) or mark in _environment(pid)):
            yield pid


def _living_parent(entry: Path) -> int | None:
    try:
        state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None  # gone while we looked
    return None if state in "ZX" else int(parent)


def _descends(pid: int, worker: int | None, parents: dict[int, int]) -> bool:
    while worker is not None and pid in parents and pid > 1:
        pid = parents[pid]
        if pid == worker:
            return True
    return False


def _environment(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""  # another user's, or gone
