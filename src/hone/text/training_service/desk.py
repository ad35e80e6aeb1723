"""Requests between the handlers that bring them and the threads that do them: acknowledged, waited for, answered."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from hone.core.clock import Clock
from hone.core.errors import HoneError
from hone.run.store.durable import failpoint
from hone.text.training_service.ledger import Ledger, ModelRecord, RequestRecord, RequestResult
from hone.text.training_service.turns import Turns, Waiting

JSON: Final = "application/json"
Listener: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Future[RequestResult | None]]


def json_outcome(content: dict[str, object]) -> RequestResult:
    """A result that is not made of arrays."""
    return RequestResult(result=json.dumps(content).encode(), media=JSON)


def failed(error: Exception) -> RequestResult:
    """The outcome of a request that failed: the client raises it, and goes on."""
    category = "user" if isinstance(error, HoneError) else "server"
    text = str(error) if category == "user" else f"{type(error).__name__}: {error}"
    return RequestResult(result=text.encode(), media="text/plain", category=category)


class DeskThread:
    """A thread that works for a desk: it ends after its turn once the desk closes. `start` it once."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for its end."""
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


@dataclass(slots=True, eq=False)
class RequestDesk:
    """What handlers, the learner's thread and the sampler's share."""

    ledger: Ledger
    clock: Clock
    turns: Turns = field(default_factory=Turns)
    wake: threading.Condition = field(default_factory=threading.Condition)
    """Guards `turns`; notified when something was queued."""
    closing: bool = False
    waiting: dict[str, Waiting] = field(default_factory=dict[str, Waiting])
    """Requests without an outcome, by id."""
    _listeners: dict[str, list[Listener]] = field(default_factory=dict[str, list[Listener]])
    _released: bool = False

    def restore(self) -> int:
        """Queue what the last process acknowledged and did not answer; returns how many."""
        queued = self.ledger.queued()
        with self.wake:
            for model in self.ledger.records(ModelRecord, {}):
                self.turns.open_model(model.id, self.ledger.last_seq(model.id) + 1)
            for record in queued:
                self._queue(record)
        return len(queued)

    def submit(self, record: RequestRecord, model: ModelRecord | None = None) -> RequestRecord:
        """Acknowledge a request, once it is on the disk. Returns the earlier one with its owner and number, if any.
        Raises DataError if that asked for something else."""
        accepted, fresh = self.ledger.accept(record, model)
        failpoint("training_service.accepted")
        if fresh:
            with self.wake:
                if model is not None:
                    self.turns.open_model(model.id, record.seq)
                self._queue(accepted)
                self.wake.notify_all()
        return accepted

    def finish(self, record: RequestRecord, outcome: RequestResult) -> None:
        """Write an outcome, and tell whoever waits for it."""
        failpoint("training_service.before_outcome")
        self.ledger.finish(record, outcome, self.clock.now_s())
        failpoint("training_service.after_outcome")
        with self.wake:
            self.waiting.pop(record.id, None)
            listeners = self._listeners.pop(record.id, [])
        _tell(listeners, outcome)

    def attempt(self, record: RequestRecord, work: Callable[[], RequestResult]) -> None:
        """Finish a request with what `work` gives; whatever it raises is the request's outcome, and nobody else's."""
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001 - the client hears of any failure
            outcome = failed(error)
        self.finish(record, outcome)

    async def wait(self, id: str, seconds: float) -> RequestResult | None:
        """Wait for a request's outcome, or until `release`; None where it did not come, or had come before."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[RequestResult | None] = loop.create_future()
        with self.wake:
            if id not in self.waiting or self._released:
                return None
            self._listeners.setdefault(id, []).append((loop, outcome))
        try:
            async with asyncio.timeout(seconds):
                return await outcome
        except TimeoutError:
            with self.wake:
                if id in self._listeners:
                    self._listeners[id] = [one for one in self._listeners[id] if one[1] is not outcome]
            return None

    def release(self) -> None:
        """Let whoever waits for an outcome go without it, from now on."""
        with self.wake:
            self._released = True
            listeners = [one for some in self._listeners.values() for one in some]
            self._listeners.clear()
        _tell(listeners, None)

    def why_waiting(self, id: str) -> str:
        """A sentence on a request that waits."""
        with self.wake:
            one = self.waiting.get(id)
            before = 0 if one is None else self.turns.place(one)
        return f"{before} requests of other tenants with less work go before" if before else "it is its turn"

    def close(self) -> None:
        """Tell the threads to end."""
        with self.wake:
            self.closing = True
            self.wake.notify_all()

    def _queue(self, record: RequestRecord) -> None:
        one = Waiting(
            id=record.id, tenant=record.tenant, owner=record.owner, seq=record.seq, kind=record.kind,
            came_s=self.clock.monotonic_s(),
        )  # fmt: skip
        self.waiting[record.id] = one
        self.turns.add(one, ordered=record.kind != "sample")


def _tell(listeners: Iterable[Listener], outcome: RequestResult | None) -> None:
    def take(waits: asyncio.Future[RequestResult | None]) -> None:
        if not waits.done():  # whoever waited may have gone
            waits.set_result(outcome)

    for loop, waits in listeners:
        with suppress(RuntimeError):  # a loop that has closed meanwhile
            loop.call_soon_threadsafe(take, waits)
