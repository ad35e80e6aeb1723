"""The process that starts a program, watches its limits, and answers the caller: one for each call.

It holds no code of the program, and cannot be reached by it. Limits of time and output are kept here, while reading.

The tests of an examination run in a process that holds nothing of the program but its answers (`examiner`), and the
program in one that holds nothing of the tests (`remote`). So no program can read what is expected, change `assert`, or
claim that the tests have passed: the process that says so has never run a line of it.
"""

import contextlib
import itertools
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, cast

from hone.process.parent import ParentChannel
from hone.sandbox import examiner, program, remote
from hone.sandbox.frames import read_frame
from hone.sandbox.rungs import ConfinementRung, ProgramLimits

_TICK_S = 0.02
_READ_BYTES = 1 << 16
_RECURSION = 200


class _WatchedProcess:
    """A running program: its descriptors, the bytes that it wrote, and the time that it took."""

    def __init__(self, pid: int, streams: Mapping[str, int], limits: ProgramLimits) -> None:
        self.pid, self._limits = pid, limits
        self.written = {name: bytearray() for name in streams}
        self._names = {descriptor: name for name, descriptor in streams.items()}
        self._end = os.pidfd_open(pid)
        self._clock = ~pid << 3 | 2  # the kernel's clock of a process's processor time
        self.status: int | None = None
        self._cpu_end_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin to count time."""
        self.began_s, self._cpu_before_s = time.monotonic(), self.cpu_s()

    def cpu_s(self) -> float:
        """Processor time so far, in the end that of its children too."""
        return time.clock_gettime(self._clock) if self.status is None else self._cpu_end_s

    @property
    def descriptors(self) -> list[int]:
        """Descriptors to wait for."""
        return [self._end, *self._names] if self.status is None else []

    def take(self, ready: Set[int]) -> None:
        """Take up what is ready: bytes, or the end."""
        if self.status is None and self._end in ready:
            self._reap()
            self._drain()
        elif self.status is None:
            for descriptor in ready & self._names.keys():
                self._read(descriptor)

    def kill(self) -> None:
        """Kill it and its session, if it has not ended."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        _, self.status, used = os.wait4(self.pid, 0)
        self._cpu_end_s = used.ru_utime + used.ru_stime

    def patience_s(self) -> float:
        """Longest time to wait for it before its limits are looked at again."""
        left = self._limits.wall_s - (time.monotonic() - self.began_s)
        close = left < 1 or self.cpu_s() - self._cpu_before_s > 0.5 * self._limits.cpu_s
        return max(0.0, min(left, _TICK_S)) if close else 10 * _TICK_S

    def passed_limit(self) -> str:
        """The verdict of a limit that was passed, else empty."""
        if sum(map(len, self.written.values())) > 2 * self._limits.output_bytes or self._too_much_printed():
            return "output"
        if self.status is not None:
            return ""
        slow = time.monotonic() - self.began_s > self._limits.wall_s
        return "timeout" if slow or self.cpu_s() - self._cpu_before_s > self._limits.cpu_s else ""

    def _too_much_printed(self) -> bool:
        return sum(len(self.written.get(name, b"")) for name in ("stdout", "stderr")) > self._limits.output_bytes

    def _drain(self) -> None:
        """Read what is there; a descendant may hold the pipe open, so its end is not awaited."""
        for descriptor in list(self._names):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(BlockingIOError):
                while descriptor in self._names and not self._too_much_printed():
                    self._read(descriptor)

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, _READ_BYTES)
        self.written[self._names[descriptor]] += data
        if not data:
            del self._names[descriptor]


def watch(processes: Sequence[_WatchedProcess]) -> None:
    """Wait a moment for any of them."""
    poll = select.poll()
    for process in processes:
        for descriptor in process.descriptors:
            poll.register(descriptor, select.POLLIN)
    patience_s = min(process.patience_s() for process in processes)
    ready = {descriptor for descriptor, _ in poll.poll(1000 * patience_s)}
    for process in processes:
        process.take(ready)


def supervise(channel: ParentChannel, rung: ConfinementRung, limits: ProgramLimits, folder: str) -> NoReturn:
    """Read a request, run it, answer, end."""
    channel = replace(channel, pid=os.getpid())  # the zygote leaves the answer to this process
    sys.setrecursionlimit(_RECURSION)  # what is nested deeper than the caller can read is not read here either
    data = read_frame(channel.request_fd)
    if data is None:
        os._exit(1)  # no request will come
    request = cast("dict[str, object]", json.loads(data))
    files = cast("dict[str, str]", request["files"])
    for name, text in files.items():
        path = Path(folder, name)
        for missing in reversed([parent for parent in path.parents if not parent.exists()]):
            missing.mkdir()
            rung.own(str(missing))
        path.write_text(text, encoding="utf-8")
        rung.own(str(path))
    try:
        if "stdin" in request:
            # run one program to its end, and tell what it did
            code = str(request["code"])
            stdin = _stdin(str(request["stdin"])) if request["stdin"] else None
            watched = _start(lambda: program.run_text(code), rung, limits, folder, stdin=stdin)
            verdict = ""
            while watched.status is None and not verdict:
                watch([watched])
                verdict = watched.passed_limit()
            seconds, cpu_s = time.monotonic() - watched.began_s, watched.cpu_s()
            watched.kill()
            reply = {**outcome(watched, verdict, limits), "seconds": seconds, "cpu_s": cpu_s}
        else:
            serve = partial(remote.serve_program, str(request["prelude"]), str(request["code"]))
            reply = _run_examination(serve, channel, rung, limits, folder)
    except program.UnconfinedError as error:
        reply: dict[str, object] = {"verdict": "refused", "error": f"the program could not be confined: {error}"}
    with contextlib.suppress(BrokenPipeError):
        channel.reply(json.dumps(reply).encode() + b"\n")
    os._exit(0)


def _run_examination(
    serve: Callable[[], None], channel: ParentChannel, rung: ConfinementRung, limits: ProgramLimits, folder: str
) -> dict[str, object]:
    """Run a program in one process and its tests in another; the tests are read when the program's has been forked."""
    (calls_out, calls_in), (answers_out, answers_in) = os.pipe(), os.pipe()
    ask = _Tests()
    try:
        solution = _start(serve, rung, limits, folder, writers=[answers_in], readers=[calls_out])
    finally:
        ask.read(channel)  # only now, and also when nothing could be started: the next request is behind them
    tests = _start(ask.run, rung, limits, "", readers=[calls_in, answers_out])
    for descriptor in (calls_out, calls_in, answers_out, answers_in):
        os.close(descriptor)
    seen, stopped, clock = 0, "", [time.monotonic()]
    while tests.status is None and not stopped:
        watch([tests, solution])
        stopped = tests.passed_limit() or solution.passed_limit()
        if (reports := tests.written["report"].count(b"\n")) > seen:
            clock += [time.monotonic()] * (reports - seen)
            seen = reports
            tests.begin()
            solution.begin()
    tests.kill()
    solution.kill()
    lines = [json.loads(line) for line in bytes(tests.written["report"]).split(b"\n")[:-1]]
    seconds = [after - before for before, after in itertools.pairwise(clock)]
    code = os.waitstatus_to_exitcode(solution.status or 0)
    return {
        "verdict": "ok",
        "reports": lines,
        "seconds": seconds + [0.0] * (len(lines) - len(seconds)),
        "stopped": stopped or ("memory" if code == program.MEMORY_EXIT else f"exit code {code}"),
    }


class _Tests:
    """The tests of an examination, which this process does not know until `read`."""

    def __init__(self) -> None:
        self._setup, self._tests, self._first = "", list[str](), 0

    def read(self, channel: ParentChannel) -> None:
        """Read them from the caller."""
        request = cast("dict[str, object]", json.loads(read_frame(channel.request_fd) or b"{}"))
        self._setup, self._tests = str(request["setup"]), cast("list[str]", request["tests"])
        self._first = cast("int", request["first"])

    def run(self) -> None:
        """Run them, in the process of the tests."""
        examiner.examine(self._setup, self._tests, self._first)


def _start(
    body: Callable[[], None],
    rung: ConfinementRung,
    limits: ProgramLimits,
    folder: str,
    *,
    stdin: int | None = None,
    writers: Sequence[int] = (),
    readers: Sequence[int] = (),
) -> _WatchedProcess:
    """Start a confined process: standard input, output and errors, the report (unless there are `writers`), more."""
    own = [os.pipe() for _ in range(3 - len(writers))]
    first = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
    descriptors = [first, *(writer for _, writer in own), *writers, *readers]
    pid = program.start_program(lambda: rung.confine(folder), descriptors, folder, body)
    for descriptor in (first, *(writer for _, writer in own)):
        os.close(descriptor)
    streams: dict[str, int] = dict(zip(("stdout", "stderr", "report"), (reader for reader, _ in own), strict=False))
    return _WatchedProcess(pid, streams, limits)


def outcome(watched: _WatchedProcess, verdict: str, limits: ProgramLimits) -> dict[str, object]:
    """The verdict on a program that ended or was killed, with what it wrote."""
    printed = {name: _text(watched.written[name][: limits.output_bytes]) for name in ("stdout", "stderr")}
    report = _report(watched.written["report"])
    if verdict == "timeout":
        seconds = f"{limits.wall_s:g} s, or {limits.cpu_s:g} s of processor time"
        return {**printed, "verdict": "timeout", "error": f"killed after {seconds}"}
    if verdict == "output":
        return {**printed, "verdict": "output", "error": f"killed after {limits.output_bytes} bytes of output"}
    signalled = watched.status is not None and os.WIFSIGNALED(watched.status)
    if signalled and watched.cpu_s() > limits.cpu_s:  # the kernel was quicker
        return {**printed, "verdict": "timeout", "error": f"killed after {limits.cpu_s:g} s of processor time"}
    return {**printed, **_ended(report, watched.status or 0)}


def _ended(report: Mapping[str, object] | None, status: int) -> dict[str, object]:
    """The verdict on a program that came to an end of its own."""
    code = os.waitstatus_to_exitcode(status)
    if code == program.MEMORY_EXIT and report is None:
        return {"verdict": "memory", "error": "MemoryError"}
    if code < 0:
        return {"verdict": "killed", "error": f"killed by {signal.Signals(-code).name}"}
    if report is None:
        return {"verdict": "error", "error": f"the process ended with code {code} before the program did"}
    kept = {key: report[key] for key in ("value", "shown") if key in report}
    if "error" in report:
        return {"verdict": "memory" if report.get("memory") else "error", "error": str(report["error"]), **kept}
    return {"verdict": "ok", "error": "", **kept}


def _report(data: bytearray) -> dict[str, object] | None:
    """The first line that a program reported, if it is one."""
    line, end, _ = bytes(data).partition(b"\n")
    try:
        message = json.loads(line) if end else None
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", message) if isinstance(message, dict) else None


def _text(data: Sequence[int]) -> str:
    return bytes(data).decode(errors="replace")


def _stdin(text: str) -> int:
    """Standard input of a program: a file in memory."""
    descriptor = os.memfd_create("stdin")
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(text.encode(errors="replace"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
