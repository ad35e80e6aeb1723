"""Whole episodes, one after another in columns, with an index: sequences and episodes are views, not copies.

Belongs here: memory for whoever needs more than a transition: recurrent networks, hindsight, return-to-go. An episode
is remembered once it has ended; its pieces wait until then. It never wraps around the end of the columns, so that
every episode, and every window of one, is a slice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.control.replay.ring import require_same_columns
from hone.core.episodes import Episodes, column_table, concatenate, pack_episodes, unpack_episodes
from hone.core.errors import DataError
from hone.core.ragged import Ints, offsets_of, ranges
from hone.core.state import State, array, integer, substate

Array: TypeAlias = NDArray[np.generic]
Flags: TypeAlias = NDArray[np.bool_]
_SHIFTED: Final = {"final": "seen", "final_mask": "mask", "final_state": "state"}
"""Columns of an episode that hold, for a piece of it, the next row of a column of decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EpisodeIndex:
    """Episodes in the store, oldest first."""

    start: Ints
    """`[E]` row of the first decision."""
    length: Ints
    """`[E]` decisions."""
    columns: Mapping[str, Array]
    """`[E, ...]` every column of `Episodes` that is recorded per episode."""

    def __len__(self) -> int:
        return len(self.start)

    def take(self, which: Ints | slice) -> "_EpisodeIndex":
        """Entries `which`, in that order."""
        return _EpisodeIndex(
            start=self.start[which],
            length=self.length[which],
            columns={name: values[which] for name, values in self.columns.items()},
        )

    def without(self, name: str) -> "_EpisodeIndex":
        """The same episodes without a column: `memory` is known before an episode's first decision only."""
        kept = {key: values for key, values in self.columns.items() if key != name}
        return replace(self, columns=kept)


class EpisodeStore:
    """Up to `capacity` decisions of ended episodes; the oldest episodes give way, as a whole.

    `spill` is handed the episodes that give way, before they do, and how many had before (`ParquetSpill` writes
    parquet).
    """

    def __init__(
        self, capacity: int, *, spill: Callable[[int, Episodes], None] | None = None, half_life: float = 0.0
    ) -> None:
        self.capacity = capacity
        self.spill = spill
        self.half_life = half_life
        """Newer decisions after which one is half as likely to be drawn; 0: all are as likely."""
        self.added = 0
        """Episodes ever remembered."""
        self._columns: dict[str, Array] = {}
        self._index: _EpisodeIndex | None = None
        self._waiting: dict[int, list[tuple[Episodes, int]]] = {}
        """Pieces of episodes that have not ended: where they stand in what was added."""
        self._next = 0

    def __len__(self) -> int:
        """Decisions in memory."""
        return 0 if self._index is None else int(self._index.length.sum())

    @property
    def index(self) -> _EpisodeIndex:
        """Raises DataError while nothing was remembered."""
        if self._index is None:
            raise DataError("the episode store is empty: no episode has ended yet")
        return self._index

    def add(self, episodes: Episodes) -> int:
        """Remember pieces of episodes; how many episodes were completed by them.

        Pieces of one episode share their `group`. Raises DataError for episodes without scores or final observations,
        and for one that is longer than the capacity.
        """
        if episodes.final is None or not episodes.scored.all():
            raise DataError("an episode store holds scored episodes with their final observations")
        if not self._columns:
            self._columns = {
                name: np.zeros((self.capacity, *column.shape[1:]), column.dtype)
                for name, column in _columns_of(episodes, "decision").items()
            }
        over = episodes.terminated | episodes.truncated
        completed = 0
        for number in range(len(episodes)):
            group = int(episodes.group[number])
            pieces = self._waiting.setdefault(group, [])
            pieces.append((episodes, number))
            if over[number]:
                self._remember(_join(self._waiting.pop(group)))
                completed += 1
        return completed

    def view(self, number: int) -> Episodes:
        """Episode `number` of the index, in the memory's own columns: no copy. Read it before the next `add`."""
        return self.window(number, 0, int(self.index.length[number]))

    def window(self, number: int, first: int, length: int) -> Episodes:
        """`length` decisions of one episode from decision `first`: no copy but of the single `final`.

        A window that does not reach the episode's end is neither terminated nor truncated: it is a piece, worth the
        value of its `final` beyond. Raises DataError for a window that leaves the episode.
        """
        index = self.index
        whole = int(index.length[number])
        if not (first >= 0 and first + length <= whole and length >= 1):
            raise DataError(f"decisions {first} .. {first + length - 1} of an episode of {whole}")
        begin = int(index.start[number]) + first
        rows, ends = slice(begin, begin + length), first + length == whole
        here, after = index.take(slice(number, number + 1)), slice(begin + length, begin + length + 1)
        final = {
            name: here.columns[name] if ends else self._columns[column][after]
            for name, column in _SHIFTED.items()
            if name in here.columns
        }
        whole_piece = here if first == 0 else here.without("memory")
        return self._pieces(np.array([0, length], dtype=np.int64), rows, whole_piece, np.array([ends]), final)

    def sample_positions(self, count: int, draws: np.random.Generator) -> tuple[Ints, Ints]:
        """`count` decisions with replacement, uniformly or by recency: their episodes' numbers and their places within
        `[n]`. Recency 2^(-a / half_life) of the a-th newest of n decisions: a = floor(-half_life log2(1 - u (1 -
        2^(-n / half_life)))) for a uniform u."""
        index = self.index
        offsets = offsets_of(index.length)
        held = int(offsets[-1])
        if self.half_life:
            luck = draws.random(count) * -np.expm1(-held / self.half_life * np.log(2.0))
            ages = (np.log1p(-luck) * (-self.half_life / np.log(2.0))).astype(np.int64)
            picks = held - 1 - np.minimum(ages, held - 1)
        else:
            picks = draws.integers(0, held, count)
        number = np.searchsorted(offsets, picks, side="right") - 1
        return number, picks - offsets[number]

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` transitions, drawn as `sample_positions` says, as episodes of one decision."""
        return self.windows(*self.sample_positions(count, draws), 1)

    def sample_sequences(self, count: int, length: int, draws: np.random.Generator) -> Episodes:
        """`count` windows of `length` decisions, whose first is drawn as `sample_positions` says. At an episode's end a
        window is shorter: nothing is padded."""
        return self.windows(*self.sample_positions(count, draws), length)

    def windows(self, number: Ints, first: Ints, length: int) -> Episodes:
        """The windows of up to `length` decisions that begin at these places `[n]` -> n pieces."""
        index = self.index
        lengths = np.minimum(length, index.length[number] - first)
        ends = first + lengths == index.length[number]
        begin = index.start[number] + first
        here = index.take(number)
        final: dict[str, Array] = {}
        for name, column in _SHIFTED.items():
            if name in here.columns:
                final[name] = self._columns[column][np.where(ends, 0, begin + lengths)]
                final[name][ends] = here.columns[name][ends]
        return self._pieces(offsets_of(lengths), ranges(begin, lengths), here.without("memory"), ends, final)

    def _pieces(
        self, offsets: Ints, rows: Ints | slice, here: _EpisodeIndex, ends: Flags, final: Mapping[str, Array]
    ) -> Episodes:
        """Decisions `rows` of the episodes `here`; those that do not reach their episode's end (`ends`) are pieces."""
        flags = {name: here.columns[name].astype(np.bool_) & ends for name in ("terminated", "truncated")}
        decisions = {name: column[rows] for name, column in self._columns.items()}
        return Episodes.from_columns(offsets, {**decisions, **here.columns, **flags, **final})

    def state(self) -> State:
        """Episodes in memory, and the pieces that wait for their ends."""
        state: State = {"capacity": self.capacity, "added": self.added, "next": self._next}
        if self._index is not None:
            order = range(len(self._index))
            state["episodes"] = _state_of(concatenate([self.view(number) for number in order]))
            state["starts"] = self._index.start.copy()
        if self._waiting:
            state["waiting"] = _state_of(concatenate([_join(pieces) for pieces in self._waiting.values()]))
        return state

    def restore(self, state: State) -> None:
        """Raises DataError for the state of another capacity."""
        if integer(state, "capacity") != self.capacity:
            raise DataError(f"the saved store holds {state['capacity']} decisions, this one {self.capacity}")
        self._columns, self._index, self._waiting = {}, None, {}
        if "episodes" in state:
            self._lay_out(unpack_episodes(substate(state, "episodes")), array(state, "starts").astype(np.int64))
        if "waiting" in state:
            waiting = unpack_episodes(substate(state, "waiting"))
            for number in range(len(waiting)):
                self._waiting[int(waiting.group[number])] = [(waiting, number)]
        self.added, self._next = integer(state, "added"), integer(state, "next")

    def _lay_out(self, episodes: Episodes, starts: Ints) -> None:
        """Put restored episodes where they were."""
        rows = ranges(starts, episodes.lengths)
        for name, column in _columns_of(episodes, "decision").items():
            self._columns[name] = np.zeros((self.capacity, *column.shape[1:]), column.dtype)
            self._columns[name][rows] = column
        self._index = _index_of(episodes, starts)

    def _remember(self, episode: Episodes) -> None:
        length = episode.decisions
        if length == 0:
            return
        if length > self.capacity:
            raise DataError(f"an episode of {length} decisions does not fit a store of {self.capacity}")
        if self._next + length > self.capacity:  # the rest of the columns stays empty, so that no episode wraps
            self._make_room(self._next, self.capacity)
            self._next = 0
        self._make_room(self._next, self._next + length)
        columns = _columns_of(episode, "decision")
        require_same_columns(columns, self._columns)
        for name, column in columns.items():
            self._columns[name][self._next : self._next + length] = column
        entry = _index_of(episode, np.array([self._next]))
        self._index = entry if self._index is None else _append(self._index, entry)
        self._next += length
        self.added += 1

    def _make_room(self, low: int, high: int) -> None:
        """Let the episodes give way that have a decision in rows low .. high - 1: they are the oldest."""
        index = self._index
        if index is None:
            return
        touched = np.flatnonzero((index.start < high) & (index.start + index.length > low))
        gone = int(touched.max()) + 1 if len(touched) else 0
        if gone:
            if self.spill is not None:
                self.spill(self.added - len(index), concatenate([self.view(number) for number in range(gone)]))
            self._index = index.take(slice(gone, None)) if gone < len(index) else None


def _columns_of(episodes: Episodes, unit: str) -> dict[str, Array]:
    return {name: values for name, values in episodes.columns().items() if column_table()[name].unit == unit}


def _index_of(episodes: Episodes, starts: Ints) -> _EpisodeIndex:
    return _EpisodeIndex(start=starts, length=episodes.lengths, columns=_columns_of(episodes, "episode"))


def _append(one: _EpisodeIndex, other: _EpisodeIndex) -> _EpisodeIndex:
    require_same_columns(other.columns, one.columns)
    return _EpisodeIndex(
        start=np.concatenate([one.start, other.start]),
        length=np.concatenate([one.length, other.length]),
        columns={name: np.concatenate([values, other.columns[name]]) for name, values in one.columns.items()},
    )


def _join(pieces: Sequence[tuple[Episodes, int]]) -> Episodes:
    """Merges the pieces of one episode; the last knows how it ended and what it scored."""
    whole = concatenate([episodes.take(np.array([number])) for episodes, number in pieces])
    return whole.join_pieces(np.arange(len(pieces)) == len(pieces) - 1)


def _state_of(episodes: Episodes) -> State:
    """Packed episodes, by `lengths` instead of `offsets`, without `status`: all are scored."""
    saved = {name: leaf for name, leaf in pack_episodes(episodes).items() if name not in {"offsets", "status"}}
    return {**saved, "lengths": episodes.lengths}
