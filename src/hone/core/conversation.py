"""Transcripts of conversations: sampled and environment tokens, turn after turn, as columns of `Episodes`.

A conversation begins with its prompt. Each turn is one sampled answer; the environment may add tokens after it (what a
chat template writes between turns, tool output). Only sampled tokens are decisions: no other token reaches a loss.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes, Routing, Transcript, concatenate_routing
from hone.core.generation import Completion
from hone.core.ragged import Ints, concatenate_rows, empty_rows, offsets_of, ranges

Message: TypeAlias = Mapping[str, object]
"""`{"role": ..., "content": ...}`, and other fields that the chat template reads."""

Turn: TypeAlias = tuple[str, str]
"""Speaker (`policy` or `environment`) and text."""


def with_system(messages: Sequence[Message], system: str) -> list[dict[str, object]]:
    """The messages behind a system message, if there is a text for one and they begin with none."""
    own = bool(messages) and messages[0].get("role") in ("system", "developer")
    first = [{"role": "system", "content": system}] if system and not own else []
    return [dict(message) for message in [*first, *messages]]


@dataclass(slots=True, eq=False)
class TranscriptBuilder:
    """One conversation while it is being written: its prompt, and answers and environment tokens in turn."""

    prompt: NDArray[np.int32]
    answers: list[Completion] = field(default_factory=list[Completion])
    environment: list[NDArray[np.int32]] = field(default_factory=list[NDArray[np.int32]])
    """Tokens that the environment wrote after each answer; none after the last one."""
    truncated: bool = False
    """A limit ended the conversation."""

    def append_sampled(self, answer: Completion) -> None:
        """Append the answer of one turn: tokens, log-probabilities and versions as they were sampled."""
        if len(self.answers) > len(self.environment):
            raise ValueError("two answers in a row; append_environment comes between them")
        self.answers.append(answer)
        self.truncated = answer.finish_reason == "length"

    def append_environment(self, tokens: NDArray[np.int32]) -> None:
        """Append tokens `[n]` that the environment wrote after the last answer."""
        if len(self.answers) != len(self.environment) + 1:
            raise ValueError("environment tokens need an answer before them")
        self.environment.append(tokens)

    @property
    def turns(self) -> int:
        """Number of sampled answers."""
        return len(self.answers)

    @property
    def pieces(self) -> list[NDArray[np.int32]]:
        """Prompt, answer, environment tokens, answer ... in their order."""
        pieces = [self.prompt]
        for place, answer in enumerate(self.answers):
            pieces.append(answer.tokens)
            if place < len(self.environment):
                pieces.append(self.environment[place])
        return pieces

    @property
    def tokens(self) -> NDArray[np.int32]:
        """`[n]` the whole conversation so far; the prompt of the next turn."""
        return np.concatenate(self.pieces).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationColumns:
    """Columns of E conversations with N sampled tokens in T turns."""

    transcript: Transcript
    offsets: Ints
    """`[E+1]` sampled tokens of each conversation."""
    turn_offsets: Ints
    """`[E+1]` turns of each conversation."""
    turn_ends: Ints
    """`[T]` last decision of each turn, which receives the turn's reward."""
    turn: NDArray[np.int32]
    """`[N]` turn of its row in which each token was sampled, from 0."""
    chosen: NDArray[np.int32]
    logp: NDArray[np.float32]
    """`[N]` nats, of the distribution that was drawn from where tokens were cut off."""
    version: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    """`[E]` a limit ended the conversation."""


def build_columns(conversations: Sequence[TranscriptBuilder]) -> ConversationColumns:
    """Columns of finished conversations, in their order; each has at least one answer."""
    answers = [answer for one in conversations for answer in one.answers]
    pieces = [piece for one in conversations for piece in one.pieces]
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    # Pieces alternate: a prompt or environment tokens, then an answer. The last one is an answer, or what follows it.
    counts = np.array([1 + len(one.answers) + len(one.environment) for one in conversations], np.int64)
    piece_offsets = offsets_of(counts)
    sampled = (np.arange(len(pieces)) - np.repeat(piece_offsets[:-1], counts)) % 2 == 1
    turn_offsets = offsets_of(np.array([one.turns for one in conversations], np.int64))
    ends = np.cumsum(lengths[sampled])
    numbers = [place for one in conversations for place in range(one.turns)]
    return ConversationColumns(
        transcript=Transcript(
            tokens=np.concatenate(pieces).astype(np.int32),
            offsets=offsets_of(lengths)[piece_offsets],
            at=ranges((np.cumsum(lengths) - lengths)[sampled], lengths[sampled]),
            kept=None
            if all(one.sampling_mask is None for one in answers)
            else concatenate_rows([one.sampling_mask or empty_rows(len(one.tokens)) for one in answers]),
            routing=_routing(conversations),
        ),
        offsets=np.concatenate([[0], ends])[turn_offsets],
        turn_offsets=turn_offsets,
        turn_ends=ends - 1,
        turn=np.repeat(np.array(numbers, np.int32), lengths[sampled]),
        chosen=np.concatenate([answer.tokens for answer in answers]),
        # Where tokens were cut off, the policy is the distribution over the rest: the trainer computes the same.
        logp=np.concatenate([one.logp if one.sampling_mask is None else one.sampled_logp for one in answers]),
        version=np.concatenate([answer.version for answer in answers]),
        truncated=np.array([one.truncated for one in conversations], np.bool_),
    )


def text_after_prompt(
    episodes: Episodes, decode: Callable[[NDArray[np.int32]], str]
) -> list[tuple[str, tuple[Turn, ...]]]:
    """Text after the prompt of each episode, and its turns; no turns for a conversation of one answer."""
    texts: list[tuple[str, tuple[Turn, ...]]] = []
    seen = episodes.transcript
    for place in range(len(episodes)):
        begin, end = int(seen.offsets[place]), int(seen.offsets[place + 1])
        at = seen.at[episodes.offsets[place] : episodes.offsets[place + 1]] - begin
        turns = split_turns(seen.tokens[begin:end], at, decode)
        if len(turns) > 1:
            texts.append((decode(seen.tokens[begin + at[0] : end]), turns))
        else:
            texts.append((next(text for _, text in turns), ()))
    return texts


def split_turns(tokens: NDArray[np.int32], at: Ints, decode: Callable[[NDArray[np.int32]], str]) -> tuple[Turn, ...]:
    """Turns after the prompt of one conversation: `tokens` `[T]`, of which those `at` `[n]` were sampled. What follows
    the last sampled token is a turn of the environment."""
    first, last = int(at[0]), int(at[-1])
    if last - first == len(at) - 1:  # one answer, as most episodes are
        cuts = [first] if last + 1 == len(tokens) else [first, last + 1]
        return tuple(
            (who, decode(tokens[begin:end]))
            for who, begin, end in zip(("policy", "environment"), cuts, [*cuts[1:], len(tokens)], strict=False)
        )
    gaps = np.flatnonzero(np.diff(at) > 1)
    # Answers and environment tokens alternate: an answer ends before a gap, and the next begins after it.
    cuts = [first, *np.stack([at[gaps] + 1, at[gaps + 1]], axis=1).reshape(-1).tolist()]
    cuts += [last + 1] * (last + 1 < len(tokens))
    pieces = np.split(tokens, cuts)[1:]
    return tuple(("environment" if n % 2 else "policy", decode(piece)) for n, piece in enumerate(pieces))


def _routing(conversations: Sequence[TranscriptBuilder]) -> Routing | None:
    """Routes of all tokens: of each token those with which it was read first."""
    if all(answer.routing is None for one in conversations for answer in one.answers):
        return None
    pieces: list[Routing | None] = []
    lengths: list[int] = []
    for one in conversations:
        known = 0
        for answer in one.answers:
            if answer.routing is not None:
                fresh = answer.routing[known:]
                pieces.append(fresh)
                lengths.append(len(fresh))
                known += len(fresh)
        pieces.append(None)  # its last token, and what the environment wrote after it, was not read
        lengths.append(sum(map(len, one.pieces)) - known)
    return concatenate_routing(pieces, lengths)


# ------------------------------------------------------------------------------------------------------ rendered chats


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """A conversation as a template writes it."""

    text: str
    plain: tuple[tuple[int, int], ...] = ()
    """Places of special tokens' names that come from the data, which are plain text."""
    generation: tuple[tuple[int, int], ...] = ()
    """Places of `{% generation %}` blocks, where they are asked for."""
    dated: bool = False
    """The template asked for the date."""

    def after(self, start: int) -> "RenderedChat":
        """The text from character `start` on."""
        spans = [
            [(max(a, start) - start, b - start) for a, b in one if b > start] for one in (self.plain, self.generation)
        ]
        return RenderedChat(text=self.text[start:], plain=tuple(spans[0]), generation=tuple(spans[1]), dated=self.dated)

    def pieces(self, start: int = 0) -> Iterator[tuple[int, str, bool]]:
        """Place and text of each piece from `start` on, and whether it is plain text only."""
        place = start
        for begin, end in [*self.plain, (len(self.text), len(self.text))]:
            if begin > place:
                yield place, self.text[place:begin], False
            if end > max(begin, place):
                yield max(begin, place), self.text[max(begin, place) : end], True
            place = max(place, end)


def _any_of(names: frozenset[str]) -> re.Pattern[str] | None:
    ordered = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


@dataclass(frozen=True)
class SpecialNames:
    """Names of the special tokens, which no data may write."""

    names: frozenset[str]
    ordinary: frozenset[str] = frozenset()
    """Those of them that a tokenizer takes for tokens in plain text, too."""

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """One of the names, the longest that fits; None without names."""
        return _any_of(self.names)

    @cached_property
    def ordinary_pattern(self) -> re.Pattern[str] | None:
        """One of the ordinary names; None without any."""
        return _any_of(self.ordinary)

    @cached_property
    def beginnings(self) -> frozenset[str]:
        return frozenset(name[:size] for name in self.names for size in range(1, len(name)))

    @cached_property
    def endings(self) -> frozenset[str]:
        return frozenset(name[size:] for name in self.names for size in range(1, len(name)))

    @cached_property
    def inside(self) -> str:
        """All names, to look parts of them up."""
        return "\0".join(sorted(self.names))

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.names), default=0)

    def guard(self, text: str, mark: str, *, inside: bool = False) -> str:
        """The text with a mark in each name, and at an end that a template could complete to one; with `inside` also in
        a text that is a part of a name."""
        if self.pattern is None or not text or text.isspace():
            return text
        marked = self.pattern.sub(lambda name: name[0][0] + mark + name[0][1:], text)
        if inside and len(text) < self.longest and text in self.inside:
            return text[0] + mark + text[1:] if len(text) > 1 else mark + text + mark
        sizes = range(1, min(self.longest, len(text) + 1))
        if any(text[-size:] in self.beginnings for size in sizes):
            marked += mark
        return mark + marked if any(text[:size] in self.endings for size in sizes) else marked

    def guard_all(self, value: object, mark: str) -> object:
        """`guard` for all texts of messages, tools or arguments, keys included; other values as JSON knows them."""
        if isinstance(value, str):
            return self.guard(str(value), mark)
        if isinstance(value, Mapping):
            pairs = cast("Mapping[object, object]", value).items()
            return {self.guard_all(key, mark): self.guard_all(item, mark) for key, item in pairs}
        if isinstance(value, list | tuple):
            return [self.guard_all(item, mark) for item in cast("Sequence[object]", value)]
        if value is None or isinstance(value, bool | int | float):
            return value
        plain = cast(object, value.item()) if isinstance(value, np.generic) else str(value)
        return self.guard_all(plain, mark)
