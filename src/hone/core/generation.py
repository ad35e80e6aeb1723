"""Requests to a token generator, completions, and the session protocol between engines, environments and evaluation."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Routing
from hone.core.ragged import RaggedArray

FinishReason = Literal["eos", "stop", "length"]
OnPublish = Literal["finish", "recompute", "keep"]
"""Treatment of unfinished answers when new weights are published. `finish`: they are completed with the old weights
first. `recompute`: they continue with the new weights, and the KV cache is recomputed. `keep`: they continue with
the new weights and the old KV cache: cheaper, but sampled from neither policy."""


GrammarKind: TypeAlias = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The texts that an answer may be: tokens that cannot lead to one of them have probability 0."""

    kind: GrammarKind
    text: str
    """The schema, the regular expression, or the grammar: in Lark's form, or with `::=` as in llama.cpp's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters. The defaults sample from the policy itself."""

    max_tokens: int
    temperature: float = 1.0
    """The policy is softmax(logits / temperature), for the engine and for the trainer alike."""
    top_k: int = 0
    """Keep the k most likely tokens; 0: off."""
    top_p: float = 1.0
    """Nucleus sampling: keep the smallest set of most likely tokens with this probability, after top-k; 1: off."""
    min_p: float = 0.0
    """Keep the tokens with at least this share of the most likely token's probability, after top-k and top-p; 0:
    off."""
    greedy: bool = False
    stop: tuple[str, ...] = ()
    """The token that completes a stop string is the last one kept."""
    stop_tokens: tuple[int, ...] | None = None
    """Tokens that end an answer in place of the tokenizer's end tokens; empty: none does. Embedded engines only."""
    top_logprobs: int = 0
    """Record the log-probabilities of this many likeliest tokens at each position; 0: none. No draw depends on it."""

    grammar: Grammar | None = None
    """What an answer may be. It is applied to the policy first; top-k, top-p and min-p to what it leaves."""

    @property
    def truncates(self) -> bool:
        """True if a grammar or truncation gives some tokens probability 0."""
        cuts = self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.grammar is not None
        return not self.greedy and cuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and the number of answers to sample; the samples share the prompt's prefill."""

    id: str
    """Key of the random draws of its samples. A session rejects a sample that it is already generating."""
    prompt: NDArray[np.int32]
    samples: int
    sampling: SamplingParams
    expected_tokens: int = 0
    """Expected length of its answers; an engine may begin the longest first. It never changes the result."""
    first_sample: int = 0
    """Number of its first sample: a request for the next turn of one sample has `samples = 1`."""
    turn: int = 0
    """Turn of the conversation. Draws are keyed by id, sample and turn."""
    after: str | None = None
    """Id of the request of the turn before, whose sample `first_sample` this one goes on from: an engine that keeps
    that turn (`keep_s`) reads the new tokens only. It never changes the result."""
    keep_s: float = 0.0
    """Seconds for which an engine keeps what it computed for each of its answers, for a request `after` it; under
    pressure, and when weights are published, they go earlier. 0: no longer than any text."""
    draw_id: str = ""
    """Key of the draws in place of `id`: two requests in progress with one key get the same answers. Empty: `id`."""
    adapter: str = ""
    """Name of the adapter that the engine samples with (`EmbeddedEngine.add_adapter`); empty: none."""

    @property
    def draw_key(self) -> tuple[int | str, ...]:
        """Key of its draws within a round; the first turn is keyed by the id alone."""
        name = self.draw_id or self.id
        return (name, "turn", self.turn) if self.turn else (name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeliestTokens:
    """The k likeliest next tokens at n positions, the likeliest first; of equally likely ones the smaller id first."""

    tokens: NDArray[np.int32]
    """`[n, k]`."""
    logp: NDArray[np.float32]
    """`[n, k]` nats, of the whole policy softmax(logits / temperature)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished answer of n tokens."""

    request_id: str
    sample_index: int
    tokens: NDArray[np.int32]
    """`[n]`, the end-of-sequence token included when it was drawn."""
    logp: NDArray[np.float32]
    """`[n]` nats, of the whole policy softmax(logits / temperature)."""
    sampled_logp: NDArray[np.float32]
    """`[n]` nats, of the truncated distribution (grammar, top-k, top-p, min-p) that tokens were sampled from; `logp -
    sampled_logp` is the log of the remaining probability mass."""
    version: NDArray[np.int32]
    """`[n]` version of the policy that drew each token."""
    finish_reason: FinishReason
    sampling_mask: RaggedArray | None = None
    """`[n]` rows, ascending: the tokens that remained after grammar, top-k, top-p and min-p at each draw; where more
    than half did, -1 and the tokens that did not. None without truncation."""
    trailing_characters: int = 0
    """Number of characters of the last token after the stop string; they are not part of the answer."""
    turn: int = 0
    """Turn of the request."""
    routing: Routing | None = None
    """`[P + n - 1, L, k]` experts that the P tokens of the prompt and those of the answer went to (the last one was not
    read); of a token that was read again, those with which its successor was drawn. None: a dense model, or a server
    that does not say."""
    likeliest: LikeliestTokens | None = None
    """`[n, k]` with `sampling.top_logprobs = k`."""
    reread_at: tuple[int, ...] = ()
    """Tokens before which its text was read again by newer weights (with `keep` only where memory was short)."""

    def text(self, decode: Callable[[NDArray[np.int32]], str]) -> str:
        """The answer as a person reads it, up to the end of its stop string."""
        whole = decode(self.tokens)
        return whole[: len(whole) - self.trailing_characters]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """A text to be scored: how likely are `tokens` after `prompt`?"""

    prompt: NDArray[np.int32]
    """`[P]`, at least one token."""
    tokens: NDArray[np.int32]
    """`[n]`, at least one token."""
    sampling: SamplingParams
    """Its temperature, truncation and `top_logprobs`; the rest has no effect."""
    adapter: str = ""
    """As of a `Request`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The answer to a `ScoreRequest`."""

    logp: NDArray[np.float32]
    """`[n]` nats, of the whole policy."""
    sampled_logp: NDArray[np.float32]
    """`[n]` nats, of the truncated distribution; -inf for a token that truncation removed."""
    likeliest: LikeliestTokens | None = None
    """`[n, k]` with `sampling.top_logprobs = k`."""


@dataclass(slots=True, kw_only=True)
class GenerationStats:
    """Counters of an engine since the last reset. Time that a caller spends between answers is not counted."""

    slots: int = 0
    """Largest number of answers generated at the same time."""
    pages: int = 0
    """Number of pages of the KV cache."""
    tokens: int = 0
    """Sampled tokens."""
    prefill_tokens: int = 0
    """Prefilled tokens: prompts, and texts after a preemption or a publication."""
    cached_tokens: int = 0
    """Tokens taken from the prefix cache instead of being prefilled."""
    scored_tokens: int = 0
    steps: int = 0
    """Forward passes that sampled tokens."""
    row_steps: int = 0
    """Sum over those passes of the answers in progress."""
    page_steps: int = 0
    """Sum over those passes of the pages in use, the prefix cache included."""
    preempted: int = 0
    """Preempted answers, which were recomputed later."""
    stale_tokens: int = 0
    """Tokens sampled with a KV cache of older weights (`keep`)."""
    total_s: float = 0.0
    """Total seconds."""
    runner_s: float = 0.0
    """Seconds in forward passes; the rest is bookkeeping."""
    prefill_s: float = 0.0
    """Seconds of `runner_s` for prefill."""
    idle_slot_s: float = 0.0
    """Slot-seconds without an answer while other slots were busy."""
    tail_slot_s: float = 0.0
    """Slot-seconds of `idle_slot_s` after the last answer started: the cost of waiting for the longest."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.total_s if self.total_s else 0.0

    @property
    def occupancy(self) -> float:
        """Share of the slots that a pass used, 0 to 1."""
        return self.row_steps / (self.steps * self.slots) if self.steps else 0.0

    @property
    def page_occupancy(self) -> float:
        """Share of the pages in use, 0 to 1."""
        return self.page_steps / (self.steps * self.pages) if self.steps and self.pages else 0.0

    @property
    def tail_idle(self) -> float:
        """Share of all slot-seconds that were spent waiting for the longest answers, 0 to 1."""
        return self.tail_slot_s / (self.runner_s * self.slots) if self.runner_s and self.slots else 0.0

    @property
    def prefix_hit_rate(self) -> float:
        """Share of prompt tokens taken from the prefix cache, 0 to 1."""
        asked = self.cached_tokens + self.prefill_tokens
        return self.cached_tokens / asked if asked else 0.0


class GenerationSession(Protocol):
    """A generator that accepts requests at any time and returns completions one by one."""

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        """Queue requests, also while others are in progress. Draws are keyed by (seed, `round`, id, sample, turn).

        Raises DataError and ConfigError, with every fault, before any work.
        """

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        """Wait for the next completion of these requests (None: of any); None when none of them is left, or once `wake`
        is true. An engine asks it between passes, so that a caller with other work (a world that answered) gets on."""
        ...

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        """Drop these requests (None: all), with completions that were not yet returned and turns that are kept."""

    def reset_stats(self) -> None:
        """Reset the statistics."""


class GenerationEngine(GenerationSession, Protocol):
    """A session over weights that change: the embedded engine, or a client of a server."""

    @property
    def version(self) -> int:
        """Version of the weights that sample."""
        ...

    @property
    def stats(self) -> GenerationStats: ...

    def stream(self) -> AsyncIterator[Completion]:
        """Iterate over completions as they finish, until no request is in progress; others may submit meanwhile."""
        ...

    def score(self, texts: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Compute log-probabilities of given tokens, with the arithmetic of sampling."""
        ...

    def publish(self, version: int) -> None:
        """Announce new weights: later tokens are sampled by `version`."""

    def pause(self) -> None:
        """Stop sampling until `resume`."""

    def resume(self) -> None: ...


class CompletionIterator(Iterator[Completion]):
    """Completions of some requests, in the order in which they finish. Closing or dropping it cancels the rest."""

    def __init__(self, session: GenerationSession, request_ids: frozenset[str]) -> None:
        self._session, self._request_ids = session, request_ids

    def __next__(self) -> Completion:
        completion = self._session.next_completion(self._request_ids) if self._request_ids else None
        if completion is None:
            self._request_ids = frozenset[str]()
            raise StopIteration
        return completion

    def close(self) -> None:
        """Cancel the requests that are left."""
        if self._request_ids:
            self._session.cancel(self._request_ids)
            self._request_ids = frozenset[str]()

    def __del__(self) -> None:
        self.close()


def generate(session: GenerationSession, requests: Sequence[Request], *, round: int = 0) -> CompletionIterator:
    """Submit `requests` and return an iterator over their completions; others may use the session meanwhile.

    Resets the session's statistics. Raises as `submit` does; the iterator raises as `next_completion` does.
    """
    session.submit(requests, round=round)
    session.reset_stats()
    return CompletionIterator(session, frozenset(request.id for request in requests))


# --------------------------------------------------------------------------------------------------------- interleaving


AnswerKey: TypeAlias = tuple[str, int, int]
"""Request id, turn and sample of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerVersions:
    """Versions of one answer's tokens, as runs of equal versions."""

    starts: tuple[int, ...]
    """First token of each run, ascending from 0."""
    versions: tuple[int, ...]
    """Version that sampled the tokens of each run."""
    reread_at: tuple[int, ...] = ()
    """Tokens before which the whole text was read again by newer weights."""

    def version_at(self, token: int) -> int:
        """Version that samples token number `token`."""
        return self.versions[bisect_right(self.starts, token) - 1]


def answer_versions(completion: Completion) -> AnswerVersions:
    """The versions of a completion's tokens."""
    starts = np.append(0, np.flatnonzero(np.diff(completion.version)) + 1)
    return AnswerVersions(
        starts=tuple(starts.tolist()),
        versions=tuple(completion.version[starts].tolist()),
        reread_at=completion.reread_at,
    )
