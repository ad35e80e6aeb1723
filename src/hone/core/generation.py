"""Requests to a token generator, completions, and the session protocol between engines, environments and evaluation."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.ragged import RaggedArray

FinishReason = Literal["eos", "stop", "length"]
OnPublish = Literal["finish", "recompute", "keep"]
"""What becomes of answers that are being written when new weights are published. `finish`: they end under the old
weights first. `recompute`: they go on under the new weights, which read the whole text so far anew. `keep`: they go on
under the new weights over keys and values of the old ones: cheaper, and drawn from neither policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. The defaults sample from the policy itself."""

    max_tokens: int
    temperature: float = 1.0
    """The policy is softmax(logits / temperature), for the engine and for the trainer alike."""
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    """1: off. Of what top-k left, the likeliest tokens until their probabilities reach it."""
    min_p: float = 0.0
    """0: off. Of what is left, the tokens with at least this share of the likeliest one's probability."""
    greedy: bool = False
    stop: tuple[str, ...] = ()
    """The token that completes a stop string is the last one kept."""

    @property
    def truncates(self) -> bool:
        """Whether some tokens can never be drawn."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how many answers to it are wanted; its samples share the prompt's prefill."""

    id: str
    """Keys the random draws of its samples. A session refuses a sample of an id that it is writing already."""
    prompt: NDArray[np.int32]
    samples: int
    sampling: SamplingParams
    expected_tokens: int = 0
    """Expected length of its answers; an engine may begin the longest first. It never changes the result."""
    first_sample: int = 0
    """Number of its first sample: a request for the next turn of one sample has `samples = 1`."""
    turn: int = 0
    """Turn of the conversation. Draws are keyed by id, sample and turn."""


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
    """`[n]` nats, of the truncated distribution (top-k, top-p, min-p) that was really drawn from; `logp -
    sampled_logp` is the log of the mass that was left."""
    version: NDArray[np.int32]
    """`[n]` version of the policy that drew each token."""
    finish_reason: FinishReason
    sampling_mask: RaggedArray | None = None
    """`[n]` rows, ascending: the tokens that top-k, top-p and min-p left at each draw. None where nothing was
    truncated."""
    trailing_characters: int = 0
    """Characters that the last token carries behind the stop string; they are no part of the answer."""
    turn: int = 0
    """Turn of the request."""

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
    """Its temperature and truncation; the rest has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The answer to a `ScoreRequest`."""

    logp: NDArray[np.float32]
    """`[n]` nats, of the whole policy."""
    sampled_logp: NDArray[np.float32]
    """`[n]` nats, of what truncation left; -inf for a token that it cut off."""


@dataclass(slots=True, kw_only=True)
class GenerationStats:
    """What an engine did since it was last asked to begin anew. Time that a caller spends between answers is not
    counted."""

    slots: int = 0
    """Answers that may be written at the same time."""
    pages: int = 0
    """Pages of keys and values that there are."""
    tokens: int = 0
    """Drawn."""
    prefill_tokens: int = 0
    """Read: prompts, and texts that had to be read again."""
    cached_tokens: int = 0
    """Not read, because an earlier prompt began alike."""
    scored_tokens: int = 0
    steps: int = 0
    """Passes over the model in which an answer went on."""
    row_steps: int = 0
    """Sum of the answers being written over those passes."""
    page_steps: int = 0
    """Sum of the pages in use over those passes, texts in the cache among them."""
    preempted: int = 0
    """Answers that had to give up their pages, and were taken up again."""
    stale_tokens: int = 0
    """Tokens drawn with keys and values of older weights before them (`keep`)."""
    total_s: float = 0.0
    """In all."""
    runner_s: float = 0.0
    """Seconds of it in passes over the model; the rest is bookkeeping."""
    prefill_s: float = 0.0
    """Share of `runner_s` for prompt tokens, which are read rather than drawn."""
    idle_slot_s: float = 0.0
    """Slot-seconds without an answer to write while others were being written."""
    tail_slot_s: float = 0.0
    """Share of `idle_slot_s` after the last answer began: the cost of waiting for the longest."""

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
        """Share of the tokens before answers that had not to be read, 0 to 1."""
        asked = self.cached_tokens + self.prefill_tokens
        return self.cached_tokens / asked if asked else 0.0


class GenerationSession(Protocol):
    """A generator that takes requests at any time and hands completions out one by one."""

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        """Queue requests, also while others are being written. Draws are keyed by (seed, `round`, id, sample, turn).

        Raises DataError and ConfigError, with every fault, before any work.
        """
        ...

    def next_completion(self, request_ids: Collection[str] | None = None) -> Completion | None:
        """Wait for the next completion of these requests (None: of any); None when none of them is left."""
        ...

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        """Drop these requests (None: all), with completions that were not taken."""
        ...

    def reset_stats(self) -> None:
        """Begin the statistics anew."""
        ...


class GenerationEngine(GenerationSession, Protocol):
    """A session over weights that change: the embedded engine, or a client of a server."""

    @property
    def version(self) -> int:
        """Version of the weights that draw."""
        ...

    @property
    def stats(self) -> GenerationStats: ...

    def stream(self) -> AsyncIterator[Completion]:
        """Completions as they finish, until nothing is being written; others may submit meanwhile."""
        ...

    def score(self, texts: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Log-probabilities of given tokens, by the arithmetic that sampling uses."""
        ...

    def publish(self, version: int) -> None:
        """The weights changed: later tokens are drawn by `version`."""
        ...

    def pause(self) -> None:
        """Draw nothing until `resume`."""
        ...

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

    The session's statistics begin anew. Raises as `submit` does, the iterator as `next_completion`.
    """
    session.submit(requests, round=round)
    session.reset_stats()
    return CompletionIterator(session, frozenset(request.id for request in requests))
