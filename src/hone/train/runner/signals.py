"""Ctrl-C and SIGTERM: the first one asks the run to finish its step and save, the second one leaves at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass
class StopRequest:
    """Set by a signal handler, read at the end of every step."""

    signal_number: int | None = None

    @property
    def requested(self) -> bool:
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[signal.Signals(self.signal_number or signal.SIGINT)]


@contextmanager
def stop_on_signals(note: Callable[[str], None]) -> Iterator[StopRequest]:
    """Install the handlers for the time of a run; earlier handlers come back afterwards.

    Outside the main thread Python allows no handlers: the program that started the thread deals with signals itself.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if request.requested:
            os._exit(EXIT_CODES[signal.Signals(number)])  # the last checkpoint is whole; nothing else needs us
        request.signal_number = number
        with suppress(RuntimeError):  # the signal came in the middle of a write to the same stream
            note("stopping: this step is finished and saved first; once more leaves at once")

    before = {number: signal.signal(number, handle) for number in EXIT_CODES}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
