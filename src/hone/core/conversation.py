"""Transcripts of conversations: sampled and environment tokens, turn after turn, as columns of `Episodes`.

A conversation begins with its prompt. Each turn is one sampled answer; the environment may add tokens after it (what a
chat template writes between turns, tool output). Only sampled tokens are decisions: no other token reaches a loss.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes, Routing, Transcript, concatenate_routing
from hone.core.generation import Completion
from hone.core.ragged import Ints, RaggedArray, concatenate_rows, empty_rows, offsets_of, ranges

Message: TypeAlias = Mapping[str, object]
"""`{"role": ..., "content": ...}`, and other fields that the chat template reads."""

Turn: TypeAlias = tuple[str, str]
"""Speaker (`policy` or `environment`) and text."""


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
            kept=_sampling_masks(answers),
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
    gaps = np.flatnonzero(np.diff(at) > 1)
    # Answers and environment tokens alternate: an answer ends before a gap, and the next begins after it.
    cuts = [int(at[0]), *np.stack([at[gaps] + 1, at[gaps + 1]], axis=1).reshape(-1).tolist()]
    cuts += [int(at[-1]) + 1] * (int(at[-1]) + 1 < len(tokens))
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


def _sampling_masks(answers: Sequence[Completion]) -> RaggedArray | None:
    if all(one.sampling_mask is None for one in answers):
        return None
    return concatenate_rows([one.sampling_mask or empty_rows(len(one.tokens)) for one in answers])
