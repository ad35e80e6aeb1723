"""The part of a generation session that all engines share: requests under way, and completions that wait to be taken.

An engine adds what it does with queued requests: `_check`, `_queue`, `_drop` and `_step`. `_lock` guards its state.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Final

from hone.core.credit import Metrics
from hone.core.errors import DataError
from hone.core.generation import Completion, GenerationStats, Request

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
