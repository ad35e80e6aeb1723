"""A ring of transitions: the newest `capacity` of them, sampled uniformly.

Belongs here: memory of single decisions. Columns are allocated once, at the first `add`; nothing is done row by row.
"""

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes, ScoreStatus
from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.core.state import State, array, integer
from hone.replay.records import RecordArray


class RingBuffer:
    """Holds up to `capacity` transitions; the oldest give way."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.added = 0
        """Transitions ever added; the next one goes to row `added % capacity`."""
        self._records: RecordArray | None = None
        self._steps = np.zeros(0, dtype=np.int64)
        self._scored = np.zeros(0, dtype=np.uint8)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, episodes: Episodes) -> Ints:
        """Remember every decision, of which the last `capacity` if there are more -> the rows that were written.

        Raises DataError for episodes without a score or without final observations, or whose observations or actions
        are not of the shape and type of those before.
        """
        if episodes.final is None:
            raise DataError("a replay ring holds transitions: these episodes have no final observations")
        single = episodes.decisions == len(episodes) and bool((episodes.offsets[1:] > episodes.offsets[:-1]).all())
        transitions = episodes if single else episodes.transitions()
        count = len(transitions)
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        assert transitions.final is not None
        if transitions.status.any():
            raise DataError(
                f"{np.count_nonzero(transitions.status)} of {count} transitions have no score: leave them out"
            )
        incoming = _columns_of(transitions, transitions.final)
        if self._records is None:
            self._records = RecordArray(self.capacity, incoming)
        kept = min(count, self.capacity)
        rows = np.arange(self.added + count - kept, self.added + count) % self.capacity
        whole = int(rows[-1]) - int(rows[0]) == kept - 1
        place = slice(int(rows[0]), int(rows[-1]) + 1) if whole else rows  # a slice is copied at once
        for name, column in incoming.items():
            memory = self._records.columns[name]
            if memory.shape[1:] != column.shape[1:] or memory.dtype != column.dtype:
                raise DataError(
                    f"{name} is {column.dtype}{list(column.shape[1:])}, "
                    f"the ring holds {memory.dtype}{list(memory.shape[1:])}"
                )
            memory[place] = column[count - kept :]
        self.added += count
        return rows

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` transitions, uniformly with replacement, as episodes of one decision."""
        if self.added == 0:
            raise DataError("the replay ring is empty: nothing was collected yet")
        return self.take(draws.integers(0, len(self), count))

    def is_complete(self, rows: Ints) -> NDArray[np.bool_]:
        """`[n]` all of them: a transition needs no other row."""
        return np.ones(len(rows), dtype=np.bool_)

    def take(self, rows: Ints) -> Episodes:
        """These rows `[n]`, as episodes of one decision."""
        count = len(rows)
        if len(self._steps) != count + 1:
            self._steps = np.arange(count + 1, dtype=np.int64)
            self._scored = np.full(count, ScoreStatus.SCORED, dtype=np.uint8)
        column = {} if self._records is None else self._records.take(rows)
        return Episodes(offsets=self._steps, status=self._scored, **column)  # pyright: ignore[reportArgumentType]

    def state(self) -> State:
        """The rows in use, and how many were ever added."""
        columns = {} if self._records is None else self._records.columns
        kept = {name: memory[: len(self)].copy() for name, memory in columns.items()}
        return {"added": self.added, "capacity": self.capacity, "columns": {**kept}}

    def restore(self, state: State) -> None:
        """Take up a saved ring; raises DataError when its capacity is another one."""
        if integer(state, "capacity") != self.capacity:
            raise DataError(f"the saved replay ring holds {state['capacity']} transitions, this one {self.capacity}")
        self.added = integer(state, "added")
        saved = state["columns"]
        assert isinstance(saved, dict)
        columns = {name: array(saved, name) for name in saved}
        self._records = RecordArray(self.capacity, columns) if columns else None
        if self._records is not None:
            for name, column in columns.items():
                self._records.columns[name][: len(column)] = column


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
