"""Who watches or stops a run: callbacks of the user's, the display of its progress, and signals.

Belongs here: what a callback is told, and the call itself; when they are called is `reporter.py`. A display falls
silent where its terminal is closed while the run goes on.

Signals: the first Ctrl-C, SIGTERM or SIGHUP asks the run to finish its step and save, a second one leaves at once. A
terminal that is closed sends SIGHUP, often twice: a repeated SIGHUP, and the first signal after one, leave nothing.
"""

import errno
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from hone.core.credit import Metrics
from hone.core.errors import ConfigError, ErrorCollector, HoneError, UserCodeError
from hone.process.user_files import check_reference, describe_error, load_reference, user_traceback

EventT = TypeVar("EventT")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """A finished step of the training loop."""

    step: int
    """Counted from 1."""
    steps: int
    """Steps that the run is to have."""
    metrics: Metrics
    """Metrics of this step, evaluation included."""
    run: Path
    """Folder of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEvent:
    """An evaluation of the policy."""

    step: int
    score: float
    """Mean score."""
    low: float
    """Lower end of its 95% interval."""
    high: float
    """Upper end of its 95% interval."""
    n: int
    """Problems or episodes that were scored."""
    metrics: Metrics
    """All metrics of the evaluation."""
    run: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvent:
    """A checkpoint that was written, whole and synced."""

    step: int
    checkpoint: Path
    """Its folder; `policy/` in it is the policy in its released form."""
    run: Path


StepHook: TypeAlias = Callable[[StepEvent], bool | None]
EvaluationHook: TypeAlias = Callable[[EvaluationEvent], bool | None]
CheckpointHook: TypeAlias = Callable[[CheckpointEvent], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCallbacks:
    """Functions of the user's. One that returns False ends the run after the present step, which is saved."""

    on_step: StepHook | None = None
    """After every step."""
    on_evaluation: EvaluationHook | None = None
    """After every evaluation, before the step's `on_step`."""
    on_checkpoint: CheckpointHook | None = None
    """After every checkpoint."""


NO_CALLBACKS = RunCallbacks()
HOOKS: Final = ("on_step", "on_evaluation", "on_checkpoint")


def check_callbacks(references: Sequence[str]) -> None:
    """Raise ConfigError with all faults for references of `run.callbacks` to files that are not there."""
    faults = ErrorCollector(ConfigError)
    for reference in references:
        try:
            check_reference(reference, kind="run.callbacks:")
        except ConfigError as fault:
            faults.extend(fault.messages)
    faults.raise_if_any()


def load_callbacks(references: Sequence[str], others: RunCallbacks = NO_CALLBACKS) -> RunCallbacks:
    """The callbacks that `run.callbacks` names, after those of `others`: all of an event are called, in their order.

    A reference names a class with methods `on_step`, `on_evaluation` or `on_checkpoint`, of which one object is made,
    or a function, which is called after every step. Raises UserCodeError for one that cannot be loaded, ConfigError for
    one that has none of them.
    """
    hooks: dict[str, list[tuple[str, Callable[[Any], bool | None]]]] = {
        "on_step": [("on_step", others.on_step)] if others.on_step is not None else [],
        "on_evaluation": [("on_evaluation", others.on_evaluation)] if others.on_evaluation is not None else [],
        "on_checkpoint": [("on_checkpoint", others.on_checkpoint)] if others.on_checkpoint is not None else [],
    }
    for reference in references:
        loaded = load_reference(reference, kind="callback")
        own: dict[str, Callable[[Any], bool | None]] = {}
        if isinstance(loaded, type):
            try:
                made = loaded()
            except Exception as error:
                raise UserCodeError(
                    f"callback {reference!r} raised {describe_error(error)}", user_traceback(error)
                ) from error
            own = {name: attrgetter(name)(made) for name in HOOKS if name in dir(made)}
        elif callable(loaded):
            own = {"on_step": cast("StepHook", loaded)}
        if not own:
            raise ConfigError(
                f"callback {reference!r} is neither a function nor a class with {', '.join(HOOKS[:-1])} or {HOOKS[-1]}"
            )
        for name, hook in own.items():
            hooks[name].append((f"{reference}.{name}" if isinstance(loaded, type) else reference, hook))
    return RunCallbacks(**{name: _call_all(entries) for name, entries in hooks.items() if entries})


def _call_all(hooks: Sequence[tuple[str, Callable[[Any], bool | None]]]) -> Callable[[Any], bool]:
    """One hook for several: False, which ends the run, if one of them returns it. Each is called, whatever the others
    return; of an exception the callback's name is told."""

    def call(event: Any) -> bool:  # noqa: ANN401 - the event of any hook
        stops = [wants_stop(hook, event, name) for name, hook in hooks]
        return not any(stops)

    return call


class StoppedByCallback(Exception):  # noqa: N818 - it is an outcome the user asked for, not an error
    """A callback ended the run; the message says which one and after which step. The step is saved."""


def wants_stop(callback: Callable[[EventT], bool | None] | None, event: EventT, name: str) -> bool:
    """Call a callback, if there is one; True if it ends the run.

    Raises UserCodeError with the user's traceback for an exception in it, HoneError as it is.
    """
    if callback is None:
        return False
    try:
        return callback(event) is False
    except HoneError:
        raise
    except Exception as error:
        raise UserCodeError(f"{name} raised {describe_error(error)}", user_traceback(error)) from error


# -------------------------------------------------------------------------------------------------------------- display


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


# -------------------------------------------------------------------------------------------------------------- signals


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

    A SIGHUP that is ignored, as 'nohup' arranges, stays so. Outside the main thread Python allows no handlers: the
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
