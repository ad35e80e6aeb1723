"""State of the scheduler's samples and prompts, and the table of their transitions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Routing
from hone.core.generation import (
    AnswerVersions,
    Completion,
    FinishReason,
    LikeliestTokens,
    Request,
    ScoreRequest,
    ScoreResult,
)
from hone.core.ragged import RaggedArray, offsets_of


class SamplePhase(IntEnum):
    """Phase of a sample."""

    WAITING = auto()
    """Waiting in the queue; holds no page."""
    FILLING = auto()
    """The text before its next token is being read."""
    READY = auto()
    """Read, and one token drawn; waits for a row."""
    RUNNING = auto()
    """Running in a row: every pass samples its next token."""
    ENDED = auto()
    """Returned or cancelled: final."""


class SampleEvent(IntEnum):
    """Event that changes the phase of a sample."""

    ADMIT = auto()
    FILLED = auto()
    SEAT = auto()
    PREEMPT = auto()
    """Its pages are needed elsewhere, or their weights are outdated."""
    END = auto()
    CANCEL = auto()


TRANSITIONS: Final[dict[tuple[SamplePhase, SampleEvent], SamplePhase]] = {
    (SamplePhase.WAITING, SampleEvent.ADMIT): SamplePhase.FILLING,
    (SamplePhase.FILLING, SampleEvent.FILLED): SamplePhase.READY,
    (SamplePhase.READY, SampleEvent.SEAT): SamplePhase.RUNNING,
    (SamplePhase.FILLING, SampleEvent.PREEMPT): SamplePhase.WAITING,
    (SamplePhase.READY, SampleEvent.PREEMPT): SamplePhase.WAITING,
    (SamplePhase.RUNNING, SampleEvent.PREEMPT): SamplePhase.WAITING,
    (SamplePhase.FILLING, SampleEvent.END): SamplePhase.ENDED,  # a text that was only to be scored
    (SamplePhase.READY, SampleEvent.END): SamplePhase.ENDED,
    (SamplePhase.RUNNING, SampleEvent.END): SamplePhase.ENDED,
    (SamplePhase.WAITING, SampleEvent.CANCEL): SamplePhase.ENDED,
    (SamplePhase.FILLING, SampleEvent.CANCEL): SamplePhase.ENDED,
    (SamplePhase.READY, SampleEvent.CANCEL): SamplePhase.ENDED,
    (SamplePhase.RUNNING, SampleEvent.CANCEL): SamplePhase.ENDED,
}
"""Everything that can happen to a sample; nothing else does."""

LikeliestRow: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Ids `[k]` and log-probabilities `[k]` of the likeliest tokens at one position."""

UniformStream = Callable[[int], NDArray[np.float64]]
"""The first `count` uniform numbers of a sample; number k is for its token k."""


@dataclass(slots=True)
class CachedUniforms:
    """A `UniformStream` with a cache."""

    draw: UniformStream
    known: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def __call__(self, count: int) -> NDArray[np.float64]:
        if count > len(self.known):
            self.known = self.draw(max(count, 2 * len(self.known), 64))
        return self.known[:count]


_TOKENS: Final[NDArray[np.int32]] = np.zeros(0, np.int32)
_LOGP: Final[NDArray[np.float32]] = np.zeros((2, 0), np.float32)


def _no_tokens() -> NDArray[np.int32]:
    return _TOKENS  # replaced, never written to


def _no_logp() -> NDArray[np.float32]:
    return _LOGP


@dataclass(slots=True, eq=False)
class SampleState:
    """State of one sample. Its sampled tokens are here, or in its row while it runs."""

    order: int
    request: Request
    number: int
    stream: UniformStream
    phase: SamplePhase = SamplePhase.WAITING
    tokens: NDArray[np.int32] = field(default_factory=_no_tokens)
    """`[n]`."""
    logp: NDArray[np.float32] = field(default_factory=_no_logp)
    """`[2, n]`: log-probabilities under the policy, and under the sampling distribution."""
    sampling_mask: list[NDArray[np.int32]] = field(default_factory=list[NDArray[np.int32]])
    versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(first token, version that draws from there on)."""
    stale: bool = False
    """True if a part of its KV cache is of older weights."""
    likeliest: list[LikeliestRow] = field(default_factory=list[LikeliestRow])
    """Likeliest tokens at each draw, where they are asked for."""
    routing: Routing | None = None
    """`[m, L, k]` experts of its first m tokens, prompt included, as far as they were taken from pages."""
    reread_at: list[int] = field(default_factory=list[int])
    """Tokens before which its text was read again by newer weights."""
    recorded: AnswerVersions | None = None
    """Versions that are to sample its tokens, in a replay; None: whatever weights are there."""

    def apply_event(self, event: SampleEvent) -> None:
        """Move to the next phase. Raises KeyError for an event that is impossible in this one."""
        self.phase = TRANSITIONS[self.phase, event]

    def mark_version(self, drawn: int, version: int) -> None:
        """Record that tokens from `drawn` on are sampled by `version`."""
        if not self.versions or self.versions[-1][1] != version:
            self.versions.append((drawn, version))

    def mark_reread(self, version: int) -> None:
        """Record that its text was read by `version`, where another one had read a part of it before."""
        drawn, is_new = len(self.tokens), self.versions and self.versions[-1][1] != version
        if (self.stale or is_new) and drawn not in self.reread_at[-1:]:
            self.reread_at.append(drawn)
        self.stale = False

    def append_token(
        self, token: NDArray[np.int32], logp: NDArray[np.float32], kept: NDArray[np.int32] | None, version: int
    ) -> None:
        """Take up one token `[1]`, with its log-probabilities `[2, 1]`, that was drawn for it outside of a row."""
        before = len(self.tokens)
        self.mark_version(before, version)
        self.tokens = np.concatenate([self.tokens, token]) if before else token
        self.logp = np.concatenate([self.logp, logp], axis=1) if before else logp
        if kept is not None:
            self.sampling_mask.append(kept)

    def keep_routing(self, routing: Routing | None) -> None:
        """Take up the routes of all tokens read so far; those that are known stay as they were."""
        if routing is None:
            return
        known = 0 if self.routing is None else len(self.routing)
        self.routing = routing if self.routing is None else np.concatenate([self.routing, routing[known:]])

    def wanted_version(self, drawn: int, current: int) -> int:
        """Version that samples its token number `drawn`: the recorded one, or the `current` one without a record."""
        return current if self.recorded is None else self.recorded.version_at(drawn)

    def drop_last_token(self) -> None:
        """Give the last token back; counter-based draws will draw it again."""
        count = len(self.tokens) - 1
        self.tokens, self.logp, self.sampling_mask = (
            self.tokens[:count],
            self.logp[:, :count],
            self.sampling_mask[:count],
        )
        self.likeliest = self.likeliest[:count]
        self.versions = [mark for mark in self.versions if mark[0] < count]

    def completion(self, finish: FinishReason, behind: int) -> Completion:
        """The completion of a finished sample."""
        version = np.zeros(len(self.tokens), np.int32)
        for start, number in self.versions:
            version[start:] = number
        return Completion(
            request_id=self.request.id,
            sample_index=self.number,
            tokens=self.tokens,
            logp=self.logp[0],
            sampled_logp=self.logp[1],
            version=version,
            finish_reason=finish,
            sampling_mask=_rows(self.sampling_mask) if self.request.sampling.truncates else None,
            trailing_characters=behind,
            turn=self.request.turn,
            routing=self.routing,
            likeliest=likeliest_tokens(self.likeliest),
            reread_at=tuple(self.reread_at),
        )


def likeliest_tokens(rows: list[LikeliestRow]) -> LikeliestTokens | None:
    """The rows of one answer or text together; None where there are none."""
    if not rows:
        return None
    return LikeliestTokens(tokens=np.stack([tokens for tokens, _ in rows]), logp=np.stack([logp for _, logp in rows]))


def _rows(kept: list[NDArray[np.int32]]) -> RaggedArray:
    lengths = np.array([len(ids) for ids in kept], np.int64)
    return RaggedArray(values=np.concatenate([*kept, _no_tokens()]), offsets=offsets_of(lengths))


@dataclass(slots=True, eq=False)
class PrefillGroup:
    """A text to be read once, for all `members` that continue it from its end; or a text to be scored."""

    order: int
    text: NDArray[np.int32]
    """`[L]`."""
    members: list[SampleState]
    """Samples whose next token has not been sampled."""
    tokens_to_score: NDArray[np.int32] | None = None
    """`[n]` tokens to be scored, the first after `text[L - n]`; None: draw after the last token."""
    scored_logp: list[NDArray[np.float32]] = field(default_factory=list[NDArray[np.float32]])
    """Log-probabilities `[k, 2]` of the tokens scored so far."""
    likeliest: list[LikeliestRow] = field(default_factory=list[LikeliestRow])
    """Likeliest tokens at each token scored so far, where they are asked for."""
    ready: list[SampleState] = field(default_factory=list[SampleState])
    """Samples whose token was sampled, waiting for a row."""
    pages: list[int] = field(default_factory=list[int])
    filled_tokens: int = 0
    """Tokens in the pages."""
    resumed: bool = False
    """True if it was started before; new requests do not overtake it."""

    @property
    def first_draw(self) -> int:
        """The first token after which a draw is wanted."""
        return len(self.text) - (1 if self.tokens_to_score is None else len(self.tokens_to_score))

    def cancel(self, wanted: Callable[[SampleState], bool]) -> None:
        """End its samples that are `wanted`."""
        for sample in filter(wanted, (*self.members, *self.ready)):
            sample.apply_event(SampleEvent.CANCEL)
        self.members = [sample for sample in self.members if sample.phase is not SamplePhase.ENDED]
        self.ready = [sample for sample in self.ready if sample.phase is not SamplePhase.ENDED]

    def scores(self) -> ScoreResult:
        """The log-probabilities of a text that was scored."""
        both = np.concatenate(self.scored_logp)
        logp, sampled = np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])
        return ScoreResult(logp=logp, sampled_logp=sampled, likeliest=likeliest_tokens(self.likeliest))


def scoring_group(order: int, text: ScoreRequest, request: Request) -> PrefillGroup:
    """`text` as a scoring prompt; `request` carries its settings and its name in messages."""
    member = SampleState(order, request, 0, _no_draws)
    whole = np.concatenate([text.prompt, text.tokens[:-1]]).astype(np.int32)
    return PrefillGroup(order, whole, [member], tokens_to_score=text.tokens.astype(np.int32))


def _no_draws(count: int) -> NDArray[np.float64]:
    return np.zeros(count)
