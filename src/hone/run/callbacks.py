"""Callbacks of the user's on a run's steps, evaluations and checkpoints.

Belongs here: what a callback is told, and the call itself. When they are called is `reporter.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from hone.core.credit import Metrics
from hone.core.errors import HoneError, UserCodeError
from hone.process.user_files import describe_error, user_traceback

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
