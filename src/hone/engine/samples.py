"""State of the scheduler's samples and prompts, and the table of their transitions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Final, TypeAlias, TypeVar

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
from hone.engine.grammar import GrammarState
from hone.engine.work import DRAW, ForwardBatch, SamplerInput, SamplerOutput


class _SamplePhase(IntEnum):
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


TRANSITIONS: Final[dict[tuple[_SamplePhase, SampleEvent], _SamplePhase]] = {
    (_SamplePhase.WAITING, SampleEvent.ADMIT): _SamplePhase.FILLING,
    (_SamplePhase.FILLING, SampleEvent.FILLED): _SamplePhase.READY,
    (_SamplePhase.READY, SampleEvent.SEAT): _SamplePhase.RUNNING,
    (_SamplePhase.FILLING, SampleEvent.PREEMPT): _SamplePhase.WAITING,
    (_SamplePhase.READY, SampleEvent.PREEMPT): _SamplePhase.WAITING,
    (_SamplePhase.RUNNING, SampleEvent.PREEMPT): _SamplePhase.WAITING,
    (_SamplePhase.FILLING, SampleEvent.END): _SamplePhase.ENDED,  # a text that was only to be scored
    (_SamplePhase.READY, SampleEvent.END): _SamplePhase.ENDED,
    (_SamplePhase.RUNNING, SampleEvent.END): _SamplePhase.ENDED,
    (_SamplePhase.WAITING, SampleEvent.CANCEL): _SamplePhase.ENDED,
    (_SamplePhase.FILLING, SampleEvent.CANCEL): _SamplePhase.ENDED,
    (_SamplePhase.READY, SampleEvent.CANCEL): _SamplePhase.ENDED,
    (_SamplePhase.RUNNING, SampleEvent.CANCEL): _SamplePhase.ENDED,
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


_TOKENS: Final[NDArray[np.int32]] = np.zeros(0, np.int32)  # replaced, never written to
_LOGP: Final[NDArray[np.float32]] = np.zeros((2, 0), np.float32)


@dataclass(slots=True, eq=False)
class SampleState:
    """State of one sample. Its sampled tokens are here, or in its row while it runs."""

    order: int
    request: Request
    number: int
    stream: UniformStream
    phase: _SamplePhase = _SamplePhase.WAITING
    tokens: NDArray[np.int32] = field(default_factory=lambda: _TOKENS)
    """`[n]`."""
    logp: NDArray[np.float32] = field(default_factory=lambda: _LOGP)
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
    grammar: GrammarState | None = None
    """Place of its tokens in the grammar of its answer."""
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
        if self.grammar is not None:
            self.grammar.take(int(token[0]))

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
        if self.grammar is not None:
            self.grammar.drop_last()
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
            likeliest=_likeliest_tokens(self.likeliest),
            reread_at=tuple(self.reread_at),
        )


def _likeliest_tokens(rows: list[LikeliestRow]) -> LikeliestTokens | None:
    """The rows of one answer or text together; None where there are none."""
    if not rows:
        return None
    return LikeliestTokens(tokens=np.stack([tokens for tokens, _ in rows]), logp=np.stack([logp for _, logp in rows]))


def _rows(kept: list[NDArray[np.int32]]) -> RaggedArray:
    lengths = np.array([len(ids) for ids in kept], np.int64)
    return RaggedArray(values=np.concatenate([*kept, _TOKENS]), offsets=offsets_of(lengths))


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

    @classmethod
    def to_score(cls, order: int, text: ScoreRequest, request: Request) -> "PrefillGroup":
        """`text` as a scoring prompt; `request` carries its settings and its name in messages."""
        member = SampleState(order, request, 0, np.zeros)
        whole = np.concatenate([text.prompt, text.tokens[:-1]]).astype(np.int32)
        return cls(order, whole, [member], tokens_to_score=text.tokens.astype(np.int32))

    def cancel(self, wanted: Callable[[SampleState], bool]) -> None:
        """End its samples that are `wanted`."""
        for sample in filter(wanted, (*self.members, *self.ready)):
            sample.apply_event(SampleEvent.CANCEL)
        self.members = [sample for sample in self.members if sample.phase is not _SamplePhase.ENDED]
        self.ready = [sample for sample in self.ready if sample.phase is not _SamplePhase.ENDED]

    def scores(self) -> ScoreResult:
        """The log-probabilities of a text that was scored."""
        both = np.concatenate(self.scored_logp)
        logp, sampled = np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])
        return ScoreResult(logp=logp, sampled_logp=sampled, likeliest=_likeliest_tokens(self.likeliest))


# -------------------------------------------------------------------------------------------- the table of running rows


_WIDTH: Final = 64
"""Tokens that a row has room for at first; doubled when one needs more."""


class RunningBatch:
    """State of the samples in up to `slots` rows, each of up to `most_pages` pages."""

    def __init__(self, *, slots: int, most_pages: int, page_tokens: int) -> None:
        self.samples: list[SampleState] = []
        self._page_tokens = page_tokens
        self.slots = slots
        # Columns of one kind are in one array, so that a row is written and moved in few operations.
        self._ints = np.zeros((5, slots), np.int32)
        self._longs = np.zeros((3, slots), np.int64)
        self._reals = np.ones((3, slots), np.float32)
        self._flags = np.zeros((7, slots), np.bool_)
        self.last_token, self.position, self.page_count, self._top_k, self._top_logprobs = self._ints
        """`token`: drawn last, and not in the pages yet; `position`: where it goes."""
        self.drawn_tokens, self.max_tokens, self.order = self._longs
        self._temperature, self._top_p, self._min_p = self._reals
        self.stale, self.has_stop_strings, self.truncates, self._greedy, self._has_grammar = self._flags[:5]
        self.has_stop_tokens, self._has_adapter = self._flags[5:]
        self.pages = np.zeros((slots, most_pages), np.int32)
        self._rows = np.arange(slots, dtype=np.int32)
        self._draw = np.full(slots, DRAW, np.int32)
        self._allocate(_WIDTH)

    def __len__(self) -> int:
        return len(self.samples)

    def insert(self, samples: list[SampleState], pages: list[list[int]], text_tokens: int) -> None:
        """Give the next rows to `samples` of one request. Each has drawn the same number of tokens, at least one; its
        `pages` hold the `text_tokens` before the last."""
        first, count, request = len(self.samples), len(samples[0].tokens), samples[0].request
        while count >= self._width:
            self._widen(2 * self._width)
        rows, sampling = slice(first, first + len(samples)), request.sampling
        self.samples += samples
        self._tokens[rows, :count] = [sample.tokens for sample in samples]
        for row, sample in enumerate(samples, start=first):
            self._logp[:, row, :count] = sample.logp
        self.last_token[rows] = self._tokens[rows, count - 1]
        self._ints[1:, rows] = _column(np.int32, text_tokens, len(pages[0]), sampling.top_k, sampling.top_logprobs)
        self._longs[:2, rows] = _column(np.int64, count, sampling.max_tokens)
        self.order[rows] = [sample.order for sample in samples]
        self._reals[:, rows] = _column(np.float32, sampling.temperature, sampling.top_p, sampling.min_p)
        self._flags[1:, rows] = _column(
            np.bool_, bool(sampling.stop), sampling.truncates, sampling.greedy, sampling.grammar is not None,
            sampling.stop_tokens is not None, bool(request.adapter),
        )  # fmt: skip
        self.stale[rows] = [sample.stale for sample in samples]
        self.pages[rows, : len(pages[0])] = pages
        need = min(self._width, sampling.max_tokens)
        self._uniform[rows, :need] = [sample.stream(need) for sample in samples]

    def remove(self, rows: list[int]) -> list[tuple[SampleState, list[int]]]:
        """Remove the samples of `rows`, with their tokens and pages; the last rows move into their places."""
        counts = self.drawn_tokens[rows].tolist()
        tokens, logp = self._tokens[rows, : max(counts)], self._logp[:, rows, : max(counts)]
        pages, held = self.pages[rows].tolist(), self.page_count[rows].tolist()
        out: list[tuple[SampleState, list[int]]] = []
        for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
            sample = self.samples[row]
            sample.tokens, sample.logp = tokens[place, :count], logp[:, place, :count]
            out.append((sample, pages[place][: held[place]]))
        gone, left = set(rows), len(self.samples) - len(rows)
        empty = [row for row in rows if row < left]
        if empty:
            last = [row for row in range(left, len(self.samples)) if row not in gone]
            for columns in (self._ints, self._longs, self._reals, self._flags, self._logp):
                columns[:, empty] = columns[:, last]
            for column in (self.pages, self._uniform, self._tokens):
                column[empty] = column[last]
            for row, other in zip(empty, last, strict=True):
                self.samples[row] = self.samples[other]
        del self.samples[left:]
        return out

    def short_of_pages(self) -> NDArray[np.int64]:
        """Rows whose next token has no page."""
        count = len(self.samples)
        return np.flatnonzero(self.position[:count] >= self.page_count[:count] * self._page_tokens)

    def add_page(self, row: int, page: int) -> None:
        """Append a page to a row."""
        self.pages[row, self.page_count[row]] = page
        self.page_count[row] += 1

    def forward_batch(self) -> ForwardBatch:
        """One token for every row; arrays that stay valid until the table changes."""
        n = len(self.samples)
        rows, top = self._rows[:n], self._top_logprobs[:n]
        return ForwardBatch(
            tokens=self.last_token[:n],
            positions=self.position[:n],
            sequence=rows,
            pages=self.pages[:n],
            draws=SamplerInput(
                token_index=rows,
                forced_token=self._draw[:n],
                uniform=self._uniform.reshape(-1)[self._starts[:n] + self.drawn_tokens[:n]],
                temperature=self._temperature[:n],
                top_k=self._top_k[:n],
                top_p=self._top_p[:n],
                min_p=self._min_p[:n],
                greedy=self._greedy[:n],
                top_logprobs=top if top.any() else None,
                allowed=_allowed_tokens(self.samples) if self._has_grammar[:n].any() else None,
            ),
            adapters=tuple(one.request.adapter for one in self.samples) if self._has_adapter[:n].any() else None,
        )

    def record(self, drawn: SamplerOutput) -> None:
        """Record the tokens sampled for rows 0..n-1; `drawn` may hold more."""
        n = len(self.samples)
        at = self._starts[:n] + self.drawn_tokens[:n]
        tokens = drawn.token[:n]
        self._tokens.reshape(-1)[at] = tokens
        both = self._logp.reshape(2, -1)
        both[0, at] = drawn.logp[:n]
        both[1, at] = drawn.sampled_logp[:n]
        self.last_token[:n] = tokens
        self.position[:n] += 1
        self.drawn_tokens[:n] += 1
        if drawn.sampling_mask_bits is not None:
            for row in np.flatnonzero(self.truncates[:n]).tolist():
                self.samples[row].sampling_mask.append(_mask_token_ids(drawn.sampling_mask_bits[row]))
        for row in np.flatnonzero(self._has_grammar[:n]).tolist():
            if (grammar := self.samples[row].grammar) is not None:
                grammar.take(int(tokens[row]))
        if drawn.top_tokens is not None:
            for row in np.flatnonzero(self._top_logprobs[:n]).tolist():
                self.samples[row].likeliest.append(likeliest_row(drawn, row, int(self._top_logprobs[row])))
        if n and int(self.drawn_tokens[:n].max()) >= self._width:
            self._widen(2 * self._width)

    def at_token_limit(self) -> NDArray[np.bool_]:
        """`[n]` whether each row has drawn as many tokens as it may."""
        n = len(self.samples)
        return self.drawn_tokens[:n] >= self.max_tokens[:n]

    def last_tokens(self, row: int, count: int) -> NDArray[np.int32]:
        """The last `count` tokens (or all of them) that `row` has drawn."""
        end = int(self.drawn_tokens[row])
        return self._tokens[row, max(0, end - count) : end]

    def _widen(self, width: int) -> None:
        tokens, logp = self._tokens, self._logp
        old = tokens.shape[1]
        self._allocate(width)
        self._tokens[:, :old], self._logp[:, :, :old] = tokens, logp
        for row, sample in enumerate(self.samples):
            self._uniform[row] = sample.stream(width)

    def _allocate(self, width: int) -> None:
        self._width = width
        self._uniform = np.zeros((self.slots, width), np.float64)
        self._tokens = np.zeros((self.slots, width), np.int32)
        self._logp = np.zeros((2, self.slots, width), np.float32)
        self._starts = np.arange(self.slots, dtype=np.int64) * width


def _column(kind: type[np.generic], *values: float) -> NDArray[np.generic]:
    """`[k, 1]`: one value for all rows of each of k columns."""
    return np.array(values, kind)[:, None]


def likeliest_row(drawn: SamplerOutput, row: int, count: int) -> LikeliestRow:
    """The `count` likeliest tokens that a pass reported for one of its draws; fewer where the vocabulary ends."""
    assert drawn.top_tokens is not None and drawn.top_logp is not None
    return drawn.top_tokens[row, :count].copy(), drawn.top_logp[row, :count].copy()


def _mask_token_ids(bits: NDArray[np.uint8]) -> NDArray[np.int32]:
    """`[ceil(vocab / 8)]` little-endian bits -> the ids whose bit is set, ascending; where more than half are, -1 and
    the ids whose bit is not: within a text of JSON nearly every token is allowed."""
    left = np.unpackbits(bits, bitorder="little")
    if 2 * int(left.sum()) <= len(left):
        return np.flatnonzero(left).astype(np.int32)
    return np.concatenate([[-1], np.flatnonzero(left == 0)]).astype(np.int32)


def _allowed_tokens(samples: Sequence[SampleState]) -> NDArray[np.uint8] | None:
    """`[n, ceil(vocab / 8)]` bits of the tokens that the grammars of these samples allow; None where none has one."""
    rows = {place: one.grammar.allowed() for place, one in enumerate(samples) if one.grammar is not None}
    if not rows:
        return None
    bits = np.full((len(samples), len(next(iter(rows.values())))), 255, np.uint8)
    for place, row in rows.items():
        bits[place] = row
    return bits


# --------------------------------------------------------------------------------------------------------------- passes


_Number = TypeVar("_Number", bound=np.generic)

_NONE: Final = np.zeros(0, np.int32)
no_copies: Final = (_NONE, _NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChunk:
    """Tokens `start:stop` of a text that one pass prefills."""

    group: PrefillGroup
    start: int
    stop: int
    drawing_samples: list[SampleState]
    """Samples that sample a token after the last one."""

    @property
    def first_draw(self) -> int:
        """First of its tokens with a sampled or scored successor; `stop` if there is none."""
        return self.stop if self.group.tokens_to_score is None else max(self.start, self.group.first_draw)

    @property
    def draws(self) -> int:
        """Number of sampled or scored tokens."""
        return len(self.drawing_samples) if self.group.tokens_to_score is None else max(0, self.stop - self.first_draw)

    def append_first(self, drawn: SamplerOutput, place: int, version: int) -> None:
        """Append the token sampled after the prompt to each of its samples; `place`: the first of their logits."""
        until = place + self.draws
        tokens = drawn.token[place:until].copy()
        logp = np.stack([drawn.logp[place:until], drawn.sampled_logp[place:until]])
        sampling = self.drawing_samples[0].request.sampling
        bits = drawn.sampling_mask_bits if sampling.truncates else None
        for at, sample in enumerate(self.drawing_samples):
            sample.mark_reread(version)
            kept = None if bits is None else _mask_token_ids(bits[place + at])
            sample.append_token(tokens[at : at + 1], logp[:, at : at + 1], kept, version)
            if sampling.top_logprobs:
                sample.likeliest.append(likeliest_row(drawn, place + at, sampling.top_logprobs))
            sample.apply_event(SampleEvent.FILLED)

    def append_scores(self, drawn: SamplerOutput, place: int) -> None:
        """Record the log-probabilities of its scored tokens."""
        until = place + self.draws
        self.group.scored_logp.append(np.stack([drawn.logp[place:until], drawn.sampled_logp[place:until]], axis=1))
        if top := self.group.members[0].request.sampling.top_logprobs:
            self.group.likeliest += [likeliest_row(drawn, row, top) for row in range(place, until)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """One pass, with the owners of its logits: the rows first, then each chunk's."""

    batch: ForwardBatch
    rows: int
    chunks: list[PromptChunk]
    copy_sources: NDArray[np.int32]
    """Pages to be copied before the pass, `[k]`."""
    copy_targets: NDArray[np.int32]

    def request_ids(self, table: RunningBatch, draws: NDArray[np.int64]) -> list[str]:
        """Ids of the requests with these logits, before `table` changes; each once."""
        owners = list(table.samples[: self.rows])
        for chunk in self.chunks:
            owners += chunk.drawing_samples or [chunk.group.members[0]] * chunk.draws
        return list(dict.fromkeys(owners[draw].request.id for draw in draws.tolist()))


def mixed_batch(table: RunningBatch, chunks: list[PromptChunk]) -> ForwardBatch:
    """The table's rows, and behind them the tokens of `chunks`."""
    rows = table.forward_batch()
    n, lengths = len(table), [chunk.stop - chunk.start for chunk in chunks]
    pages = np.zeros((n + len(chunks), table.pages.shape[1]), np.int32)
    pages[:n] = rows.pages
    for place, chunk in enumerate(chunks, start=n):
        pages[place, : len(chunk.group.pages)] = chunk.group.pages
    numbers = np.repeat(np.arange(n, n + len(chunks), dtype=np.int32), lengths)
    adapters = (*(rows.adapters or ("",) * n), *(chunk.group.members[0].request.adapter for chunk in chunks))
    return ForwardBatch(
        tokens=np.concatenate([rows.tokens, *(chunk.group.text[chunk.start : chunk.stop] for chunk in chunks)]),
        positions=np.concatenate(
            [rows.positions, *(np.arange(chunk.start, chunk.stop, dtype=np.int32) for chunk in chunks)]
        ),
        sequence=np.concatenate([rows.sequence, numbers]),
        pages=pages,
        draws=_draws(rows.draws, n, chunks),
        adapters=adapters if any(adapters) else None,
    )


def _draws(rows: SamplerInput, tokens: int, chunks: list[PromptChunk]) -> SamplerInput:
    at: list[NDArray[np.int32]] = [rows.token_index]
    forced: list[NDArray[np.int32]] = [rows.forced_token]
    uniform: list[float] = []
    owners: list[SampleState] = []
    for chunk in chunks:
        fill, count = chunk.group, chunk.draws
        if fill.tokens_to_score is None:
            at.append(np.full(count, tokens + chunk.stop - chunk.start - 1, np.int32))
            forced.append(np.full(count, DRAW, np.int32))
            uniform.extend(float(sample.stream(len(sample.tokens) + 1)[-1]) for sample in chunk.drawing_samples)
        else:
            first = tokens + chunk.first_draw - chunk.start
            at.append(np.arange(first, first + count, dtype=np.int32))
            begin = chunk.first_draw - fill.first_draw
            forced.append(fill.tokens_to_score[begin : begin + count])
            uniform.extend([0.0] * count)
        owners.append(fill.members[0])
        tokens += chunk.stop - chunk.start
    asked, counts = [one.request.sampling for one in owners], [chunk.draws for chunk in chunks]  # one request a text
    return SamplerInput(
        token_index=np.concatenate(at),
        forced_token=np.concatenate(forced),
        uniform=np.concatenate([rows.uniform, np.array(uniform, np.float64)]),
        temperature=_with(rows.temperature, [one.temperature for one in asked], counts),
        top_k=_with(rows.top_k, [one.top_k for one in asked], counts),
        top_p=_with(rows.top_p, [one.top_p for one in asked], counts),
        min_p=_with(rows.min_p, [one.min_p for one in asked], counts),
        greedy=_with(rows.greedy, [one.greedy for one in asked], counts),
        top_logprobs=_top_logprobs(rows, [one.top_logprobs for one in asked], counts),
        allowed=_allowed(rows, chunks),
    )


def _allowed(rows: SamplerInput, chunks: list[PromptChunk]) -> NDArray[np.uint8] | None:
    """The rows' allowed tokens, and behind them those of each first or scored token of `chunks`."""
    parts = [
        (chunk.draws, None if chunk.group.tokens_to_score is not None else _allowed_tokens(chunk.drawing_samples))
        for chunk in chunks
    ]
    parts = [(len(rows.token_index), rows.allowed), *parts]
    width = next((bits.shape[1] for _, bits in parts if bits is not None), None)
    if width is None:
        return None
    return np.concatenate([np.full((n, width), 255, np.uint8) if bits is None else bits for n, bits in parts])


def _top_logprobs(rows: SamplerInput, values: list[float], counts: list[int]) -> NDArray[np.int32] | None:
    if rows.top_logprobs is None and not any(values):
        return None
    own = np.zeros(len(rows.token_index), np.int32) if rows.top_logprobs is None else rows.top_logprobs
    return _with(own, values, counts)


def _with(rows: NDArray[_Number], values: list[float], counts: list[int]) -> NDArray[_Number]:
    """The rows' settings, and behind them each of `values` as often as its text draws."""
    return np.concatenate([rows, np.repeat(np.array(values, rows.dtype), counts)])
