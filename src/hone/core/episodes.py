"""Episodes: trajectories, stored as a table of columns.

E episodes hold N decisions; episode e owns the decisions `offsets[e]:offsets[e+1]`. A million environment steps and a
batch of token sequences are both a dozen flat arrays. An episode may be a *piece* of a longer one (a rollout that was
cut): it is then neither terminated nor truncated, and the value of `final` stands for the rewards after the cut.

A column is declared once, as an annotated field of `Episodes`. Selecting, joining, concatenating, saving and replaying
derive from the declarations, so a new column is one line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.ragged import Ints, RaggedArray, concatenate_rows, empty_rows, offsets_of, owner_of, ranges
from hone.core.state import State, array, substate

# -------------------------------------------------------------------------------------------------------------- routing
# Routes of tokens through a mixture of experts, as recorded by an engine and replayed by a trainer.
#
# `[T, L, k]`: the experts that each of T tokens went to in each of L layers, in 8 bits (16 for more than 255 experts).
# The largest number of the type means that no expert was recorded.


Routing: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""uint8 or uint16."""


def routing_dtype(experts: int) -> type[np.uint8] | type[np.uint16]:
    """Type of the routes among this many experts."""
    return np.uint8 if experts <= np.iinfo(np.uint8).max else np.uint16


def unrecorded(routing: Routing, count: int) -> Routing:
    """`[count, L, k]` routes of the kind of `routing` of which none was recorded."""
    return np.full((count, *routing.shape[1:]), np.iinfo(routing.dtype).max, routing.dtype)


def is_recorded(routing: Routing) -> NDArray[np.bool_]:
    """`[T, L]` whether all experts of a token in a layer were recorded."""
    return (routing != np.iinfo(routing.dtype).max).all(axis=2)


def concatenate_routing(pieces: Sequence[Routing | None], lengths: Sequence[int]) -> Routing | None:
    """Routes of all `pieces`, of `lengths` tokens; None stands for tokens without a record. None where all are."""
    known = next((piece for piece in pieces if piece is not None), None)
    if known is None:
        return None
    filled = [
        unrecorded(known, length) if piece is None else piece for piece, length in zip(pieces, lengths, strict=True)
    ]
    return np.concatenate(filled)


def routing_coverage(routing: Routing, offsets: Ints, last: Ints) -> float:
    """Share of the (token, layer) places that a sequence's last decision depends on whose experts were recorded.

    Sequence e of `offsets` `[E+1]` decides for the last time at token `last[e]` `[E]`; that token and those after it
    are not read. 1 for none.
    """
    read = ranges(offsets[:-1], last - offsets[:-1])
    return float(is_recorded(routing[read]).mean()) if len(read) else 1.0


# ------------------------------------------------------------------------------------------------------------- episodes


Array: TypeAlias = NDArray[np.generic]
ABSENT: Final[NDArray[Any]] = np.zeros(0)
"""Stands for a column that was not given: every row gets the column's default."""


MAX_ABS_REWARD = 1e18
"""Largest reward of an environment: the square of a larger one leaves 32-bit floats."""


class ScoreStatus(IntEnum):
    """Outcome of scoring an episode. Anything but SCORED is a missing value, never a 0."""

    SCORED = 0
    UNSCORABLE = 1
    ERROR = 2
    TIMEOUT = 3


@dataclass(frozen=True, slots=True)
class Column:
    """Declaration of a column of `Episodes`."""

    unit: Literal["decision", "episode"]
    """Rows of the column: N or E."""
    dtype: type[np.generic] | None = None
    """Type of its values; None: that of the spaces."""
    scalar: bool = True
    """One number a row; otherwise rows may have further axes."""
    optional: bool = False
    """May be None: not recorded."""
    default: int | None = None
    """Value of every row of an absent column; None: the column must be there."""

    @property
    def required(self) -> bool:
        """True if a table must have the column."""
        return not self.optional and self.default is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Token sequences of a language model: the tokens of each episode once, and the positions of its decisions.

    Decision n chose `tokens[at[n]]` given the tokens of its episode before `at[n]`. All other tokens (prompt, tool
    output) came from the environment.
    """

    tokens: NDArray[np.int32]
    """`[T]` tokens of all episodes, one episode after another."""
    offsets: Ints
    """`[E+1]` first token of each episode."""
    at: Ints
    """`[N]` flat position in `tokens` of each chosen token, ascending."""
    rows: Ints | None = None
    """`[R+1]` first token of each row, where episodes have several rows, each of which was read by itself
    (`Episodes.join_rows`). None: one row an episode."""
    routing: Routing | None = None
    """`[T, L, k]` experts that the policy sent each token to, the largest number of the type where none was recorded
    (tokens that were not read: the last of an answer). None: a dense policy, or nothing recorded."""
    kept: RaggedArray | None = None
    """`[N]` rows: the tokens that top-k, top-p and min-p left to choose from; an empty row: all of them. None: all,
    everywhere."""


Seen: TypeAlias = Array | Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """E episodes of N decisions."""

    offsets: Ints
    """`[E+1]` first decision of each episode."""
    seen: Annotated[Seen, Column("decision", scalar=False)]
    """`[N, *observation]`, or the transcript."""
    chosen: Annotated[Array, Column("decision", scalar=False)]
    """`[N]` or `[N, *action]` actions."""
    logp: Annotated[NDArray[np.float32], Column("decision", np.float32)]
    """`[N]` nats: log-probability (density) of the action under the behaviour policy; NaN where it is unknown."""
    version: Annotated[NDArray[np.int32], Column("decision", np.int32)]
    """`[N]` version of the policy that acted."""
    reward: Annotated[NDArray[np.float32], Column("decision", np.float32)]
    """`[N]` reward after each action; 0 where the score of the episode is missing."""
    group: Annotated[Ints, Column("episode", np.int64)]
    """`[E]` episodes of one group answer the same question (same prompt, same start). Numbers below 0: episodes of a
    log, or of earlier steps, that stand beside those of the step."""
    terminated: Annotated[NDArray[np.bool_], Column("episode", np.bool_)]
    """`[E]` the environment ended the episode: no bootstrapping."""
    truncated: Annotated[NDArray[np.bool_], Column("episode", np.bool_)]
    """`[E]` a limit cut the episode (time, length): bootstrap from `final`."""
    final: Annotated[Array | None, Column("episode", scalar=False, optional=True)] = None
    """`[E, *observation]` observation after the last decision; None for transcripts."""
    score: Annotated[NDArray[np.float64], Column("episode", np.float64)]
    """`[E]` undiscounted return of the whole episode so far, earlier pieces included; NaN when missing."""
    status: Annotated[NDArray[np.uint8], Column("episode", np.uint8, default=ScoreStatus.SCORED)] = field(
        default_factory=lambda: ABSENT
    )
    """`[E]` `ScoreStatus` of the score."""
    components: Annotated[NDArray[np.float64] | None, Column("episode", np.float64, scalar=False, optional=True)] = None
    """`[E, C]` score of each reward function, unweighted; NaN where it gave none."""
    baseline: Annotated[NDArray[np.float64] | None, Column("episode", np.float64, optional=True)] = None
    """`[E]` score of a fixed answer to the same question (ReMax: the greedy one), which is not among the episodes; NaN
    when missing."""
    id: Annotated[Ints | None, Column("episode", np.int64, optional=True)] = None
    """`[E]` stable identity of the episode, the same for all its pieces."""
    part: Annotated[Ints | None, Column("episode", np.int64, optional=True)] = None
    """`[E]` number of the row in its dialogue, where a chat template's rewriting of the history cuts dialogues into
    several rows of one `id`: a dialogue is one sample, with one score, whatever the number of its rows."""
    turn: Annotated[NDArray[np.int32] | None, Column("decision", np.int32, optional=True)] = None
    """`[N]` turn of its row in which each token was sampled, from 0: an environment may write nothing between two
    turns. None: one turn an episode, or turns that the environment's tokens tell apart."""
    stop: Annotated[NDArray[np.uint8] | None, Column("episode", np.uint8, optional=True)] = None
    """`[E]` reason why a dialogue ended: its place in `hone.core.dialogue.STOP_REASONS`; None where there are none."""
    time: Annotated[NDArray[np.float64] | None, Column("decision", np.float64, optional=True)] = None
    """`[N]` seconds at which each action was taken."""
    ref_logp: Annotated[NDArray[np.float32] | None, Column("decision", np.float32, optional=True)] = None
    """`[N]` nats: log-probability of the action under a reference policy, in a log that was asked once; NaN where it
    was not asked."""

    mask: Annotated[NDArray[np.bool_] | None, Column("decision", np.bool_, scalar=False, optional=True)] = None
    """`[N, M]` choices that were legal at each decision, where the environment told: all bits of all factors of an
    action, one factor after another."""
    search_policy: Annotated[
        NDArray[np.float32] | None, Column("decision", np.float32, scalar=False, optional=True)
    ] = None
    """`[N, M]` shares of the visits that a tree search gave to the actions at each decision."""
    final_mask: Annotated[NDArray[np.bool_] | None, Column("episode", np.bool_, scalar=False, optional=True)] = None
    """`[E, M]` choices that are legal in `final`; all of them where the episode terminated without any."""
    memory: Annotated[NDArray[np.float32] | None, Column("episode", np.float32, scalar=False, optional=True)] = None
    """`[E, H]` state of a recurrent policy before the first decision of each piece; 0 where an episode begins."""

    state: Annotated[NDArray[np.float32] | None, Column("decision", np.float32, scalar=False, optional=True)] = None
    """`[N, Z]` state of the whole environment at each decision, for a critic that sees more than the policy."""
    final_state: Annotated[NDArray[np.float32] | None, Column("episode", np.float32, scalar=False, optional=True)] = (
        None
    )
    """`[E, Z]` state of the whole environment after the last decision."""
    seat: Annotated[NDArray[np.int16] | None, Column("episode", np.int16, optional=True)] = None
    """`[E]` seat of a game that made the decisions of the episode: each seat of a match has an episode of its own."""
    match: Annotated[Ints | None, Column("episode", np.int64, optional=True)] = None
    """`[E]` number of the match."""
    played_by: Annotated[NDArray[np.int32] | None, Column("episode", np.int32, optional=True)] = None
    """`[E]` player of the seat: -1 the policy that learns, otherwise the number of another player."""

    def __post_init__(self) -> None:
        decisions, count = int(self.offsets[-1]), len(self.offsets) - 1
        for (name, column), values in self._cells():
            if not isinstance(values, np.ndarray):
                continue
            size = decisions if column.unit == "decision" else count
            if values is ABSENT:
                object.__setattr__(self, name, np.full(size, column.default, column.dtype))
                continue
            fits = values.shape == (size,) if column.scalar else len(values) == size
            assert fits, f"{name} has shape {values.shape}, expected ({size}{',' if column.scalar else ', ...'})"

    @classmethod
    def from_columns(cls, offsets: Ints, columns: Mapping[str, Seen]) -> Self:
        """A table of these columns. Absent ones have their default, or None where they are optional."""
        return cls(offsets=offsets, **columns)  # pyright: ignore[reportArgumentType] - checked by name

    def columns(self) -> dict[str, Array]:
        """Recorded columns by name, in the order of declaration, without transcripts."""
        return {name: values for (name, _), values in self._cells() if isinstance(values, np.ndarray)}

    def _cells(self) -> "zip[tuple[tuple[str, Column], Seen | None]]":
        """Every declared column, (name, declaration), with what it holds; replay buffers ask at every step."""
        columns, read = _reader(type(self))
        return zip(columns, read(self), strict=True)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def decisions(self) -> int:
        """Number of decisions, N."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> Ints:
        """`[E]` decisions of each episode."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Ints:
        """`[N]` episode of each decision."""
        return owner_of(self.offsets)

    @property
    def observations(self) -> NDArray[np.generic]:
        """`[N, *observation]`; these episodes must not be transcripts."""
        assert not isinstance(self.seen, Transcript), "token episodes hold a transcript, not observations"
        return self.seen

    @property
    def transcript(self) -> Transcript:
        """Token sequences; these episodes must be transcripts."""
        assert isinstance(self.seen, Transcript), "these episodes hold observations, not a transcript"
        return self.seen

    @property
    def scored(self) -> NDArray[np.bool_]:
        """`[E]` True if the episode has a score."""
        return self.status == ScoreStatus.SCORED

    def take(self, index: NDArray[np.integer]) -> Self:
        """Episodes `index` `[K]`, in that order (repeats allowed)."""
        lengths = self.lengths[index]
        rows = ranges(self.offsets[:-1][index], lengths)
        transcript = {"seen": _take_transcript(self.seen, index, rows)} if isinstance(self.seen, Transcript) else {}
        return self._gather(offsets_of(lengths), rows, index, transcript)

    def keep_decisions(self, marks: NDArray[np.bool_]) -> Self:
        """The same episodes with the decisions that `marks` `[N]` names, and no others. What was said at the others
        stays in the transcript: it is context."""
        rows, counts = np.flatnonzero(marks), np.bincount(self.owner[marks], minlength=len(self))
        if not isinstance(self.seen, Transcript):
            return self._gather(offsets_of(counts), rows, np.arange(len(self)), {})
        seen = self.seen
        kept = None if seen.kept is None else seen.kept.take(rows)
        changed = {"seen": replace(seen, at=seen.at[rows], kept=kept)}
        return self._gather(offsets_of(counts), rows, np.arange(len(self)), changed)

    def join_pieces(self, last: NDArray[np.bool_]) -> Self:
        """Merge neighbouring pieces of one episode. `last` `[E]` marks the final piece of each; columns per episode
        are taken from it, but for `memory`, which is that of the first."""
        changed: dict[str, Seen] = {"seen": self.observations}
        if self.memory is not None:
            first = np.roll(last, 1)
            first[:1] = True
            changed["memory"] = self.memory[first]
        return self._gather(np.append(0, self.offsets[1:][last]), slice(None), np.flatnonzero(last), changed)

    @property
    def last_rows(self) -> NDArray[np.bool_]:
        """`[E]` whether each is the last row of its dialogue; True everywhere without `part`."""
        last = np.ones(len(self), np.bool_)
        if self.part is not None and self.id is not None:
            last[:-1] = (np.diff(self.id) != 0) | (np.diff(self.group) != 0) | (np.diff(self.part) <= 0)
        return last

    def join_rows(self) -> Self:
        """Each dialogue as one episode, where `part` numbers several rows of it, which are neighbours. The decisions
        stay as they are; columns per episode are taken from the last row, and `part` is left out."""
        if self.part is None:
            return self
        last, seen = self.last_rows, self.transcript
        whole = replace(seen, offsets=np.append(0, seen.offsets[1:][last]), rows=seen.offsets)
        joined = self._gather(np.append(0, self.offsets[1:][last]), slice(None), np.flatnonzero(last), {"seen": whole})
        return replace(joined, part=None)

    def split_rows(self) -> Self:
        """Each row of a transcript as an episode, with its dialogue's columns: what a network reads. The inverse of
        `join_rows`, but for `part`."""
        if not isinstance(self.seen, Transcript) or self.seen.rows is None:
            return self
        seen, rows = self.seen, self.seen.rows
        owner = np.searchsorted(seen.offsets, rows[:-1], side="right") - 1
        apart = replace(seen, offsets=rows, rows=None)
        return self._gather(np.searchsorted(seen.at, rows), slice(None), owner, {"seen": apart})

    def transitions(self) -> Self:
        """Every decision as an episode of length one, with its observation, action, reward and next observation (E
        becomes N). `memory` is left out: it is known before the first decision only."""
        assert self.final is not None
        count = self.decisions
        ends = np.zeros(count, dtype=np.bool_)
        ends[self.offsets[1:][self.lengths > 0] - 1] = True
        owner = self.owner
        changed: dict[str, Seen] = {
            "terminated": self.terminated[owner] & ends,
            "truncated": self.truncated[owner] & ends,
            "final": self._next_rows(self.observations, self.final),
        }
        if self.mask is not None and self.final_mask is not None:
            changed["final_mask"] = self._next_rows(self.mask, self.final_mask)
        if self.state is not None and self.final_state is not None:
            changed["final_state"] = self._next_rows(self.state, self.final_state)
        known = self if self.memory is None else replace(self, memory=None)
        return known._gather(np.arange(count + 1, dtype=np.int64), slice(None), owner, changed)

    def _next_rows(self, rows: Array, final: Array) -> Array:
        """`[N, ...]` the row after each decision: the next of its episode, or the episode's entry of `final` `[E,
        ...]`."""
        after = np.empty_like(rows)
        after[:-1] = rows[1:]
        after[self.offsets[1:][self.lengths > 0] - 1] = final[self.lengths > 0]
        return after

    def _gather(
        self, offsets: Ints, rows: Ints | slice, index: NDArray[np.integer], changed: Mapping[str, Seen]
    ) -> Self:
        """Decisions `rows` and episodes `index`, but for the columns that `changed` holds."""
        taken = {
            name: values[rows if column.unit == "decision" else index]
            for (name, column), values in self._cells()
            if isinstance(values, np.ndarray) and name not in changed
        }
        return self.from_columns(offsets, {**taken, **changed})


@cache
def column_table(cls: type[Episodes] = Episodes) -> Mapping[str, Column]:
    """Declared columns by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated}


@cache
def _reader(cls: type[Episodes]) -> "tuple[tuple[tuple[str, Column], ...], attrgetter[tuple[Seen | None, ...]]]":
    return tuple(column_table(cls).items()), attrgetter(*column_table(cls))


def _take_transcript(seen: Transcript, index: NDArray[np.integer], rows: Ints) -> Transcript:
    lengths = np.diff(seen.offsets)[index]
    offsets = offsets_of(lengths)
    decisions = np.diff(np.searchsorted(seen.at, seen.offsets))[index]  # `at` is ascending
    shift = np.repeat(offsets[:-1] - seen.offsets[:-1][index], decisions)
    tokens = ranges(seen.offsets[:-1][index], lengths)
    return Transcript(
        tokens=seen.tokens[tokens],
        routing=None if seen.routing is None else seen.routing[tokens],
        offsets=offsets,
        at=seen.at[rows] + shift,
        kept=None if seen.kept is None else seen.kept.take(rows),
        rows=None if seen.rows is None else _take_rows(seen.rows, seen.offsets, index),
    )


def _take_rows(rows: Ints, offsets: Ints, index: NDArray[np.integer]) -> Ints:
    """First tokens of the rows of episodes `index`, whose tokens stand one after another."""
    first = np.searchsorted(rows, offsets)
    return offsets_of(np.diff(rows)[ranges(first[:-1][index], np.diff(first)[index])])


def concatenate(pieces: Sequence[Episodes]) -> Episodes:
    """All episodes of `pieces`, in order. A column must be in all pieces or in none; observations and transcripts do
    not mix."""
    if len(pieces) == 1:
        return pieces[0]
    tables = [piece.columns() for piece in pieces]
    columns: dict[str, Seen] = {}
    if isinstance(pieces[0].seen, Transcript):
        columns["seen"] = _concatenate_transcripts([piece.transcript for piece in pieces])
    for name in column_table(type(pieces[0])):
        known = [table[name] for table in tables if name in table]
        assert len(known) in {0, len(pieces)}, f"{len(known)} of {len(pieces)} pieces have {name}: all or none must"
        if known:
            columns[name] = np.concatenate(known)
    return type(pieces[0]).from_columns(offsets_of(np.concatenate([piece.lengths for piece in pieces])), columns)


def _concatenate_transcripts(pieces: Sequence[Transcript]) -> Transcript:
    shifts = np.cumsum([0] + [len(piece.tokens) for piece in pieces[:-1]])
    return Transcript(
        tokens=np.concatenate([piece.tokens for piece in pieces]),
        offsets=offsets_of(np.concatenate([np.diff(piece.offsets) for piece in pieces])),
        at=np.concatenate([piece.at + shift for piece, shift in zip(pieces, shifts, strict=True)]),
        routing=concatenate_routing([piece.routing for piece in pieces], [len(piece.tokens) for piece in pieces]),
        kept=None
        if all(piece.kept is None for piece in pieces)
        else concatenate_rows([piece.kept or empty_rows(len(piece.at)) for piece in pieces]),
    )


# -------------------------------------------------------------------------------------------------------- episode state


def pack_episodes(episodes: Episodes) -> State:
    """Every column that is there, by name."""
    saved: State = {"offsets": episodes.offsets, **episodes.columns()}
    seen = episodes.seen
    if not isinstance(seen, Transcript):
        return saved
    transcript: State = {"tokens": seen.tokens, "offsets": seen.offsets, "at": seen.at}
    if seen.kept is not None:
        transcript["kept"] = {"values": seen.kept.values, "offsets": seen.kept.offsets}
    if seen.routing is not None:
        transcript["routing"] = seen.routing
    return {**saved, "transcript": transcript}


def unpack_episodes(state: State) -> Episodes:
    """Inverse of `pack_episodes`. Raises DataError for a missing column and for one that is not declared.

    Older layouts are read as well: `lengths` instead of `offsets`, no `status` (all scored), None for absent columns.
    """
    table = column_table()
    if unknown := sorted(set(state) - set(table) - {"offsets", "lengths", "transcript"}):
        raise DataError(f"the saved episodes have columns that this version does not know: {', '.join(unknown)}")
    columns: dict[str, Seen] = {}
    for name, column in table.items():
        if name == "seen" and "transcript" in state:
            columns[name] = _transcript(substate(state, "transcript"))
        elif column.required or state.get(name) is not None:
            saved = array(state, name)
            columns[name] = saved if column.dtype is None else saved.astype(column.dtype)
    offsets = offsets_of(array(state, "lengths").astype(np.int64)) if "lengths" in state else array(state, "offsets")
    return Episodes.from_columns(offsets.astype(np.int64), columns)


def _transcript(state: State) -> Transcript:
    kept = None
    if "kept" in state:
        rows = substate(state, "kept")
        values, offsets = array(rows, "values").astype(np.int32), array(rows, "offsets").astype(np.int64)
        kept = RaggedArray(values=values, offsets=offsets)
    routing = array(state, "routing") if "routing" in state else None
    return Transcript(
        tokens=array(state, "tokens").astype(np.int32),
        offsets=array(state, "offsets").astype(np.int64),
        at=array(state, "at").astype(np.int64),
        kept=kept,
        routing=None if routing is None else routing.astype(np.uint8 if routing.dtype == np.uint8 else np.uint16),
    )
