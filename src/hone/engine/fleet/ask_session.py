"""Asks of a fleet, answered by one engine: the part that replicas of hone's engine and clients of servers share."""

import threading
from dataclasses import replace

from hone.core.fleet import AskAnswers, GenerationAsk, pack_answers
from hone.core.generation import Completion, GenerationEngine, GenerationStats, Request


class AskRefusedError(Exception):
    """The replica has other weights than those that were asked for, or the ask was cancelled; it has no answer."""


class AskSession:
    """Asks under way in one engine. `answer` may be called by several threads."""

    def __init__(self, engine: GenerationEngine) -> None:
        self.engine = engine
        self.passes = 0
        """Number of completed waits for a pass; it grows while the engine works."""
        self._asks: dict[int, frozenset[str]] = {}
        self._turns: dict[tuple[str, int], str] = {}
        """(Request, sample) -> name here of the request that last answered it, for the turn after."""
        self._stats_lock = threading.Lock()

    def answer(self, ask: GenerationAsk) -> AskAnswers:
        """Answer an ask.

        Raises AskRefusedError for another version than the engine's, DivergedError and DataError as the engine does.
        """
        if self.engine.version != ask.version:
            raise AskRefusedError(f"version {ask.version} was asked for, and this replica has {self.engine.version}")
        here = replace(ask, requests=tuple(self._named(ask, place) for place in range(len(ask.requests))))
        ids = self._asks[ask.number] = frozenset(request.id for request in here.requests)
        self.engine.cancel(ids)  # the same ask was given here before, and its answer was lost on its way
        scores = self.engine.score(ask.texts) if ask.texts else []
        done: list[Completion] = []
        self.engine.submit(here.requests, round=ask.round)
        while (completion := self.engine.next_completion(ids, wake=self._count_pass)) is not None:
            done.append(completion)
        self._asks.pop(ask.number, None)
        if len(done) != sum(request.samples for request in ask.requests):
            raise AskRefusedError(f"ask {ask.number} was cancelled")
        return pack_answers(here, done, stats=self._take_stats(), scores=scores)

    def cancel(self, number: int) -> None:
        """Drop an ask, whose `answer` then raises AskRefusedError."""
        if (ids := self._asks.pop(number, None)) is not None:
            self.engine.cancel(ids)

    def forget_turns(self) -> None:
        """Forget which request answered which turn: new weights read every text anew."""
        self._turns.clear()

    def _named(self, ask: GenerationAsk, place: int) -> Request:
        """A request under a name of its own: turns of one conversation share an id, and may be here at the same time.
        Its draws are keyed as before."""
        request = ask.requests[place]
        name = f"{request.id} (ask {ask.number}.{place})"
        after = None if request.after is None else self._turns.get((request.after, request.first_sample))
        for sample in range(request.first_sample, request.first_sample + request.samples):
            if request.keep_s:
                self._turns[request.id, sample] = name
        return replace(request, id=name, draw_id=request.draw_id or request.id, after=after)

    def _count_pass(self) -> bool:
        self.passes += 1
        return False

    def _take_stats(self) -> GenerationStats:
        with self._stats_lock:
            stats = self.engine.stats
            self.engine.reset_stats()
        return stats
