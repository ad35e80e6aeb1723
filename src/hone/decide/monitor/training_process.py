"""One `hone train` as a process: supervised, with a deadline, killed with everything that it started."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hone.core.clock import Clock
from hone.process.child import ChildLostError, ChildProcess, LineParser

CHILD = "hone.decide.monitor.training_child"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """End of a training process."""

    state: Literal["finished", "failed", "late"]
    words: str
    """Reason of the end, with the last output unless it finished."""
    seconds: float


def run_training(
    arguments: Sequence[str], *, timeout_s: float, memory_bytes: int = 0, clock: Clock,
    abandoned: Callable[[], bool] = lambda: False,
) -> TrainingEnd:  # fmt: skip
    """Run `hone train ARGUMENTS`. `abandoned` is asked many times a second; once it is true, the process is killed.

    Raises ResourceError if no process can be started.
    """
    begin = clock.monotonic_s()
    limits = (str(memory_bytes), "train", *arguments)
    child = ChildProcess(CHILD, LineParser(), clock=clock, arguments=limits, abandoned=abandoned)
    try:
        child.start()
        code = json.loads(child.receive(timeout_s))["code"]
        words = "finished" if code == 0 else f"hone train ended with exit code {code}{child.last_output()}"
        state = "finished" if code == 0 else "failed"
    except ChildLostError as error:
        state, words = "late" if error.timeout else "failed", str(error)
    finally:
        child.kill()
    return TrainingEnd(state=state, words=words, seconds=clock.monotonic_s() - begin)
