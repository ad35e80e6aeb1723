"""The thread that runs an engine for a server: handlers submit, cancel and await; passes run here.

Other threads may use the same engine: a trainer collects while its policy is served. Each request gets its own
results, whoever ran the pass.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from hone.core.errors import DivergedError, HoneError
from hone.core.generation import Completion, Request, ScoreRequest, ScoreResult
from hone.engine.engine import DrawnToken, TokenObserver

_CLOSING: Final = "the server is shutting down"
_PAUSED_S: Final = 0.005
"""Interval at which a paused engine is looked at again."""


class ServedEngine(Protocol):
    """What the service needs of an engine (`hone.engine.engine.EmbeddedEngine` has it)."""

    observer: TokenObserver | None

    @property
    def version(self) -> int: ...
    @property
    def paused(self) -> bool: ...
    @property
    def held_pages(self) -> int: ...
    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None: ...
    def submit_scores(self, texts: Sequence[ScoreRequest]) -> list[int]: ...
    def step(self) -> None: ...
    def poll(self, request_ids: Collection[str] | None = None) -> Completion | None: ...
    def poll_scores(self, orders: Collection[int]) -> dict[int, ScoreResult]: ...
    def has_requests(self, request_ids: Collection[str] | None = None) -> bool: ...
    def cancel(self, request_ids: Collection[str] | None = None) -> None: ...
    def cancel_scores(self, orders: Collection[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """Tokens of one request that a pass sampled, in the order of its samples."""

    tokens: list[DrawnToken]


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """The request cannot be answered: it was refused, or the engine failed."""

    error: Exception


AnswerEvent: TypeAlias = DrawnTokens | Completion | ScoreResult | EngineFailure


AnswerQueue: TypeAlias = "asyncio.Queue[tuple[Ticket, AnswerEvent]]"


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
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

    def __init__(self, engine: ServedEngine) -> None:
        self.engine = engine
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None
        # From here on: touched by the service's own thread only.
        self._open: dict[str, Ticket] = {}
        self._scoring: dict[int, Ticket] = {}
        self._held: list[Ticket] = []
        """Tickets that wait for new weights."""
        self._replacing: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._drawn: deque[DrawnToken] = deque()
        """Tokens that passes of any thread sampled."""

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="hone-serve-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancel what is in progress and end the thread; whoever waits gets an EngineFailure."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def submit(self, ticket: Ticket) -> None:
        """Begin a request. Results, faults of the request included, go to the ticket's queue. Ids are unique among the
        requests in progress. Raises HoneError once the service closes."""
        self._send(partial(self._begin, ticket))

    def cancel(self, ticket: Ticket) -> None:
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

    def _begin(self, ticket: Ticket) -> None:
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
            _deliver([(ticket, EngineFailure(error))])
            return
        if ticket.streamed:
            self.engine.observer = self._drawn.extend

    def _drop(self, ticket: Ticket) -> None:
        self._held = [one for one in self._held if one is not ticket]
        if isinstance(ticket.work, Request):
            if self._open.get(ticket.work.id) is ticket:
                self.engine.cancel({ticket.work.id})
                self._forget(ticket)
        elif self._scoring.pop(ticket.order, None) is not None:
            self.engine.cancel_scores([ticket.order])

    def _forget(self, ticket: Ticket) -> None:
        assert isinstance(ticket.work, Request)
        del self._open[ticket.work.id]
        if ticket.streamed and not any(one.streamed for one in self._open.values()):
            self.engine.observer = None
            self._drawn.clear()

    def _pass(self) -> None:
        try:
            self.engine.step()
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of any failure, and the server goes on
            self._fail(error)
            return
        self._hand_out()

    def _hand_out(self) -> None:
        """Deliver what finished, behind the tokens sampled until then."""
        finished: list[tuple[Ticket, AnswerEvent]] = []
        while self._open and (completion := self.engine.poll(self._open.keys())) is not None:
            finished.append((self._open[completion.request_id], completion))
        if self._scoring:
            found = self.engine.poll_scores(list(self._scoring))
            finished += [(self._scoring.pop(order), result) for order, result in found.items()]
        events = [*self._take_drawn(), *finished]
        for ticket, event in finished:
            if isinstance(event, Completion):
                ticket.left -= 1
                if not ticket.left:
                    self._forget(ticket)
        _deliver(events)
        if self._open and not self.engine.has_requests(self._open.keys()):
            self._fail(HoneError("the engine dropped the request: whoever shares it cancelled everything"))

    def _take_drawn(self) -> list[tuple[Ticket, AnswerEvent]]:
        found: dict[str, list[DrawnToken]] = {}
        while self._drawn:
            one = self._drawn.popleft()
            found.setdefault(one.request_id, []).append(one)
        tickets = ((self._open.get(name), tokens) for name, tokens in found.items())
        return [(ticket, DrawnTokens(tokens)) for ticket, tokens in tickets if ticket is not None and ticket.streamed]

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
        _deliver([(ticket, EngineFailure(error)) for ticket in tickets])
        for _, done in self._replacing:
            done.set_exception(error)
        self._replacing.clear()


def _deliver(events: Sequence[tuple[Ticket, AnswerEvent]]) -> None:
    """Put events into their queues: one wake-up of each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, AnswerEvent]]] = {}
    for ticket, event in events:
        by_loop.setdefault(ticket.loop, []).append((ticket, event))
    for loop, mine in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_put, mine)


def _put(events: Sequence[tuple[Ticket, AnswerEvent]]) -> None:
    for ticket, event in events:
        ticket.queue.put_nowait((ticket, event))
