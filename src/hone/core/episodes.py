"""Episodes: what was lived through, in columns.

Worlds make them, credit weighs them, learners eat them, the store keeps them.

E episodes hold N decisions; episode e owns the decisions `offsets[e]:offsets[e+1]`. A million environment steps and a
batch of token sequences are both a dozen flat arrays. An episode may be a *piece* of a longer one (a rollout that stops
in the middle): then it is neither terminated nor truncated, and its worth beyond the cut is the value of `final`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.ragged import Ints, RaggedArray, concatenate_rows, empty_rows, offsets_of, owner_of, ranges


class ScoreStatus(IntEnum):
    """What became of a reward. Anything but SCORED is a missing value, never a 0."""

    SCORED = 0
    UNSCORABLE = 1
    ERROR = 2
    TIMEOUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What a token policy saw: the tokens of each episode once, and where decisions were taken.

    Decision n chose `tokens[at[n]]` after seeing the tokens of its episode before `at[n]`. Tokens at which no decision
    was taken (prompt, tool output) were spoken by the world.
    """

    tokens: NDArray[np.int32]
    """`[T]` all episodes' tokens, one after another."""
    offsets: Ints
    """`[E+1]` where each episode's tokens begin."""
    at: Ints
    """`[N]` flat position in `tokens` of each chosen token, ascending."""
    kept: RaggedArray | None = None
    """`[N]` rows: the tokens that top-k, top-p and min-p left to choose from; an empty row: all of them. None: all,
    everywhere."""


Seen: TypeAlias = "NDArray[np.generic] | Transcript"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """E episodes of N decisions."""

    offsets: Ints
    """`[E+1]` decisions of each episode."""
    seen: Seen
    """`[N, *observation]`, or the transcript."""
    chosen: NDArray[np.generic]
    """`[N]` or `[N, *action]` what was decided."""
    logp: NDArray[np.float32]
    """`[N]` nats: log-probability (density) of the choice under whoever acted; NaN where nobody recorded it."""
    version: NDArray[np.int32]
    """`[N]` version of the policy that decided."""
    reward: NDArray[np.float32]
    """`[N]` reward that followed each decision; 0 where the score of the episode is missing."""
    group: Ints
    """`[E]` episodes of one group answer the same question (same prompt, same start)."""
    terminated: NDArray[np.bool_]
    """`[E]` the world ended: nothing of worth can follow."""
    truncated: NDArray[np.bool_]
    """`[E]` a limit cut the episode (time, length): worth may follow."""
    final: NDArray[np.generic] | None
    """`[E, *observation]` what was seen after the last decision; None for transcripts."""
    score: NDArray[np.float64]
    """`[E]` outcome of the whole episode so far, undiscounted, earlier pieces included; NaN when missing."""
    status: NDArray[np.uint8]
    """`[E]` `ScoreStatus` of the score."""
    components: NDArray[np.float64] | None = None
    """`[E, C]` each reward function's own score, unweighted; NaN where it gave none. None where nobody kept them."""
    baseline: NDArray[np.float64] | None = None
    """`[E]` what a fixed answer to the same question scored (ReMax: the greedy one), itself not among the episodes; NaN
    when missing. None where nobody asked for one."""

    def __post_init__(self) -> None:
        count, decisions = len(self.offsets) - 1, int(self.offsets[-1])
        per_episode = (
            ("group", self.group),
            ("terminated", self.terminated),
            ("truncated", self.truncated),
            ("score", self.score),
            ("status", self.status),
        )
        for name, column in per_episode:
            assert column.shape == (count,), f"{name} has shape {column.shape}, expected ({count},)"
        for name, column in (("logp", self.logp), ("version", self.version), ("reward", self.reward)):
            assert column.shape == (decisions,), f"{name} has shape {column.shape}, expected ({decisions},)"
        for name, column in (("components", self.components), ("baseline", self.baseline)):
            assert column is None or len(column) == count, f"{name} has {len(column)} rows, expected {count}"
        assert len(self.chosen) == decisions, f"{len(self.chosen)} choices for {decisions} decisions"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def decisions(self) -> int:
        """N."""
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
        assert isinstance(self.seen, Transcript), "these episodes hold observations, not a transcript"
        return self.seen

    @property
    def scored(self) -> NDArray[np.bool_]:
        """`[E]` whose score counts."""
        return self.status == ScoreStatus.SCORED

    def take(self, index: NDArray[np.integer]) -> "Episodes":
        """Episodes `index` `[K]`, in that order (repeats allowed)."""
        lengths = self.lengths[index]
        rows = ranges(self.offsets[:-1][index], lengths)
        return Episodes(
            offsets=offsets_of(lengths),
            seen=_take_transcript(self.seen, index, rows) if isinstance(self.seen, Transcript) else self.seen[rows],
            chosen=self.chosen[rows],
            logp=self.logp[rows],
            version=self.version[rows],
            reward=self.reward[rows],
            group=self.group[index],
            terminated=self.terminated[index],
            truncated=self.truncated[index],
            final=None if self.final is None else self.final[index],
            score=self.score[index],
            status=self.status[index],
            components=None if self.components is None else self.components[index],
            baseline=None if self.baseline is None else self.baseline[index],
        )

    def transitions(self) -> "Episodes":
        """Every decision as an episode of length one: what was seen, chosen, paid and seen next (E becomes N)."""
        seen, count = self.observations, self.decisions
        assert self.final is not None
        last = self.offsets[1:][self.lengths > 0] - 1
        after = np.empty_like(seen)
        after[:-1] = seen[1:]
        after[last] = self.final[self.lengths > 0]
        ends = np.zeros(count, dtype=np.int64)
        ends[last] = 1
        owner = self.owner
        return Episodes(
            offsets=np.arange(count + 1, dtype=np.int64),
            seen=seen,
            chosen=self.chosen,
            logp=self.logp,
            version=self.version,
            reward=self.reward,
            group=self.group[owner],
            terminated=self.terminated[owner] & (ends == 1),
            truncated=self.truncated[owner] & (ends == 1),
            final=after,
            score=self.score[owner],
            status=self.status[owner],
            components=None if self.components is None else self.components[owner],
            baseline=None if self.baseline is None else self.baseline[owner],
        )


def _take_transcript(seen: Transcript, index: NDArray[np.integer], rows: Ints) -> Transcript:
    lengths = np.diff(seen.offsets)[index]
    offsets = offsets_of(lengths)
    decisions = np.diff(np.searchsorted(seen.at, seen.offsets))[index]  # `at` is ascending
    shift = np.repeat(offsets[:-1] - seen.offsets[:-1][index], decisions)
    return Transcript(
        tokens=seen.tokens[ranges(seen.offsets[:-1][index], lengths)],
        offsets=offsets,
        at=seen.at[rows] + shift,
        kept=None if seen.kept is None else seen.kept.take(rows),
    )


def concatenate(pieces: Sequence[Episodes]) -> Episodes:
    """All episodes of `pieces`, in order; observations and transcripts do not mix."""
    if len(pieces) == 1:
        return pieces[0]
    finals = [piece.final for piece in pieces if piece.final is not None]
    seen: Seen
    if isinstance(pieces[0].seen, Transcript):
        seen = _concatenate_transcripts([piece.transcript for piece in pieces])
    else:
        seen = np.concatenate([piece.observations for piece in pieces])
    return Episodes(
        offsets=offsets_of(np.concatenate([piece.lengths for piece in pieces])),
        seen=seen,
        chosen=np.concatenate([piece.chosen for piece in pieces]),
        logp=np.concatenate([piece.logp for piece in pieces]),
        version=np.concatenate([piece.version for piece in pieces]),
        reward=np.concatenate([piece.reward for piece in pieces]),
        group=np.concatenate([piece.group for piece in pieces]),
        terminated=np.concatenate([piece.terminated for piece in pieces]),
        truncated=np.concatenate([piece.truncated for piece in pieces]),
        final=np.concatenate(finals) if finals else None,
        score=np.concatenate([piece.score for piece in pieces]),
        status=np.concatenate([piece.status for piece in pieces]),
        components=_concatenate_known([piece.components for piece in pieces], "components"),
        baseline=_concatenate_known([piece.baseline for piece in pieces], "baseline"),
    )


def _concatenate_known(columns: Sequence[NDArray[np.float64] | None], name: str) -> NDArray[np.float64] | None:
    known = [column for column in columns if column is not None]
    assert len(known) in {0, len(columns)}, f"{len(known)} of {len(columns)} pieces have {name}: all or none must"
    return np.concatenate(known) if known else None


def _concatenate_transcripts(pieces: Sequence[Transcript]) -> Transcript:
    shifts = np.cumsum([0] + [len(piece.tokens) for piece in pieces[:-1]])
    return Transcript(
        tokens=np.concatenate([piece.tokens for piece in pieces]),
        offsets=offsets_of(np.concatenate([np.diff(piece.offsets) for piece in pieces])),
        at=np.concatenate([piece.at + shift for piece, shift in zip(pieces, shifts, strict=True)]),
        kept=None
        if all(piece.kept is None for piece in pieces)
        else concatenate_rows([piece.kept or empty_rows(len(piece.at)) for piece in pieces]),
    )
