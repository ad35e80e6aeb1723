"""Questions to a judge: answered from the cache, asked once where several answers need the same, and paid for."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hone.core.clock import Clock
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.rewards.judges.cache import ReplyCache
from hone.rewards.judges.requests import JudgeReply, JudgeRequest
from hone.rewards.judges.spending import JudgeSpending, SpendingFile, SpendingTotals

_SHOWN = 3
_FILES = threading.Lock()
"""Held while a file of totals is read and written."""


class JudgeFault(Exception):  # noqa: N818 - a missing verdict, which no user sees as an error
    """A question without a reply, and why."""

    def __init__(self, status: ScoreStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass
class JudgeLedger:
    """What a judge's replies cost, and where they are kept; for any number of threads."""

    spending: JudgeSpending
    cache: ReplyCache | None
    clock: Clock

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._file: SpendingFile | None = None
        self._written = self.spending.totals()

    def keep_totals(self, path: Path) -> None:
        """Count on from the totals in a file, and write them there. Raises DataError for a damaged file."""
        self._file = SpendingFile(path)
        self.write_totals()

    def write_totals(self) -> None:
        """Add the spending since the last call to the file, and take over that of others. Raises ResourceError,
        DataError."""
        if self._file is None:
            return
        with self._lock, _FILES:
            own, before, others = self.spending.totals(), self._written, self._file.load()
            self.spending.add(
                SpendingTotals(
                    others.requests - before.requests, others.tokens - before.tokens, others.money - before.money
                )
            )
            self._written = self.spending.totals()
            if own != before:
                self._file.save(self._written)

    def load(self, key: str) -> JudgeReply | None:
        """The reply that was paid for before."""
        reply = None if self.cache is None else self.cache.load(key)
        if reply is not None:
            with self._lock:
                self.spending.cached += 1
        return reply

    def try_send(self) -> float:
        """Count one request and return 0, or return the seconds to wait first. Raises LostResourceError where the
        budget is spent."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            wait_s = self.spending.wait_s(now_s)
            if wait_s <= 0:
                self.spending.send(now_s)
            return wait_s

    def keep(self, key: str, reply: JudgeReply) -> None:
        """Keep a reply and count its tokens. Raises LostResourceError, ResourceError."""
        if self.cache is not None:
            self.cache.save(key, reply)
        with self._lock:
            self.spending.receive(reply, self.clock.monotonic_s())


class JudgeBackend(Protocol):
    """A model that replies to questions."""

    @property
    def model(self) -> str:
        """Identity of the model in the keys of the cache."""
        ...

    def check(self) -> Sequence[str]:
        """Return warnings; raise HoneError where it cannot be asked."""
        ...

    def submit(self, request: JudgeRequest, key: str) -> "Future[JudgeReply]":
        """Begin to answer; the future raises JudgeFault, or HoneError where the run must stop."""
        ...

    def run(self) -> None:
        """Work through the submitted questions, where no thread does."""
        ...

    def close(self) -> None:
        """End its requests and threads."""
        ...


class JudgeClient:
    """Questions to one judge."""

    def __init__(self, name: str, backend: JudgeBackend, ledger: JudgeLedger) -> None:
        self.name, self.backend, self.ledger = name, backend, ledger
        self._asked: dict[str, Future[JudgeReply]] = {}
        self._damaged_told = 0

    def ask(self, request: JudgeRequest) -> "Future[JudgeReply]":
        """Begin to answer a question; equal questions of one batch share their reply."""
        key = request.key(self.backend.model)
        if key not in self._asked:
            self._asked[key] = self._begin(request, key)
        return self._asked[key]

    def finish(self) -> None:
        """Work through all questions; those asked from now on are a new batch."""
        self.backend.run()
        self._asked.clear()

    def notices(self) -> list[str]:
        """Notices since the last call: damaged entries of the cache."""
        damaged = [] if self.ledger.cache is None else self.ledger.cache.damaged
        fresh, self._damaged_told = damaged[self._damaged_told :], len(damaged)
        if not fresh:
            return []
        shown = ", ".join(map(str, fresh[:_SHOWN]))
        return [f"judge {self.name!r}: {len(fresh)} damaged entries of its cache were asked again: {shown}"]

    def close(self) -> None:
        """End requests under way."""
        self.backend.close()
        self.ledger.write_totals()

    def _begin(self, request: JudgeRequest, key: str) -> "Future[JudgeReply]":
        reply = self.ledger.load(key)
        if reply is None:
            try:
                return self.backend.submit(request, key)
            except DataError as error:  # text that a local model's tokenizer cannot write
                return _failed(JudgeFault(ScoreStatus.UNSCORABLE, str(error)))
        future: Future[JudgeReply] = Future()
        future.set_result(reply)
        return future


def _failed(fault: JudgeFault) -> "Future[JudgeReply]":
    future: Future[JudgeReply] = Future()
    future.set_exception(fault)
    return future
