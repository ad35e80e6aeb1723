"""Command lines in processes of their own that start at once: forks of a process that has loaded torch and hone before.

A new interpreter takes two processor seconds until a run's first step; a fork takes none. It has a session of its own,
the default handlers of signals and its own environment, so that it is stopped and killed as a user's
command is. Tests of a start itself run `python -m hone`.
"""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, TextIO

from hone.cli.main import main

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


class StartedCommand:
    """A command that runs: what tests use of `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess, stdout: TextIO) -> None:
        assert process.pid is not None
        self.process, self.stdout, self.pid = process, stdout, process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, minus the number of the signal that ended it; None while it runs."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """`returncode`."""
        return self.returncode

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()

    def communicate(self, timeout: float) -> tuple[str, None]:
        """The rest of its output, after its end."""
        text = self.stdout.read()
        self.process.join(timeout)
        assert self.returncode is not None, f"it still runs, {timeout} s after its output was closed"
        self.stdout.close()
        return text, None


def start_warm(arguments: Sequence[str], *, folder: Path, environment: dict[str, str]) -> StartedCommand:
    """`hone ARGUMENTS` in `folder`, with standard output and error in one stream."""
    CONTEXT.set_forkserver_preload(LOADED)
    ours, theirs = socket.socketpair()
    process = CONTEXT.Process(target=_Command(arguments, str(folder), environment, theirs.fileno()))
    process.start()
    theirs.close()
    stdout = ours.makefile("r", encoding="utf-8", errors="replace")
    ours.close()  # the file keeps it open
    return StartedCommand(process, stdout)


def run_ranks(function: Callable[..., None], *arguments: object, ranks: int) -> None:
    """`function(rank, *arguments)` in `ranks` forks; raises what one of them raises."""
    import torch.multiprocessing

    CONTEXT.set_forkserver_preload(LOADED)
    torch.multiprocessing.start_processes(function, args=arguments, nprocs=ranks, start_method="forkserver")


class _Command:
    """What the fork does; the descriptor travels with it."""

    def __init__(self, arguments: Sequence[str], folder: str, environment: dict[str, str], output: int) -> None:
        self.arguments, self.folder, self.environment, self.output = list(arguments), folder, environment, output

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "output": DupFd(self.output)}

    def __call__(self) -> None:
        os.setsid()
        output = self.output.detach()  # type: ignore[attr-defined]
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.close(output)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115 - until the process ends
        sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv = ["hone", *self.arguments]
        sys.exit(main(self.arguments))
