"""State of a part that a checkpoint must contain for an exact resume.

A `State` is a tree of string keys; its leaves are numpy arrays and JSON scalars, nothing else: `store` writes the
arrays as safetensors and the rest as JSON, and no pickle ever touches the disk.
"""

import contextlib
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError

StateLeaf: TypeAlias = "NDArray[np.generic] | int | float | str | bool | None | list[int] | list[float] | list[str]"
State: TypeAlias = "dict[str, StateLeaf | State]"


class Stateful(Protocol):
    """A part whose state is saved with a checkpoint."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None:
        """Take up a state that `state()` returned; raises DataError when it does not fit."""


def has_part(state: State, name: str) -> bool:
    """True if there is a subtree `name`; false for a leaf."""
    return isinstance(state.get(name), dict)


def substate(state: State, name: str) -> State:
    """The subtree `name`; raises DataError when it is absent or a leaf."""
    value = state.get(name)
    if not isinstance(value, dict):
        raise DataError(f"the saved state has no part {name!r} (it holds {', '.join(sorted(state))})")
    return value


def array(state: State, name: str) -> NDArray[np.generic]:
    """The array `name`; raises DataError when it is absent or something else."""
    value = state.get(name)
    if not isinstance(value, np.ndarray):
        raise DataError(f"the saved state has no array {name!r} (it holds {', '.join(sorted(state))})")
    return value


def integer(state: State, name: str) -> int:
    """The integer `name`; raises DataError when it is absent or something else."""
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DataError(f"the saved state has no integer {name!r} (it holds {', '.join(sorted(state))})")
    return value


def number(state: State, name: str) -> float:
    """The float `name`; raises DataError when it is absent or something else."""
    value = state.get(name)
    if not isinstance(value, float):
        raise DataError(f"the saved state has no number {name!r} (it holds {', '.join(sorted(state))})")
    return value


def share_arrays(file: Path) -> None:
    """Let those who may read a folder read a file of arrays in it: safetensors makes files for their owner alone, and
    a model is often served by another user than the one that trained it."""
    with contextlib.suppress(PermissionError):  # a mount without permissions: its own rules hold
        file.chmod(file.parent.stat().st_mode & 0o644)
