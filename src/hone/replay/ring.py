"""A ring of transitions: the newest `capacity` of them, sampled uniformly.

Belongs here: memory of single decisions. Columns are allocated once, at the first `add`; nothing is done row by row.
"""

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes, Status
from hone.core.errors import DataError
from hone.core.state import State, array, integer


class Ring:
    """Holds up to `capacity` transitions; the oldest give way. `add` takes the result of `Episodes.transitions()`."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.added = 0
        """Transitions ever added; the next one goes to row `added % capacity`."""
        self._columns: dict[str, NDArray[np.generic]] = {}
        self._steps = np.zeros(0, dtype=np.int64)
        self._scored = np.zeros(0, dtype=np.uint8)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, transitions: Episodes) -> None:
        """Remember E episodes of one decision each, of which the last `capacity` if there are more.

        Raises DataError for episodes that are not single scored decisions, or whose observations or actions are not of
        the shape and type of those before.
        """
        count = len(transitions)
        if count == 0:
            return
        if transitions.decisions != count or transitions.final is None:
            raise DataError("a replay ring holds single decisions: give it `episodes.transitions()`")
        if transitions.status.any():
            raise DataError(
                f"{np.count_nonzero(transitions.status)} of {count} transitions have no score: leave them out"
            )
        incoming = _columns_of(transitions, transitions.final)
        if not self._columns:
            self._columns = {
                name: np.zeros((self.capacity, *column.shape[1:]), column.dtype) for name, column in incoming.items()
            }
        kept = min(count, self.capacity)
        rows = np.arange(self.added + count - kept, self.added + count) % self.capacity
        for name, column in incoming.items():
            memory = self._columns[name]
            if memory.shape[1:] != column.shape[1:] or memory.dtype != column.dtype:
                raise DataError(
                    f"{name} is {column.dtype}{list(column.shape[1:])}, "
                    f"the ring holds {memory.dtype}{list(memory.shape[1:])}"
                )
            memory[rows] = column[count - kept :]
        self.added += count

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` transitions, uniformly with replacement, as episodes of one decision."""
        if self.added == 0:
            raise DataError("the replay ring is empty: nothing was collected yet")
        rows = draws.integers(0, len(self), count)
        if len(self._steps) != count + 1:
            self._steps = np.arange(count + 1, dtype=np.int64)
            self._scored = np.full(count, Status.SCORED, dtype=np.uint8)
        column = {name: memory.take(rows, axis=0) for name, memory in self._columns.items()}
        return Episodes(offsets=self._steps, status=self._scored, **column)  # pyright: ignore[reportArgumentType]

    def state(self) -> State:
        """The rows in use, and how many were ever added."""
        kept = {name: memory[: len(self)].copy() for name, memory in self._columns.items()}
        return {"added": self.added, "capacity": self.capacity, "columns": {**kept}}

    def restore(self, state: State) -> None:
        """Take up a saved ring; raises DataError when its capacity is another one."""
        if integer(state, "capacity") != self.capacity:
            raise DataError(f"the saved replay ring holds {state['capacity']} transitions, this one {self.capacity}")
        self.added = integer(state, "added")
        saved = state["columns"]
        assert isinstance(saved, dict)
        self._columns = {}
        for name in saved:
            column = array(saved, name)
            memory = np.zeros((self.capacity, *column.shape[1:]), column.dtype)
            memory[: len(column)] = column
            self._columns[name] = memory


def _columns_of(transitions: Episodes, final: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    return {
        "seen": transitions.observations,
        "chosen": transitions.chosen,
        "logp": transitions.logp,
        "version": transitions.version,
        "reward": transitions.reward,
        "group": transitions.group,
        "terminated": transitions.terminated,
        "truncated": transitions.truncated,
        "final": final,
        "score": transitions.score,
    }
