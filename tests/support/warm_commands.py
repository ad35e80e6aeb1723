"""Processes that start at once: forks of a process that has loaded torch and hone before.

A new interpreter takes two processor seconds until a run's first step; a fork takes none. It is a child of this process
as an interpreter of its own would be: in a session of its own, with the default handlers of signals, its own
environment, and descriptors under the numbers that they have here. Tests of a start itself run `python -m hone`.
"""

import contextlib
import ctypes
import faulthandler
import fcntl
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import socket
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, TextIO, cast

CONTEXT = multiprocessing.get_context("forkserver")
LOADED = [
    "hone.cli.commands.train",
    "hone.certify.job",
    "hone.recipes.on_policy.ppo",
    "hone.recipes.text.grpo",
    "hone.recipes.text.sft",
    "hone.run.run",
    "hone.run.store.rollouts",
    "hone.text.evaluate.text_eval",
]
"""Modules that the process loads before it forks."""

_STARTING = threading.Lock()
_SUBREAPER, _GET_SUBREAPER = 36, 37
_FREE = 512
"""Descriptors from here on are free for a moment."""


class StartedCommand:
    """A process that runs: what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, stdout: TextIO | None = None) -> None:
        self.pid, self.stdout = pid, stdout
        self.returncode: int | None = None
        """Exit code, minus the number of the signal that ended it; None while it runs."""

    def poll(self) -> int | None:
        """`returncode`."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 600.0) -> int:
        """Its exit code, after its end."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < end, f"it still runs after {timeout} s"
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        """End it by SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, None]:
        """The rest of its output, after its end."""
        assert self.stdout is not None
        with self.stdout:
            text = self.stdout.read()
        self.wait(timeout)
        return text, None


def start_warm(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], program: str = "hone"
) -> StartedCommand:
    """`hone ARGUMENTS` in `folder`, or those of another `program`, with standard output and error in one stream."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = start([program, *arguments], folder=folder, environment=environment, output=theirs.fileno())
        process.stdout = ours.makefile("r", encoding="utf-8", errors="replace")
    return process


def start(
    words: Sequence[str], *, folder: Path, environment: Mapping[str, str], output: int, kept: Sequence[int] = ()
) -> StartedCommand:
    """`python -m WORDS`, or `python WORDS` of a script: it writes to the descriptor `output` and has `kept` as well.

    A terminal as its output is the terminal of its session.
    """
    fork = _Fork(words, folder, environment, output, kept)
    with children_of_forks():
        _load()
        first = CONTEXT.Process(target=fork)
        first.start()
        os.close(fork.told)
        first.join()
    with os.fdopen(fork.answer, "rb") as answer:
        return StartedCommand(int(answer.read()))


@contextlib.contextmanager
def children_of_forks() -> Iterator[None]:
    """What a process below this one forks becomes a child of this process once its parent has ended."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    with _STARTING:
        libc.prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        try:
            yield
        finally:
            libc.prctl(_SUBREAPER, before.value, 0, 0, 0)


def run_ranks(function: Callable[..., None], *arguments: object, ranks: int) -> None:
    """`function(rank, *arguments)` in `ranks` forks; raises what one of them raises."""
    import torch.multiprocessing

    _load()
    torch.multiprocessing.start_processes(function, args=arguments, nprocs=ranks, start_method="forkserver")


def _load() -> None:
    """Start the process that forks, if it does not run yet, with the seed of hashes that `process.child` gives."""
    CONTEXT.set_forkserver_preload(LOADED)
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        del os.environ["PYTHONHASHSEED"]
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before


class _Fork:
    """What the fork does: it makes another one, which becomes a child of the test's process once the first has ended.

    Descriptors travel with it.
    """

    def __init__(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], output: int, kept: Sequence[int]
    ) -> None:
        self.words, self.folder, self.environment = list(words), str(folder), dict(environment)
        self.numbers = [1, 2, *kept]
        self.opened = [output, output, *kept]
        self.answer, self.told = os.pipe()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": [*map(DupFd, self.opened)], "told": DupFd(self.told)}

    def __call__(self) -> None:
        opened = [cast("Any", one).detach() for one in self.opened]
        told = cast("Any", self.told).detach()
        if (pid := os.fork()) != 0:
            os.write(told, str(pid).encode())
            return
        code: object = 1
        try:
            self._become(opened)
            if self.words[0].endswith(".py"):
                runpy.run_path(self.words[0], run_name="__main__")
            else:
                runpy.run_module(self.words[0], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException:  # noqa: BLE001 - what an interpreter prints at its end
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else int(code is not None))

    def _become(self, opened: Sequence[int]) -> None:
        """A new interpreter's session, descriptors, environment and paths."""
        os.setsid()
        opened = [os.dup2(one, _FREE + place) for place, one in enumerate(opened)]
        os.closerange(3, _FREE)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for one, number in zip(opened, self.numbers, strict=True):
            os.dup2(one, number)
        os.closerange(_FREE, _FREE + len(opened))
        if os.isatty(1):
            os.dup2(1, 0)
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the process ends, as the next two
        sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        faulthandler.enable()
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        paths = [path for path in self.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
        sys.argv = self.words
        sys.modules.pop(self.words[0], None)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(int(self.environment["OMP_NUM_THREADS"]))
