"""The thread that runs an engine for a server: handlers submit, cancel and await; passes run here.

Other threads may use the same engine: a trainer collects while its policy is served. Each request gets its own
results, whoever ran the pass.
"""

import asyncio
import json
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from hone.core.clock import Clock, SystemClock
from hone.core.errors import DivergedError, HoneError
from hone.core.generation import Completion, Request, ScoreRequest, ScoreResult
from hone.engine.engine import DrawnToken, EmbeddedEngine
from hone.run.http.listening import SecondsHistogram, metric_lines
from hone.run.http.requests import ApiError, ClientShares
from hone.text.serving.completions.asked import AskedAnswers
from hone.text.serving.completions.replies import DONE, PromptResults, ReplyWriter, StreamedChoice

_CLOSING: Final = "the server is shutting down"
_FAILED_S: Final = 5.0
"""Seconds for which a failed pass makes a server unready."""
_PAUSED_S: Final = 0.005
"""Interval at which a paused engine is looked at again."""


AnswerEvent: TypeAlias = list[DrawnToken] | Completion | ScoreResult | Exception
"""Tokens that a pass sampled for a request, in the order of its samples; a result; or why there is none."""


AnswerQueue: TypeAlias = "asyncio.Queue[tuple[_Ticket, AnswerEvent]]"


@dataclass(slots=True, eq=False, kw_only=True)
class _Ticket:
    """A request (or a text to be scored) in progress. Tickets of one client's request share a queue of results."""

    work: Request | ScoreRequest
    queue: AnswerQueue
    loop: asyncio.AbstractEventLoop
    """The event loop of the queue."""
    place: int = 0
    """Which of the client's prompts it is about."""
    streamed: bool = False
    """Deliver tokens as they are sampled."""
    order: int = -1
    """Number of a text that the engine scores."""
    left: int = 0
    """Completions that are still to come."""

    @property
    def samples(self) -> int:
        """Rows of the engine that it may take."""
        return self.work.samples if isinstance(self.work, Request) else 1


class EngineService:
    """Owner of an engine's passes for any number of handlers. `start` it once, and `close` it."""

    def __init__(self, engine: EmbeddedEngine, clock: Clock | None = None) -> None:
        self.engine = engine
        self._clock = clock or SystemClock()
        self._failed: tuple[str, float] = ("", float("-inf"))
        """Why the latest pass that failed did, and when; empty after one that did not."""
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None
        # From here on: touched by the service's own thread only.
        self._open: dict[str, _Ticket] = {}
        self._scoring: dict[int, _Ticket] = {}
        self._held: list[_Ticket] = []
        """Tickets that wait for new weights."""
        self._replacing: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._drawn: deque[DrawnToken] = deque()
        """Tokens that passes of any thread sampled."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="hone-serve-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancel what is in progress and end the thread; whoever waits gets an exception."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    @property
    def alive(self) -> bool:
        """False once the thread has ended though nobody closed the service: no request is answered any more."""
        return self._closing or self._thread is None or self._thread.is_alive()

    def fault(self) -> str:
        """Why requests are not answered now; empty: they are. A pass that failed counts for five seconds: after that
        the next request tries."""
        if self._closing or self._thread is None:
            return _CLOSING if self._closing else "the engine has not begun"
        if not self._thread.is_alive():
            return "the engine has ended"
        words, at_s = self._failed
        return words if self._clock.monotonic_s() - at_s < _FAILED_S else ""

    def submit(self, ticket: _Ticket) -> None:
        """Begin a request. Results, faults of the request included, go to the ticket's queue. Ids are unique among the
        requests in progress. Raises HoneError once the service closes."""
        self._send(partial(self._begin, ticket))

    def cancel(self, ticket: _Ticket) -> None:
        """End a request, and free its pages; without effect if it has ended."""
        with suppress(HoneError):  # a service that closes cancels everything
            self._send(partial(self._drop, ticket))

    def replace_weights(self, load: Callable[[], None]) -> "Future[None]":
        """Call `load`, which changes the weights and publishes them, between two passes: requests in progress end
        before, under the old weights, and later ones wait. The future ends with it. Raises HoneError as `submit`."""
        done: Future[None] = Future()
        self._send(lambda: self._replacing.append((load, done)))
        return done

    # ------------------------------------------------------------------------------------ the thread

    def _send(self, command: Callable[[], None]) -> None:
        with self._wake:
            if self._closing:
                raise HoneError(_CLOSING)
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._commands or self._closing or self._busy):
                    self._wake.wait()
                if self._busy and self.engine.paused and not self._commands and not self._closing:
                    self._wake.wait(_PAUSED_S)
                commands, self._commands = self._commands, deque()
                closing = self._closing
            for command in commands:
                command()
            if closing:
                break
            if self._replacing and not (self._open or self._scoring):
                self._replace()
            elif self._open or self._scoring:
                self._pass()
        self._fail(HoneError(_CLOSING))

    @property
    def _busy(self) -> bool:
        return bool(self._open or self._scoring or self._replacing)

    def _begin(self, ticket: _Ticket) -> None:
        if self._replacing:
            self._held.append(ticket)
            return
        try:
            if isinstance(ticket.work, Request):
                self.engine.submit([ticket.work])
                ticket.left = ticket.work.samples
                self._open[ticket.work.id] = ticket
            else:
                (ticket.order,) = self.engine.submit_scores([ticket.work])
                self._scoring[ticket.order] = ticket
        except HoneError as error:
            _deliver([(ticket, error)])
            return
        if ticket.streamed:
            self.engine.observer = self._drawn.extend

    def _drop(self, ticket: _Ticket) -> None:
        self._held = [one for one in self._held if one is not ticket]
        if isinstance(ticket.work, Request):
            if self._open.get(ticket.work.id) is ticket:
                self.engine.cancel({ticket.work.id})
                self._forget(ticket)
        elif self._scoring.pop(ticket.order, None) is not None:
            self.engine.cancel_scores([ticket.order])

    def _forget(self, ticket: _Ticket) -> None:
        assert isinstance(ticket.work, Request)
        del self._open[ticket.work.id]
        if ticket.streamed and not any(one.streamed for one in self._open.values()):
            self.engine.observer = None
            self._drawn.clear()

    def _pass(self) -> None:
        try:
            self.engine.step()
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of any failure, and the server goes on
            self._failed = f"a pass of the engine failed: {type(error).__name__}", self._clock.monotonic_s()
            self._fail(error)
            return
        self._failed = "", float("-inf")
        self._hand_out()

    def _hand_out(self) -> None:
        """Deliver what finished, behind the tokens sampled until then."""
        finished: list[tuple[_Ticket, AnswerEvent]] = []
        while self._open and (completion := self.engine.poll(self._open.keys())) is not None:
            finished.append((self._open[completion.request_id], completion))
        if self._scoring:
            scored = self.engine.poll_scores(list(self._scoring))
            finished += [(self._scoring.pop(order), result) for order, result in scored.items()]
        events = [*self._take_drawn(), *finished]
        for ticket, event in finished:
            if isinstance(event, Completion):
                ticket.left -= 1
                if not ticket.left:
                    self._forget(ticket)
        _deliver(events)
        if self._open and not self.engine.has_requests(self._open.keys()):
            self._fail(HoneError("the engine dropped the request: whoever shares it cancelled everything"))

    def _take_drawn(self) -> list[tuple[_Ticket, AnswerEvent]]:
        drawn: dict[str, list[DrawnToken]] = {}
        while self._drawn:
            one = self._drawn.popleft()
            drawn.setdefault(one.request_id, []).append(one)
        tickets = ((self._open.get(name), tokens) for name, tokens in drawn.items())
        return [(ticket, tokens) for ticket, tokens in tickets if ticket is not None and ticket.streamed]

    def _replace(self) -> None:
        load, done = self._replacing.popleft()
        try:
            load()
        except Exception as error:  # noqa: BLE001 - whoever gave the weights hears of it; the old ones stay
            done.set_exception(error)
        else:
            done.set_result(None)
        held, self._held = self._held, []
        for ticket in held:
            self._begin(ticket)

    def _fail(self, error: Exception) -> None:
        """End everything in progress with `error`."""
        if not isinstance(error, DivergedError):  # after which the engine holds no request any more
            self.engine.cancel(set(self._open))
            self.engine.cancel_scores(list(self._scoring))
        self.engine.observer = None
        self._drawn.clear()
        tickets = [*self._open.values(), *self._scoring.values(), *self._held]
        self._open, self._scoring, self._held = {}, {}, []
        _deliver([(ticket, error) for ticket in tickets])
        for _, done in self._replacing:
            done.set_exception(error)
        self._replacing.clear()


def _deliver(events: Sequence[tuple[_Ticket, AnswerEvent]]) -> None:
    """Put events into their queues: one wake-up of each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Ticket, AnswerEvent]]] = {}
    for ticket, event in events:
        by_loop.setdefault(ticket.loop, []).append((ticket, event))
    for loop, mine in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_put, mine)


def _put(events: Sequence[tuple[_Ticket, AnswerEvent]]) -> None:
    for ticket, event in events:
        ticket.queue.put_nowait((ticket, event))


# ------------------------------------------------------------------------------------------------------------- counters

_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class _ServingCounters:
    """Counts since the server began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.responses: Counter[tuple[str, int]] = Counter()
        """By path and status; a request whose client went away counts as 499."""
        self.prompt_tokens = 0
        self.drawn_tokens = 0
        self.first_token = SecondsHistogram(_BOUNDS_S)
        """From a request to its first token, of streamed ones."""
        self.request = SecondsHistogram(_BOUNDS_S)
        """From a request to its reply, or to the first event of a stream."""

    def count_tokens(self, *, prompt: int, drawn: int) -> None:
        """Count the tokens of an answered request."""
        with self._lock:
            self.prompt_tokens += prompt
            self.drawn_tokens += drawn

    def count_response(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self.responses[path, status] += 1
            self.request.add(seconds)

    def text(self, gauges: Sequence[tuple[str, str, float]]) -> str:
        """Prometheus's text format; `gauges`: name, help and value of what is measured now."""
        with self._lock:
            return "\n".join(self._lines(gauges)) + "\n"

    def _lines(self, gauges: Sequence[tuple[str, str, float]]) -> Iterator[str]:
        responses, labels = sorted(self.responses.items()), ("path", "status")
        yield from metric_lines("hone_requests_total", "counter", "Responses by path and status.", labels, responses)
        totals: Mapping[str, tuple[str, int]] = {
            "hone_prompt_tokens_total": ("Tokens of answered prompts.", self.prompt_tokens),
            "hone_generated_tokens_total": ("Tokens sampled for answers.", self.drawn_tokens),
        }
        for name, (meaning, value) in totals.items():
            yield from metric_lines(name, "counter", meaning, (), [((), value)])
        for name, meaning, value in gauges:
            yield from metric_lines(name, "gauge", meaning, (), [((), value)])
        yield from self.first_token.lines("hone_time_to_first_token_seconds", "Until the first token of a stream.")
        yield from self.request.lines("hone_request_seconds", "Until the reply, or the first event of a stream.")


# ------------------------------------------------------------------------------------------------------------ answering
@dataclass(slots=True, eq=False, kw_only=True)
class _AnswersInProgress:
    """One client's request, as far as it is answered."""

    results: list[PromptResults]
    queue: AnswerQueue = field(default_factory=lambda: asyncio.Queue[tuple[_Ticket, AnswerEvent]]())
    tickets: list[_Ticket] = field(default_factory=list[_Ticket])
    left: int = 0
    """Completions and scores that are still to come."""

    def take(self, ticket: _Ticket, event: AnswerEvent) -> None:
        """Take up a result. Raises ApiError for a failure."""
        result = self.results[ticket.place]
        if isinstance(event, Exception):
            raise ApiError.of(event)
        if isinstance(event, Completion):
            result.completions[event.sample_index] = event
            self.left -= 1
        elif isinstance(event, ScoreResult):
            result.scored = event
            self.left -= 1


@dataclass(slots=True, eq=False, kw_only=True)
class AnswerDesk:
    """Runs requests on a service, under a deadline and a limit on answers in progress."""

    service: EngineService
    clock: Clock
    deadline_s: float
    shares: ClientShares
    """Answers in progress; what exceeds a client's share, or all of them, is refused with 429."""
    counters: _ServingCounters = field(default_factory=_ServingCounters)

    @property
    def samples(self) -> int:
        """Answers in progress."""
        return self.shares.used.total()

    async def whole(self, asked: AskedAnswers, client: str = "") -> list[PromptResults]:
        """The results of all prompts. Raises ApiError; cancelling the task frees what the engine holds."""
        progress = _AnswersInProgress(results=[PromptResults(one) for one in asked.prompts])
        async with aclosing(self._batches(asked, progress, client)) as batches:
            async for _ in batches:
                pass
        return progress.results

    async def stream(self, asked: AskedAnswers, writer: ReplyWriter, client: str = "") -> AsyncGenerator[str]:
        """The events of a stream. A fault before the first event is an ApiError, a later one an event. Closing it frees
        what the engine holds."""
        began_s, head = self.clock.monotonic_s(), writer.chunk_head(self.service.engine.version)
        progress = _AnswersInProgress(results=[PromptResults(one) for one in asked.prompts])
        choices = [StreamedChoice(writer, number) for number in range(asked.samples * len(asked.prompts))]
        batches = self._batches(asked, progress, client)
        first = True
        try:
            async for batch in batches:
                pieces = _pieces(batch, choices, asked.samples)
                if first:
                    self.counters.first_token.add(self.clock.monotonic_s() - began_s)
                    pieces = [*(piece for one in choices if (piece := one.begin()) is not None), *pieces]
                    first = False
                if pieces:  # clients read the first choice of an event only
                    yield "".join(writer.chunk(head, [piece]) for piece in pieces)
        except ApiError as error:
            if first:
                raise
            yield f"data: {json.dumps(error.body())}\n\n"
            return
        finally:
            await batches.aclose()
        if asked.usage:
            yield writer.chunk(head, [], usage=writer.usage(progress.results))
        yield DONE

    async def _batches(
        self, asked: AskedAnswers, progress: _AnswersInProgress, client: str
    ) -> AsyncGenerator[list[tuple[_Ticket, AnswerEvent]]]:
        """Results of a request, taken up by `progress`, in batches of all that have come. Raises ApiError."""
        until = asyncio.get_running_loop().time() + self.deadline_s
        with self._answering(asked, progress, client):
            while progress.left:
                batch = [await self._next(progress, until)]
                while not progress.queue.empty():
                    batch.append(progress.queue.get_nowait())
                for ticket, event in batch:
                    progress.take(ticket, event)
                yield batch
        drawn = sum(len(one.tokens) for result in progress.results for one in result.completions.values())
        self.counters.count_tokens(prompt=sum(len(result.asked.tokens) for result in progress.results), drawn=drawn)

    async def _next(self, progress: _AnswersInProgress, until: float) -> tuple[_Ticket, AnswerEvent]:
        try:
            async with asyncio.timeout_at(until):
                return await progress.queue.get()
        except TimeoutError:
            message = f"not answered within {self.deadline_s:g} s, the deadline of this server; ask for fewer tokens"
            raise ApiError(408, message, code="deadline") from None

    @contextmanager
    def _answering(self, asked: AskedAnswers, progress: _AnswersInProgress, client: str) -> Iterator[None]:
        """A request in progress; what has not ended is cancelled at the end."""
        queue, loop = progress.queue, asyncio.get_running_loop()
        for place, one in enumerate(asked.prompts):
            for work in filter(None, (one.request, one.scored)):
                streamed = asked.stream and work is one.request
                progress.tickets.append(_Ticket(work=work, queue=queue, loop=loop, place=place, streamed=streamed))
        progress.left = wanted = sum(ticket.samples for ticket in progress.tickets)
        if refused := self.shares.take(client, wanted):
            wait_s = max(1, round(self.counters.request.mean_s))
            raise ApiError(
                429,
                f"{wanted} more answers cannot be taken: {refused}; retry in {wait_s} s",
                code="overloaded",
                headers={"Retry-After": str(wait_s)},
            )
        try:
            for ticket in progress.tickets:
                self.service.submit(ticket)
            yield
        finally:
            self.shares.give_back(client, wanted)
            if progress.left:
                for ticket in progress.tickets:
                    self.service.cancel(ticket)


def _pieces(
    batch: Sequence[tuple[_Ticket, AnswerEvent]], choices: Sequence[StreamedChoice], samples: int
) -> list[dict[str, Any]]:
    """Choices of the chunk that a batch makes; `samples` choices belong to each prompt."""
    drawn: dict[int, StreamedChoice] = {}
    ended: list[dict[str, Any]] = []
    for ticket, event in batch:
        first = ticket.place * samples
        for one in event if isinstance(event, list) else ():
            drawn[first + one.sample_index] = choice = choices[first + one.sample_index]
            choice.add(one)
        if isinstance(event, Completion):
            drawn.pop(first + event.sample_index, None)
            ended += choices[first + event.sample_index].finish(event)
    return [*(piece for one in drawn.values() if (piece := one.piece()) is not None), *ended]
