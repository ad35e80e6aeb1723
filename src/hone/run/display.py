"""Display of a running run, which falls silent where its terminal is closed while the run goes on."""

import errno
import os
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from hone.core.credit import Metrics


class ProgressDisplay(Protocol):
    """Display of a running run: a terminal, or nothing."""

    def start(self, total: int, title: str) -> None: ...

    def update(self, step: int, metrics: Metrics) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class HangupSafeDisplay:
    """Display that falls silent, instead of failing, when its terminal is closed."""

    def __init__(self, display: ProgressDisplay) -> None:
        self.display = display

    def start(self, total: int, title: str) -> None:
        """Begin a run."""
        self._show(lambda: self.display.start(total, title))

    def update(self, step: int, metrics: Metrics) -> None:
        """Show a step."""
        self._show(lambda: self.display.update(step, metrics))

    def note(self, text: str) -> None:
        """Show a message."""
        self._show(lambda: self.display.note(text))

    def close(self) -> None:
        """End the display."""
        self._show(self.display.close)

    def _show(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as fault:
            if fault.errno != errno.EIO:
                raise
            _silence_lost_terminals()


def _silence_lost_terminals() -> None:
    """Point standard output and error to nowhere where their terminal is closed: what follows cannot be shown."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a stream of a test or a notebook has no descriptor
            number = stream.fileno()
            if _is_lost_terminal(number):
                nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(nowhere, number)
                os.close(nowhere)


def _is_lost_terminal(descriptor: int) -> bool:
    try:
        termios.tcgetattr(descriptor)
    except termios.error as fault:
        return fault.args[0] == errno.EIO
    return False
