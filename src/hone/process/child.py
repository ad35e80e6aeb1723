"""The parent's end: start a child process, talk to it under a deadline, and kill it with everything that it started.

A descendant is found in `/proc` by any of four marks: its process group, its session, its parents, its environment. A
child is the subreaper of its descendants (`parent.py`): while it lives, even an orphan is found by its parents. A
daemon escapes only if it left the session *and* cleared its environment *and* the child ended before it was killed.
Without `/proc` (macOS) only the process group is killed.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

from hone.core.clock import Clock
from hone.core.errors import ResourceError
from hone.process.parent import READ_BYTES

# ---------------------------------------------------------------------------------------------------------- descendants


TOKEN_VARIABLE = "HONE_CHILD_PROCESS"
"""Environment variable that holds a child's token, which its descendants inherit."""
_PROC = Path("/proc")
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class _Relation:
    parent: int
    group: int
    session: int


def kill_family(child: int, token: str) -> None:
    """Kill (SIGKILL) a child that has not been waited for, and its descendants, until none is found."""
    _send(signal.SIGSTOP, child)  # it starts nothing more while its descendants are listed
    for _ in range(_ROUNDS):
        members = list(_living_descendants(child, token))
        if not members:
            break
        for pid in members:
            _send(signal.SIGKILL, pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # a zombie keeps the number of its group, so this can hit no other
    _send(signal.SIGKILL, child)


def _send(number: signal.Signals, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _living_descendants(child: int, token: str) -> Iterator[int]:
    entries = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if _PROC.is_dir() else []
    known = {pid: relation for pid in entries if (relation := _relation(pid)) is not None}
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    for pid, relation in known.items():
        if pid not in (child, os.getpid()) and (
            child in (relation.group, relation.session) or _descends(pid, child, known) or mark in _environment(pid)
        ):
            yield pid


def _relation(pid: int) -> _Relation | None:
    """Parent, group and session of a living process; None for a zombie and for one that is gone."""
    try:
        state, *numbers = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else _Relation(*map(int, numbers))


def _descends(pid: int, ancestor: int, known: dict[int, _Relation]) -> bool:
    while pid in known and pid > 1:
        pid = known[pid].parent
        if pid == ancestor:
            return True
    return False


def descendants(ancestor: int) -> list[int]:
    """Living processes below `ancestor`, by their parents; none without `/proc`."""
    entries = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if _PROC.is_dir() else []
    known = {pid: relation for pid in entries if (relation := _relation(pid)) is not None}
    return [pid for pid in known if _descends(pid, ancestor, known)]


def _environment(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""  # another user's, or gone


# ---------------------------------------------------------------------------------------------------------------- child


TICK_S = 0.05
"""Longest wait between two looks at a silent child. A reply wakes the parent at once."""
MAX_LINE_BYTES = 1 << 28
_TAIL_BYTES = 4000
_OUTPUT_CHARACTERS = 400
_FATAL = "Fatal Python error"
_OWN_FRAMES = str(Path(__file__).parents[1])
_EXIT_GRACE_S = 1.0

Reply = TypeVar("Reply")
ReplyT_co = TypeVar("ReplyT_co", covariant=True)


class ChildLostError(Exception):
    """The child ended, or gave no answer in time (`timeout`); the message says how."""

    def __init__(self, message: str, *, timeout: bool = False) -> None:
        super().__init__(message)
        self.timeout = timeout


class _ReplyParser(Protocol[ReplyT_co]):
    """Cuts the stream of a child's bytes into replies."""

    def feed(self, data: bytes) -> Iterable[ReplyT_co]:
        """The replies that are complete now. Raises ValueError, TypeError or KeyError for bytes that are none."""
        ...


class LineParser:
    """Cuts a stream into lines, without their ends; a line of more than `max_bytes` is an error."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Add received bytes, and yield the complete lines."""
        *ended, rest = data.split(b"\n")
        for piece in ended:
            yield b"".join([*self._parts, piece])
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._max_bytes:
            raise ValueError(f"a line of more than {self._max_bytes} bytes")


class ChildProcess(Generic[Reply]):
    """One child process: `python -m module` with `arguments`, in a session of its own.

    The child calls `parent.connect_to_parent` first. Used by one thread at a time. A lost child is replaced by a new
    object (`RestartingChild` does so). The last 4,000 bytes that the child printed are kept, for error messages.
    """

    def __init__(
        self,
        module: str,
        parser: _ReplyParser[Reply],
        *,
        clock: Clock,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        inherit: bool = True,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        """`variables` are added to this process's environment, or to an empty one without `inherit`. Once `abandoned`
        is true (nobody waits any more), `receive` raises at the next tick."""
        self._command = (module, *arguments)
        self._variables = {
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            **(os.environ if inherit else {}),
            **(variables or {}),
        }
        self._parser = parser
        self._clock = clock
        self._abandoned = abandoned
        self._token = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self._request_fd = self._reply_fd = self._log_fd = self._life_fd = -1
        self._out = memoryview(b"")
        self._replies: deque[Reply] = deque()
        self._tail = b""
        self._broken = ""

    def start(self, *, pass_fds: Sequence[int] = ()) -> None:
        """Start the interpreter, with `pass_fds` open in it. Raises ResourceError."""
        request_read, self._request_fd = os.pipe()
        self._reply_fd, reply_write = os.pipe()
        self._log_fd, log_write = os.pipe()
        life_read, self._life_fd = os.pipe()  # nothing is written: its end tells the child that the parent is gone
        channel = (request_read, reply_write, life_read)
        module, *arguments = self._command
        paths = [*(entry or str(Path.cwd()) for entry in sys.path), str(Path.cwd())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "faulthandler", "-m", module, *map(str, channel), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log_write,
                stderr=log_write,
                pass_fds=(*channel, *pass_fds),
                start_new_session=True,
                env={**self._variables, "PYTHONPATH": os.pathsep.join(paths), TOKEN_VARIABLE: self._token},
            )
        except OSError as error:
            self.kill()
            raise ResourceError(f"cannot start a process ({module}): {error}") from None
        finally:
            for fd in (*channel, log_write):
                os.close(fd)
        for fd in (self._request_fd, self._reply_fd, self._log_fd):
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        """Process number. The child must have been started, and not killed."""
        assert self._process is not None, "the process does not run"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the child was started and has not ended."""
        return self._process is not None and self._poll_exit() is None

    def send(self, data: bytes) -> None:
        """Write a request, or queue the part that the child does not take yet: it is written while a reply is awaited.
        Does nothing for a child that was killed."""
        if self._request_fd >= 0:
            self._out = memoryview(data) if not self._out else memoryview(self._out.tobytes() + data)
            self._write()

    def receive(self, deadline_s: float) -> Reply:
        """Wait for the next reply. Raises ChildLostError if the child ended or gave none in `deadline_s` seconds."""
        limit_s = self._clock.monotonic_s() + deadline_s
        while (result := self.take_reply()) is None:
            if self._abandoned():
                raise ChildLostError("the request was abandoned")
            left_s = limit_s - self._clock.monotonic_s()
            pump_children([self], max(0.0, min(left_s, TICK_S)))
            if left_s <= 0:
                result = self.take_reply() or self.timeout_error(f"no answer within {deadline_s:g} s")
                break
        if isinstance(result, ChildLostError):
            raise result
        return result

    def take_reply(self) -> Reply | ChildLostError | None:
        """The next reply if it is here, the error when none can come, else None. Waits for nothing."""
        if not self._replies and (self._reply_fd < 0 or not self.alive):
            self.pump()  # a child may answer and end between two looks
            if not self._replies:
                return ChildLostError(self.exit_reason())
        return self._replies.popleft() if self._replies else None

    def timeout_error(self, message: str) -> ChildLostError:
        """The error for a child that is too slow, with its last output."""
        return ChildLostError(f"{message}, so it was killed{self.last_output()}", timeout=True)

    def kill(self, reason: str = "") -> None:
        """SIGKILL to the child and to everything that it started; leaves no zombie and no descriptor. A later `receive`
        reports `reason`."""
        process, self._process = self._process, None
        self._broken = reason or self._broken or "its process was killed"
        if process is not None:
            kill_family(process.pid, self._token)
            process.wait()
        for fd in (self._request_fd, self._reply_fd, self._log_fd, self._life_fd):
            if fd >= 0:
                os.close(fd)
        self._request_fd = self._reply_fd = self._log_fd = self._life_fd = -1
        self._out = memoryview(b"")

    def request_exit(self) -> None:
        """Close the request end: the child sees the end of its requests, and may clean up."""
        if self._request_fd >= 0:
            os.close(self._request_fd)
            self._request_fd = -1
            self._out = memoryview(b"")

    def shut_down(self, patience_s: float) -> None:
        """Request an exit, wait up to `patience_s` seconds for it, then kill the remaining processes."""
        self.request_exit()
        self._wait_exit(patience_s)
        self.kill()

    def exit_reason(self) -> str:
        """Description of the child's end, with its last output."""
        if self._process is None or self._broken:
            return self._broken or "its process was never started"
        code = self._wait_exit(_EXIT_GRACE_S)  # the channel is closed a moment before the process is gone
        self._drain()
        if code is None:
            how = "its process closed its channel"
        elif code < 0:
            how = f"its process was killed by {signal.Signals(-code).name}"
            how += " (as the system does when memory runs out)" if code == -signal.SIGKILL else ""
        else:
            how = f"its process exited with code {code}"
        return how + self.last_output()

    def last_output(self) -> str:
        """`; it printed: ...`, or nothing; for a fatal error of the interpreter only the frames of user code."""
        output = self._tail.decode(errors="replace").strip()
        start = output.rfind(_FATAL)
        text = output[start:] if start >= 0 else output[-_OUTPUT_CHARACTERS:]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        own = [number for number, line in enumerate(lines) if start >= 0 and _OWN_FRAMES in line]
        shown = " | ".join(lines[: own[0]] if own else lines)[:_OUTPUT_CHARACTERS]
        return f"; it printed: {shown}" if shown else ""

    def register_with(self, poll: select.poll) -> None:
        """Register the descriptors to wait for."""
        for fd in (self._reply_fd, self._log_fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        if self._out:
            poll.register(self._request_fd, select.POLLOUT)

    def pump(self, ready: set[int] | None = None) -> None:
        """Write and read once without waiting; with `ready`, read only from these descriptors. One read each: a child
        that prints without end cannot hold the parent."""
        if self._out:
            self._write()
        if ready is None or self._reply_fd in ready:
            self._read()
        if ready is None or self._log_fd in ready:
            self._drain()

    def _poll_exit(self) -> int | None:
        """Exit code, negative for a signal; None while it runs. The zombie stays, and with it the group's number."""
        if self._exit_code is None and self._process is not None:
            if sys.platform != "linux":  # no waitid
                self._exit_code = self._process.poll()
                return self._exit_code
            try:
                ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._exit_code = 0  # other code of this program waited for it
                return self._exit_code
            if ended is not None:
                self._exit_code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return self._exit_code

    def _wait_exit(self, patience_s: float) -> int | None:
        limit_s = self._clock.monotonic_s() + patience_s
        while self.alive and self._clock.monotonic_s() < limit_s:
            pump_children([self], TICK_S / 5)
        return self._exit_code

    def _write(self) -> None:
        try:
            self._out = self._out[os.write(self._request_fd, self._out) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._out = memoryview(b"")  # it is ending; `exit_reason` says how

    def _read(self) -> None:
        if self._reply_fd < 0:
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._reply_fd, READ_BYTES)
            try:
                self._replies.extend(self._parser.feed(data))
            except (ValueError, TypeError, KeyError) as error:
                self._broken = f"its process sent an invalid reply ({error})"
            if not data or self._broken:
                os.close(self._reply_fd)
                self._reply_fd = -1

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if self._log_fd >= 0:
                data = os.read(self._log_fd, READ_BYTES)
                self._tail = (self._tail + data)[-_TAIL_BYTES:]
                if not data:
                    os.close(self._log_fd)
                    self._log_fd = -1


def pump_children(children: Iterable[ChildProcess[Reply]], timeout_s: float) -> None:
    """Wait until a child has something to read or takes more to write, at most `timeout_s` seconds, and do it."""
    poll = select.poll()
    watched = list(children)
    for child in watched:
        child.register_with(poll)
    if ready := {fd for fd, _ in poll.poll(timeout_s * 1000)}:
        for child in watched:
            child.pump(ready)


class RestartingChild:
    """A child that answers a line with a line, started by the first call and replaced after it was lost.

    Threads may share it: calls wait for each other.
    """

    def __init__(self, module: str, *, clock: Clock, arguments: Sequence[str] = ()) -> None:
        self._module, self._arguments, self._clock = module, tuple(arguments), clock
        self._lock = threading.Lock()
        self.child: ChildProcess[bytes] | None = None

    def call(self, request: bytes, *, deadline_s: float) -> bytes:
        """The answer to a request, which ends with a newline. Raises ChildLostError; the child is killed then, with
        everything that it started, and the next call starts another. Raises ResourceError when none can be started."""
        with self._lock:
            try:
                if self.child is None:
                    self.child = ChildProcess(self._module, LineParser(), clock=self._clock, arguments=self._arguments)
                    self.child.start()
                self.child.send(request)
                return self.child.receive(deadline_s)
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """Kill the child, with everything that it started; a later call starts another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        child, self.child = self.child, None
        if child is not None:
            child.kill()


# ------------------------------------------------------------------------------------------------------ foreign program


_PROGRAM_TAIL_BYTES = 2000


class ForeignProgram:
    """One program: `send` writes a line, `on_line` gets each line that it writes, from a thread of its own."""

    def __init__(self, command: Sequence[str], *, folder: Path, on_line: Callable[[dict[str, Any]], None]) -> None:
        self._command, self._folder, self._on_line = list(command), folder, on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._log: IO[bytes] | None = None
        self._token = uuid.uuid4().hex
        self._ended = ""

    def start(self) -> None:
        """Start it in its folder, without this interpreter's packages. Raises ResourceError."""
        left = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        try:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**left, TOKEN_VARIABLE: self._token, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            self.close()
            raise ResourceError(f"cannot start {self._command[0]}: {error.strerror}") from None
        self._reader = threading.Thread(target=self._read, daemon=True, name="hone-foreign-program")
        self._reader.start()

    def send(self, line: dict[str, Any]) -> None:
        """Write a line; one that has ended takes none, and `ended` says why."""
        assert self._process is not None and self._process.stdin is not None, "start it first"
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def ended(self) -> str:
        """Why it ended, with what it printed last; empty while it runs. Its lines have been handed on by then, but for
        those of a program that it left behind."""
        if self._process is None:
            return "it was closed"
        code = self._process.poll()
        if code is None:
            return ""
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(5)
        return f"it ended with code {code}{self.last_output()}"

    def last_output(self) -> str:
        """`; it printed: ...`, or nothing."""
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _PROGRAM_TAIL_BYTES))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"; it printed: {' | '.join(lines[-6:])}" if lines else ""

    def close(self) -> None:
        """End it with everything that it started."""
        process, self._process = self._process, None
        if process is not None:
            kill_family(process.pid, self._token)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(5)
        if self._log is not None:
            self._log.close()
            self._log = None

    def _read(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        for line in process.stdout:
            self._on_line(json.loads(line))
