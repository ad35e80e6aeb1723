"""Programs run in the sandbox: the caller's end.

result = run_python("print(6 * 7)", SandboxPolicy())
result.verdict, result.stdout          "ok", "42\\n"
"""

import atexit
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar, cast, get_args

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, ResourceError
from hone.process.child import ChildLostError, ChildProcess, LineParser
from hone.process.wire import unpack
from hone.sandbox.frames import UNSAFE_WORDS, SandboxPolicy, frame, remove_folders

ResultT = TypeVar("ResultT")
Verdict = Literal["ok", "error", "timeout", "memory", "killed", "output", "refused"]
"""How a program ended: at its end; with an exception, or before it could report; after its time; without memory; by a
signal; after too much output. `refused`: it did not run, or nobody knows how it ended, for a reason that is not its
own."""
LIBRARIES = (
    "math",
    "cmath",
    "json",
    "re",
    "random",
    "collections",
    "itertools",
    "functools",
    "heapq",
    "bisect",
    "string",
    "datetime",
    "statistics",
    "fractions",
    "decimal",
    "typing",
    "dataclasses",
    "copy",
    "operator",
    "hashlib",
    "numpy",
    "numpy.random",
)
"""Imported before a program begins, so that its own import is at once."""
_CALLS_A_ZYGOTE = 5000
_START_S = 60.0
_GRACE_S = 30.0
_END_S = 2.0
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """What came of a program."""

    verdict: Verdict
    stdout: str = ""
    stderr: str = ""
    value: object = None
    """Value of the last line, where that is an expression and the value plain data: numbers, text, lists and so on."""
    shown: str = ""
    """That value as Python shows it, of any type; empty where there is none, or None."""
    error: str = ""
    """The program's part of the traceback, or what else ended it; empty for `ok`."""
    seconds: float = 0.0
    """Wall time, from its start to its end."""
    cpu_s: float = 0.0
    """Processor time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReport:
    """The rung that a sandbox stands on."""

    rung: str
    """`namespaces`, `landlock` or `none`; empty: nothing can be run here."""
    reasons: tuple[str, ...]
    """Stronger rungs, and why they do not hold here."""
    missing: tuple[str, ...]
    """Libraries that could not be imported."""


class CodeSandbox:
    """Warm processes that run programs under one policy; threads may share it.

    They start with the first call, are replaced after 5,000, and end with `close`, or with this process.
    """

    def __init__(self, policy: SandboxPolicy, *, zygotes: int = 1, clock: Clock | None = None) -> None:
        """`zygotes` programs run at a time; further calls wait."""
        self._policy, self._clock = policy, clock or SystemClock()
        self._free: queue.LifoQueue[_SandboxZygote] = queue.LifoQueue()  # one that is warm is used again
        self._all = [_SandboxZygote(policy, self._clock) for _ in range(zygotes)]
        for zygote in self._all:
            self._free.put(zygote)

    def __enter__(self) -> "CodeSandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def probe(self) -> SandboxReport:
        """Start, and see on which rung programs run. Raises ResourceError when a process cannot be started."""
        return self._with_zygote(lambda zygote: zygote.start())

    def run(self, code: str, *, stdin: str = "", files: Mapping[str, str] | None = None) -> SandboxResult:
        """Run a program, with `files` in its work folder. Raises ConfigError for a file name that leads elsewhere."""
        _check_file_names(files or {})
        request = {"code": code, "stdin": stdin, "files": dict(files or {})}
        reply = self.call(request)
        # A reply as a result. Its process cannot be trusted further than its form: what has none is an error
        verdict = str(reply["verdict"])
        assert verdict in get_args(Verdict), verdict
        value, error = None, str(reply.get("error", ""))
        try:
            value = unpack(reply.get("value"))
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            verdict, error = "error", "the program reported a value that is none"
        return SandboxResult(
            verdict=cast("Verdict", verdict),
            stdout=str(reply.get("stdout", "")),
            stderr=str(reply.get("stderr", "")),
            value=value,
            shown=str(reply.get("shown", "")),
            error=error,
            seconds=float(str(reply.get("seconds", 0.0))),
            cpu_s=float(str(reply.get("cpu_s", 0.0))),
        )

    def call(self, *requests: Mapping[str, object]) -> dict[str, object]:
        """The reply to requests that are one call; after a lost process once more, in a new one."""
        data = b"".join(frame(json.dumps(request).encode()) for request in requests)
        return self._with_zygote(lambda zygote: zygote.call(data))

    def close(self) -> None:
        """Kill the processes; a later call starts others."""
        for _ in self._all:
            self._free.get().end(patience_s=_END_S)
        for zygote in self._all:
            self._free.put(zygote)

    def _with_zygote(self, use: "Callable[[_SandboxZygote], ResultT]") -> ResultT:
        zygote = self._free.get()
        try:
            return use(zygote)
        finally:
            self._free.put(zygote)


class _SandboxZygote:
    """One warm process; used by one thread at a time."""

    def __init__(self, policy: SandboxPolicy, clock: Clock) -> None:
        self._policy, self._clock = policy, clock
        self._child: ChildProcess[bytes] | None = None
        self._report: SandboxReport | None = None
        self._calls = 0

    def start(self) -> SandboxReport:
        """Start the process if there is none; its rung. Raises ResourceError."""
        if self._child is not None and self._report is not None:
            return self._report
        variables = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        parser = LineParser(max_bytes=16 * self._policy.output_bytes + (1 << 20))
        self._child = ChildProcess("hone.sandbox.zygote", parser, clock=self._clock, variables=variables, inherit=False)
        self._child.start()
        limits = self._policy.model_dump(exclude={"rung", "if_no_rung"})
        limits["readable"] = [str(Path(path).resolve()) for path in self._policy.readable]
        self._child.send(
            frame(
                json.dumps(
                    {
                        "limits": limits,
                        "rung": self._policy.rung,
                        "unsafe": self._policy.if_no_rung == UNSAFE_WORDS,
                        "libraries": list(LIBRARIES),
                    }
                ).encode()
            )
        )
        try:
            reply = cast("dict[str, list[str]]", json.loads(self._child.receive(_START_S)))
        except ChildLostError as lost:
            self.end()
            raise ResourceError(f"the sandbox did not start: {lost}") from None
        self._calls = 0
        self._report = SandboxReport(
            rung=str(reply["rung"]), reasons=tuple(reply["reasons"]), missing=tuple(reply["missing"])
        )
        return self._report

    def call(self, data: bytes) -> dict[str, object]:
        """The reply to a call."""
        deadline_s, lost = self._policy.wall_s + _GRACE_S, ""
        for _ in range(_ATTEMPTS):
            report = self.start()
            if not report.rung:
                return {"verdict": "refused", "error": no_rung_message(report)}
            assert self._child is not None, "start left a process"
            try:
                self._child.send(data)
                reply = cast("dict[str, object]", json.loads(self._child.receive(deadline_s)))
            except (ChildLostError, ValueError) as error:
                lost = str(error)
                self.end()
                continue
            except BaseException:
                self.end()  # its reply would answer the next call
                raise
            self._calls += 1
            if self._calls >= _CALLS_A_ZYGOTE:
                self.end(patience_s=_END_S)
            return reply
        return {"verdict": "refused", "error": f"the process of the sandbox was lost {_ATTEMPTS} times: {lost}"}

    def end(self, *, patience_s: float = 0.0) -> None:
        """End the process, with everything in it: by itself within `patience_s`, else by force."""
        child, self._child, self._report = self._child, None, None
        if child is not None:
            pid = child.pid
            child.shut_down(patience_s)
            remove_folders(pid)


def no_rung_message(report: SandboxReport) -> str:
    """What to say where nothing can be run."""
    return (
        f"this machine cannot confine programs ({'; '.join(report.reasons)}), so none is run. hone doctor sandbox "
        f'shows what is missing; if_no_rung = "{UNSAFE_WORDS}" runs them as you'
    )


def require_rung(policy: SandboxPolicy) -> SandboxReport:
    """The rung on which programs run under a policy. Raises ResourceError where there is none."""
    with CodeSandbox(policy) as sandbox:
        report = sandbox.probe()
    if not report.rung:
        raise ResourceError(no_rung_message(report))
    return report


def _check_file_names(files: Mapping[str, str]) -> None:
    """Raises ConfigError for names of files that are not inside the work folder."""
    wrong = [
        name
        for name in files
        if not name or "\0" in name or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts
    ]
    if wrong:
        raise ConfigError(*(f"file {name!r} of a program: write a relative path without .." for name in wrong))


_shared: dict[str, CodeSandbox] = {}
_shared_lock = threading.Lock()


def run_python(
    code: str, policy: SandboxPolicy, stdin: str = "", files: Mapping[str, str] | None = None
) -> SandboxResult:
    """Run a program in this process's sandbox of that policy, which stays warm until the process ends.

    Threads may call it: as many programs run at a time as there are processors.
    """
    return shared_sandbox(policy).run(code, stdin=stdin, files=files)


def shared_sandbox(policy: SandboxPolicy) -> CodeSandbox:
    """This process's sandbox of a policy."""
    key = policy.model_dump_json()
    with _shared_lock:
        if key not in _shared:
            cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
            _shared[key] = CodeSandbox(policy, zygotes=cores)
        return _shared[key]


def close_shared() -> None:
    """End the sandboxes of this process; a later call starts others."""
    with _shared_lock:
        for sandbox in _shared.values():
            sandbox.close()
        _shared.clear()


atexit.register(close_shared)
os.register_at_fork(after_in_child=_shared.clear)  # a child has its own: two cannot share a channel
