"""Replay buffer of sequences: the pieces of episodes that rollouts leave, each with the state of a memory before it.

Belongs here: storage for recurrent policies (R2D2, Kapturowski et al., 2019). A piece is at most as long as a rollout,
and belongs to one episode. It is handed out behind the piece before it, from whose stored state the policy's state is
computed anew (burn-in).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.control.replay.ring import Array, RecordArray, require_same_columns
from hone.core.episodes import Episodes, column_table
from hone.core.errors import DataError
from hone.core.ragged import Ints, offsets_of, ranges
from hone.core.state import State, array, integer, substate

NONE: Final = -1
"""Stands for no earlier piece."""


@dataclass(frozen=True, slots=True)
class _SequenceSample:
    """Pieces as they were handed out."""

    episodes: Episodes
    burned: Ints
    """`[n]` decisions of each that only rebuild the state."""


class SequenceBuffer:
    """The newest `capacity` pieces of at most `length` decisions; `burn_in`: each is preceded by the one before it."""

    def __init__(self, capacity: int, *, length: int, burn_in: bool) -> None:
        self.capacity, self.length, self.burn_in = capacity, length, burn_in
        self.added = 0
        """Pieces ever added; the next goes to row `added % capacity`."""
        self.last_sample: _SequenceSample | None = None
        self._decisions: dict[str, Array] = {}
        """`[capacity, length, ...]` columns of decisions."""
        self._pieces: RecordArray | None = None
        """Columns of episodes, and `count` decisions and the number of the piece before, `before`."""
        self._open: dict[int, int] = {}
        """Number of the last piece of each episode that has not ended."""

    def __len__(self) -> int:
        """Pieces in memory."""
        return min(self.added, self.capacity)

    @property
    def decisions(self) -> int:
        """Decisions in memory."""
        return 0 if self._pieces is None else int(self._pieces.columns["count"][: len(self)].sum())

    def add(self, episodes: Episodes) -> Ints:
        """Store pieces (the last `capacity` if there are more) -> the rows that were written.

        Raises DataError for pieces without final observations, scores or the state before them, for longer ones, and
        for other columns than those of the first call.
        """
        if episodes.final is None or episodes.memory is None or not episodes.scored.all():
            raise DataError("a buffer of sequences holds scored pieces with their final observations and states")
        if int(episodes.lengths.max(initial=0)) > self.length:
            raise DataError(f"a piece of {episodes.lengths.max()} decisions; the buffer holds pieces of {self.length}")
        episodes = episodes.take(np.flatnonzero(episodes.lengths))
        number = self.added + np.arange(len(episodes))
        before = np.full(len(episodes), NONE)
        for piece, group in enumerate(episodes.group.tolist()):
            before[piece] = self._open.get(group, NONE)
            self._open[group] = int(number[piece])
            if episodes.terminated[piece] or episodes.truncated[piece]:
                del self._open[group]
        self.added += len(episodes)
        number, before = number[-self.capacity :], before[-self.capacity :]
        episodes = episodes.take(np.arange(len(episodes))[-self.capacity :])
        own = {name: column for name, column in _columns_of(episodes, "episode").items() if name != "status"}
        own |= {"count": episodes.lengths, "before": before}
        decisions = _columns_of(episodes, "decision")
        if self._pieces is None:
            self._pieces = RecordArray(self.capacity, own)
            self._decisions = self._empty(decisions)
        require_same_columns(own, self._pieces.columns)
        rows = number % self.capacity
        for name, column in own.items():
            self._pieces.columns[name][rows] = column
        places = ranges(rows * self.length, episodes.lengths)
        for name, column in decisions.items():
            self._flat(name)[places] = column
        return rows

    def is_complete(self, rows: Ints) -> NDArray[np.bool_]:
        """`[n]` True: a piece knows the state before it."""
        return np.ones(len(rows), np.bool_)

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` pieces, uniformly with replacement; see `take`."""
        if self.added == 0:
            raise DataError("the buffer of sequences is empty: nothing was collected yet")
        return self.take(draws.integers(0, len(self), count))

    def take(self, rows: Ints) -> Episodes:
        """Pieces in these rows `[n]`, each behind the one before it where that is still here. `last_sample` says how
        many decisions are of that."""
        assert self._pieces is not None
        own = self._pieces.take(rows)
        lengths, before = own.pop("count").astype(np.int64), own.pop("before").astype(np.int64)
        kept = (before >= max(0, self.added - self.capacity)) & self.burn_in
        earlier = np.where(kept, before % self.capacity, 0)
        columns = self._pieces.columns
        burned = np.where(kept, columns["count"][earlier], 0).astype(np.int64)
        own["memory"][kept] = columns["memory"][earlier[kept]]
        starts = np.stack((earlier, rows), axis=1).ravel() * self.length
        places = ranges(starts, np.stack((burned, lengths), axis=1).ravel())
        decisions = {name: self._flat(name)[places] for name in self._decisions}
        episodes = Episodes.from_columns(offsets_of(burned + lengths), {**decisions, **own})
        self.last_sample = _SequenceSample(episodes, burned)
        return episodes

    def state(self) -> State:
        """Pieces in use, and the number ever added."""
        used = len(self)
        pieces = {} if self._pieces is None else {k: v[:used].copy() for k, v in self._pieces.columns.items()}
        return {
            "added": self.added,
            "capacity": self.capacity,
            "length": self.length,
            "pieces": {**pieces},
            "decisions": {name: column[:used].copy() for name, column in self._decisions.items()},
            "open": np.array([*self._open.items()], np.int64).reshape(-1, 2),
        }

    def restore(self, state: State) -> None:
        """Raises DataError for the state of another capacity or length."""
        saved = (integer(state, "capacity"), integer(state, "length"))
        if saved != (self.capacity, self.length):
            raise DataError(f"the saved buffer holds {saved[0]} pieces of {saved[1]}, this one {self.capacity} of "
                            f"{self.length} decisions")  # fmt: skip
        self.added = integer(state, "added")
        used = len(self)
        pieces, decisions = (
            {name: array(part, name) for name in part}
            for part in (substate(state, "pieces"), substate(state, "decisions"))
        )
        self._pieces = RecordArray(self.capacity, pieces) if pieces else None
        self._decisions = {}
        for name, column in decisions.items():
            self._decisions[name] = np.zeros((self.capacity, *column.shape[1:]), column.dtype)
            self._decisions[name][:used] = column
        for name, column in pieces.items():
            assert self._pieces is not None
            self._pieces.columns[name][:used] = column
        self._open = {int(group): int(number) for group, number in array(state, "open").tolist()}
        self.last_sample = None

    def _empty(self, like: dict[str, Array]) -> dict[str, Array]:
        shape = (self.capacity, self.length)
        return {name: np.zeros((*shape, *column.shape[1:]), column.dtype) for name, column in like.items()}

    def _flat(self, name: str) -> Array:
        """A column `[capacity * length, ...]`: a view."""
        column = self._decisions[name]
        return column.reshape(-1, *column.shape[2:])


def _columns_of(episodes: Episodes, unit: str) -> dict[str, Array]:
    return {name: values for name, values in episodes.columns().items() if column_table()[name].unit == unit}
