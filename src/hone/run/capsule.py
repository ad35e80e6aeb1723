"""Capsule of a failure, `capsule/` in a run's folder: what `hone debug` needs to come back to it.

Belongs here: what is kept and how it is read. `capsule.json` has the failure with its traceback, the step, the seed,
the versions and the checkpoint to start from; of a step that had a batch, `state.json` and `state.safetensors` hold its
episodes and credits; of an update that was refused, `policy/` holds the weights before it. Only the latest failure of a
run is kept.
"""

import platform
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from hone import __version__
from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes, pack_episodes, unpack_episodes
from hone.core.errors import DataError, DivergedError, HoneError, UserCodeError
from hone.core.state import State, has_part, substate
from hone.run.job import TrainingJob
from hone.run.reporter import Stopwatch
from hone.run.store.codec import read_state, write_state
from hone.run.store.durable import remove_tree, writing
from hone.run.store.folder import CAPSULE, RunFolder
from hone.run.store.records import RecordFile

FailureKind = Literal["refused_update", "user_code", "crash"]
"""An update that was not a finite number; a reward function, environment, tool or callback of the user's; anything
else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """A failure of a run."""

    kind: FailureKind
    step: int
    """The step that failed; those before it are complete."""
    error: str
    """Class of the exception."""
    messages: list[str]
    traceback: str
    """Traceback of this process; a user's from another process is among the messages."""
    seed: int
    checkpoint: int
    """Step of the newest checkpoint; 0 without one."""
    has_batch: bool
    """The batch of the step was collected and scored."""
    versions: dict[str, str]


RECORD: Final = RecordFile(f"{CAPSULE}/capsule.json", FailureRecord)


def save_capsule(
    job: TrainingJob[Any], folder: RunFolder, watch: Stopwatch, fault: Exception, *, step: int, seed: int
) -> Path:
    """Write the capsule of a failure in `step`, in the place of an earlier one; returns its folder. Raises
    ResourceError."""
    place = folder.path / CAPSULE
    if place.exists():
        remove_tree(place)
    with writing(place):
        place.mkdir(parents=True)
    kind: FailureKind = "crash"
    if isinstance(fault, DivergedError):
        kind = "refused_update"
        (place / "policy").mkdir()
        job.save_policy(place / "policy")
    elif isinstance(fault, UserCodeError):
        kind = "user_code"
    episodes, credits = watch.episodes, watch.credits
    if episodes is not None and credits is not None:
        write_state(place, _pack_batch(episodes, credits, watch.values))
    steps = folder.checkpoints().steps()
    record = FailureRecord(
        kind=kind,
        step=step,
        error=type(fault).__name__,
        messages=list(fault.messages) if isinstance(fault, HoneError) else [str(fault)],
        traceback="".join(traceback.format_exception(fault)),
        seed=seed,
        checkpoint=steps[-1] if steps else 0,
        has_batch=episodes is not None and credits is not None,
        versions={
            "hone": __version__, "python": platform.python_version(), "torch": torch.__version__,
            "numpy": np.__version__,
        },
    )  # fmt: skip
    RECORD.write(folder.path, record)
    return place


def read_capsule(run: Path) -> FailureRecord:
    """Read the failure of a run. Raises DataError for a run without one."""
    record = RECORD.read(run)
    if record is None:
        raise DataError(
            f"{run} has no {CAPSULE}/: it ended without a failure, or an earlier version of hone wrote it; log.txt and "
            "events.jsonl have what happened"
        )
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBatch:
    """The batch of a failed step."""

    episodes: Episodes
    credits: Credits
    values: Values


def read_batch(run: Path) -> FailedBatch:
    """Read the batch of a run's capsule. Raises DataError."""
    state = read_state(run / CAPSULE)
    columns = substate(state, "credits")
    known: dict[str, Any] = dict(columns)
    values = dict(substate(state, "values")) if has_part(state, "values") else {}
    return FailedBatch(
        episodes=unpack_episodes(substate(state, "episodes")),
        credits=Credits(**known),
        values=Values(**values) if values else NO_VALUES,  # pyright: ignore[reportArgumentType] - written below
    )


def _pack_batch(episodes: Episodes, credits: Credits, values: Values) -> State:
    columns: Mapping[str, Any] = {
        "advantage": credits.advantage, "target": credits.target, "discount": credits.discount,
    }  # fmt: skip
    state: State = {
        "episodes": pack_episodes(episodes),
        "credits": {name: column for name, column in columns.items() if column is not None},
    }
    if len(values.value):
        state["values"] = {"value": values.value, "final": values.final}
    return state
