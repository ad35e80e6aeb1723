"""The part of a generation session that all engines share: requests under way, and completions that wait to be taken.

An engine adds what it does with queued requests: `_check`, `_queue`, `_drop` and `_step`. `_lock` guards its state.
"""

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DataError, ErrorCollector
from hone.core.generation import Completion, FinishReason, GenerationStats, Request, SamplingParams, ScoreRequest
from hone.engine.grammar import GrammarCompiler
from hone.engine.samples import RunningBatch, SampleState

_POLL_S: Final = 0.005
"""Interval at which the stream of a paused engine checks whether it may go on."""


class EngineSession(ABC):
    """Implements `core.generation.GenerationSession` and `stream` for engines."""

    def __init__(self, lock: AbstractContextManager[bool] | threading.Condition, *, slots: int, pages: int = 0) -> None:
        """`lock`: reentrant."""
        self._lock = lock
        self._size = slots, pages
        self._done: deque[Completion] = deque()
        self._in_flight: set[tuple[str, int]] = set()
        """(request id, sample) of each completion that was not taken."""
        self._paused = False
        self.reset_stats()

    @property
    def stats(self) -> GenerationStats:
        """Statistics since `reset_stats`. A server's passes, pages and cache are not seen from here."""
        return self._stats

    def reset_stats(self) -> None:
        """Begin the statistics anew."""
        self._stats = GenerationStats(slots=self._size[0], pages=self._size[1])

    def metrics(self) -> Metrics:
        """Metrics of the engine's own since `reset_stats`."""
        return {}

    def summary(self) -> str:
        """A sentence on the whole run; empty if there is nothing to say."""
        return ""

    def close(self) -> None:
        """Drop all requests, and end what the engine has open elsewhere."""
        self.cancel()

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        """Queue `requests`, also while others are being written. Draws are keyed by (seed, `round`, request id,
        sample, turn), so that ids need to be unique within a round only.

        Raises, before any work and with every fault, DataError for requests and ConfigError for settings that cannot
        be run; ValueError for stop strings without a decode function; ServerError where a server cannot be asked.
        """
        self._check(requests)
        names = [(one.id, one.first_sample + place) for one in requests for place in range(one.samples)]
        with self._entering():
            if taken := sorted({id_ for id_, sample in names if (id_, sample) in self._in_flight}):
                raise DataError(*(f"request {id_!r} is being written already; give it another id" for id_ in taken))
            self._in_flight.update(names)
            self._queue(requests, round)

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        """Run until one of these requests (None: any) has a completion; None when none of them is left, or once `wake`
        is true, which is asked before each pass.

        Raises RuntimeError while the engine is paused, DivergedError when the model's logits are not finite or the
        weights are not the trainer's, ServerError when a server refuses, cannot be understood or stays away.
        """
        while (completion := self._take_done(request_ids)) is None and self.has_requests(request_ids):
            if wake is not None and wake():
                return None
            self._raise_if_paused()
            self._step()
        return completion

    async def stream(self) -> AsyncIterator[Completion]:
        """Completions as they finish, until nothing is queued or running. Passes run in a thread, so that rewards
        and other clients go on meanwhile. While the engine is paused the stream waits."""
        while self.has_requests():
            if (completion := self._take_done(None)) is not None:
                yield completion
            elif self._paused:
                await asyncio.sleep(_POLL_S)
            else:
                await asyncio.to_thread(self._step)

    def has_requests(self, request_ids: Collection[str] | None = None) -> bool:
        """Return whether some of these requests (None: any) have completions that were not taken."""
        with self._entering():
            return any(request_ids is None or id_ in request_ids for id_, _ in self._in_flight)

    @property
    def paused(self) -> bool:
        """True between `pause` and `resume`."""
        return self._paused

    def poll(self, request_ids: Collection[str] | None = None) -> Completion | None:
        """Take a completion of these requests (None: of any) that is finished already, without running a pass."""
        return self._take_done(request_ids)

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        """Drop these requests (None: all): queued, running, or finished and not taken. The others go on."""
        with self._entering():
            self._drop(request_ids)
            self._forget(request_ids)

    def _entering(self) -> AbstractContextManager[object]:
        """The lock around the session's state."""
        return self._lock

    def _raise_if_paused(self) -> None:
        if self._paused:
            raise RuntimeError("this engine is paused; resume it first")

    def _forget(self, request_ids: Collection[str] | None = None) -> None:
        if request_ids is None:
            self._in_flight.clear()
            self._done.clear()
        else:
            self._in_flight = {name for name in self._in_flight if name[0] not in request_ids}
            self._done = deque(one for one in self._done if one.request_id not in request_ids)

    def _take_done(self, request_ids: Collection[str] | None) -> Completion | None:
        with self._entering():
            for place, one in enumerate(self._done):
                if request_ids is None or one.request_id in request_ids:
                    del self._done[place]
                    self._in_flight.discard((one.request_id, one.sample_index))
                    return one
        return None

    @abstractmethod
    def _check(self, requests: Sequence[Request]) -> None:
        """Raise for requests that cannot be run."""

    @abstractmethod
    def _queue(self, requests: Sequence[Request], number: int) -> None:
        """Queue the requests of round `number`."""

    @abstractmethod
    def _drop(self, request_ids: Collection[str] | None) -> None:
        """Drop queued and running samples of these requests (None: of all)."""

    @abstractmethod
    def _step(self) -> None:
        """Go on until something finishes or one pass is over; completions go to `_done`. Does nothing while paused."""


# --------------------------------------------------------------------------------------------------- checks of requests


def _check_sampling(sampling: SamplingParams) -> None:
    """Raise ConfigError with every invalid setting."""
    faults = ErrorCollector(ConfigError)
    if sampling.max_tokens < 1:
        faults.add(f"sampling.max_tokens must be at least 1, got {sampling.max_tokens}")
    if not (math.isfinite(sampling.temperature) and sampling.temperature > 0):
        hint = "; for the most likely token set greedy = true" if sampling.temperature == 0 else ""
        faults.add(f"sampling.temperature must be a finite number > 0, got {sampling.temperature}{hint}")
    if sampling.top_k < 0:
        faults.add(f"sampling.top_k must be 0 (off) or more, got {sampling.top_k}")
    if not 0 < sampling.top_p <= 1:
        faults.add(f"sampling.top_p must be in (0, 1], got {sampling.top_p}")
    if not 0 <= sampling.min_p <= 1:
        faults.add(f"sampling.min_p must be in [0, 1], got {sampling.min_p}")
    if sampling.top_logprobs < 0:
        faults.add(f"sampling.top_logprobs must be 0 (none) or more, got {sampling.top_logprobs}")
    if sampling.stop_tokens is not None and min(sampling.stop_tokens, default=0) < 0:
        faults.add(f"sampling.stop_tokens are token ids, 0 or more, got {min(sampling.stop_tokens)}")
    if "" in sampling.stop:
        faults.add("sampling.stop contains an empty string, which would end every completion at once")
    faults.raise_if_any()


def check_requests(requests: Sequence[Request], *, context: int, vocab: int) -> None:
    """Raise DataError naming every invalid request: id, fault, fix.

    `context` and `vocab`: most positions of a sequence, and number of token ids. ConfigError for settings.
    """
    for sampling in dict.fromkeys(request.sampling for request in requests):
        _check_sampling(sampling)
    faults = ErrorCollector(DataError)
    seen: set[str] = set()
    for request in requests:
        name, prompt, most = f"request {request.id!r}", request.prompt, request.sampling.max_tokens
        if request.id in seen:
            faults.add(f"{name}: the id is given twice in one call; its samples would be equal")
        seen.add(request.id)
        if request.samples < 1:
            faults.add(f"{name}: samples must be at least 1, got {request.samples}")
        if not (math.isfinite(request.keep_s) and request.keep_s >= 0):
            faults.add(f"{name}: keep_s must be a finite number of seconds, 0 or more, got {request.keep_s}")
        if not len(prompt):
            faults.add(f"{name}: the prompt is empty; it needs at least one token")
            continue
        if len(prompt) + most > context:
            faults.add(
                f"{name}: a prompt of {len(prompt)} tokens and max_tokens {most} do not fit in {context} positions; "
                "shorten or drop the prompt, or lower max_tokens"
            )
        if prompt.min() < 0 or prompt.max() >= vocab:
            faults.add(f"{name}: token ids run from {prompt.min()} to {prompt.max()}; the model knows 0 to {vocab - 1}")
    faults.raise_if_any()


def check_adapters(names: Iterable[str], known: Container[str]) -> None:
    """Raise DataError naming every unmerged adapter that is not `known`; "" is none."""
    if unknown := sorted({name for name in names if name and name not in known}):
        raise DataError(f"no adapter {', '.join(map(repr, unknown))} was added to this engine")


def check_score_requests(texts: Sequence[ScoreRequest], *, context: int, vocab: int) -> None:
    """Raise DataError naming every text that cannot be scored by its place; ConfigError for settings."""
    for sampling in dict.fromkeys(text.sampling for text in texts):
        _check_sampling(sampling)
    faults = ErrorCollector(DataError)
    for place, text in enumerate(texts):
        name, asked, message = f"text {place}", text.prompt, text.tokens
        if not len(asked) or not len(message):
            faults.add(f"{name}: a prompt of {len(asked)} tokens before {len(message)}; both need at least one token")
            continue
        if len(asked) + len(message) > context:
            faults.add(f"{name}: {len(asked)} + {len(message)} tokens do not fit in {context} positions; shorten it")
        low, high = min(asked.min(), message.min()), max(asked.max(), message.max())
        if low < 0 or high >= vocab:
            faults.add(f"{name}: token ids run from {low} to {high}; the model knows 0 to {vocab - 1}")
    faults.raise_if_any()


# ----------------------------------------------------------------------------------------------------------- stop rules


Decode = Callable[[Sequence[int]], str]

_MARGIN: Final = 32
"""Tokens decoded besides those that a stop string may span, so that the border of the window does not matter."""
_BROKEN: Final = "\N{REPLACEMENT CHARACTER}"
"""Decoded text of a token that is an incomplete character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerRules:
    """The tokenizer's part in stopping conditions."""

    eos: Sequence[int]
    """Each of these tokens ends an answer."""
    vocab: int
    """Ids from there on are neither accepted nor sampled."""
    decode: Decode | None = None
    """Token ids -> text; needed for stop strings only."""
    grammars: GrammarCompiler | None = None
    """Needed for answers with a grammar only."""


def _is_stuck(sample: SampleState) -> bool:
    """True where an answer ended because no token continued its text in its grammar."""
    return sample.grammar is not None and bool(sample.grammar.stuck)


class StopRules:
    """Rules that decide when a sample ends. A text is decoded only when its last token could complete a stop string."""

    def __init__(self, text: TokenizerRules) -> None:
        self._is_eos = np.zeros(text.vocab, np.bool_)
        self._is_eos[[token for token in text.eos if token < text.vocab]] = True
        self._decode, self._vocab = text.decode, text.vocab
        self._could: dict[tuple[str, ...], NDArray[np.int8]] = {}
        """Table per set of stop strings and token: 1 if the token may complete one, 0 if it cannot, -1 if unknown."""

    def finished_rows(self, table: RunningBatch) -> list[tuple[int, FinishReason]]:
        """Rows that end with their last token, with the reason."""
        count = len(table)
        eos = self._is_eos[table.last_token[:count]]
        for row in np.flatnonzero(table.has_stop_tokens[:count]).tolist():
            eos[row] = self._ends(int(table.last_token[row]), table.samples[row].request.sampling)
        full = table.at_token_limit()
        result: dict[int, FinishReason] = {}
        if bool(table.has_stop_strings[:count].any()):
            for row in np.flatnonzero(table.has_stop_strings[:count] & ~eos).tolist():
                stops = table.samples[row].request.sampling.stop
                if (
                    self._completes(int(table.last_token[row]), stops)
                    and self.characters_after_stop(stops, table.last_tokens, row) is not None
                ):
                    result[row] = "stop"
        ended = eos | full
        if bool(ended.any()):
            for row in np.flatnonzero(ended).tolist():
                ends = eos[row] and not _is_stuck(table.samples[row])
                result[row] = "eos" if ends else result.get(row, "length")
        return sorted(result.items())

    def finish_of(self, sample: SampleState) -> FinishReason | None:
        """Reason for which a sample ends, or None."""
        token, stops = int(sample.tokens[-1]), sample.request.sampling.stop
        if self._ends(token, sample.request.sampling):
            return "length" if _is_stuck(sample) else "eos"
        if stops and self._completes(token, stops) and self.trailing_characters(sample) is not None:
            return "stop"
        return "length" if len(sample.tokens) >= sample.request.sampling.max_tokens else None

    def _ends(self, token: int, sampling: SamplingParams) -> bool:
        return bool(self._is_eos[token]) if sampling.stop_tokens is None else token in sampling.stop_tokens

    def trailing_characters(self, sample: SampleState) -> int | None:
        """Characters of an ended sample behind its stop string; None when it holds none near its end."""
        stops = sample.request.sampling.stop
        return self.characters_after_stop(stops, lambda _, count: sample.tokens[-count:], 0) if stops else None

    def characters_after_stop(
        self, stops: tuple[str, ...], last: Callable[[int, int], NDArray[np.int32]], row: int
    ) -> int | None:
        """Characters behind the first stop string in the end of a text; None if there is none."""
        assert self._decode is not None
        # Except for special tokens, a token has at least one byte: a stop string spans no more tokens than this.
        window = max(len(stop.encode()) for stop in stops) + _MARGIN
        text = self._decode(last(row, window).tolist())
        ends = [place + len(stop) for stop in stops if (place := text.find(stop)) >= 0]
        return len(text) - min(ends) if ends else None

    def _completes(self, token: int, stops: tuple[str, ...]) -> bool:
        could = self._could.get(stops)
        if could is None:
            could = self._could[stops] = np.full(self._vocab, -1, np.int8)
        if could[token] < 0:
            could[token] = self._may_complete(token, stops)
        return bool(could[token])

    def _may_complete(self, token: int, stops: tuple[str, ...]) -> bool:
        """A token completes a stop string only by bringing its last character."""
        assert self._decode is not None
        # Twice, because some tokenizers drop a leading space of a text.
        text = self._decode([token]) + self._decode([token, token])
        return not text or _BROKEN in text or any(stop[-1] in text or stop[-1].isspace() for stop in stops)
