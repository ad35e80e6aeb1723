"""Ctrl-C, SIGTERM and SIGHUP: the first asks the run to finish its step and save, a second one leaves at once.

A terminal that is closed sends SIGHUP, often twice: a repeated SIGHUP, and the first signal after one, leave nothing.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}


@dataclass
class StopRequest:
    """Set by a signal handler, read at the end of every step."""

    signal_number: int | None = None

    @property
    def requested(self) -> bool:
        return self.signal_number is not None

    @property
    def signal_name(self) -> str:
        """Name of the signal, such as `SIGTERM`."""
        return signal.Signals(self.signal_number or signal.SIGINT).name

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[signal.Signals(self.signal_number or signal.SIGINT)]


@contextmanager
def stop_on_signals(note: Callable[[str], None]) -> Iterator[StopRequest]:
    """Install the handlers for the time of a run; earlier handlers come back afterwards.

    A SIGHUP that is ignored, as `nohup` arranges, stays so. Outside the main thread Python allows no handlers: the
    program that started the thread deals with signals itself.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if request.requested:
            if signal.SIGHUP not in (number, request.signal_number):
                os._exit(EXIT_CODES[signal.Signals(number)])  # the last checkpoint is whole; nothing else needs us
            if number != signal.SIGHUP:
                request.signal_number = number
            return
        request.signal_number = number
        with suppress(RuntimeError, OSError):  # in the middle of a write to the same stream, or the terminal is gone
            note("stopping: this step is finished and saved first; once more leaves at once")

    wanted = [one for one in EXIT_CODES if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
