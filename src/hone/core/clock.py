"""Clocks, and work that takes long.

Code that needs the time takes a clock as an argument, so that tests can set it. A loop that may take long says how far
it is: it goes through `counted(items, ...)`, or opens `long_work(...)` and calls `advance`; a display that listens
shows it. Without a listener both cost next to nothing. Work inside of other work is not shown beside it; it only lets
the display of the outer one look at the clock again.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar


class Clock(Protocol):
    """Clock that tells seconds; the only source of time."""

    def now_s(self) -> float:
        """Wall-clock seconds since the epoch; for humans and logs, may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never run backwards; for durations and deadlines."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clocks; any two are equal."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


# ----------------------------------------------------------------------------------------------------------- long work


T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class LongWork:
    """Work that may take a while."""

    title: str
    """What is counted, a plural: `answers`."""
    total: int | None
    """Number of all of them; None where nobody knows."""
    done: int = 0
    is_over: bool = False
    tell: "Callable[[], None]"
    """Calls the listener, if there is one."""

    def advance(self, count: int = 1) -> None:
        """Count what has been done since; 0 only tells that the work goes on."""
        self.done += count
        self.tell()

    def end(self) -> None:
        """Say that the work is over, once."""
        if not self.is_over:
            self.is_over = True
            self.tell()


WorkListener: TypeAlias = Callable[[LongWork], None]
"""Called with the outermost work whenever it or work inside of it goes on, and once when it is over."""
_LISTENER: ContextVar[WorkListener | None] = ContextVar("listener", default=None)
_OUTERMOST: ContextVar[LongWork | None] = ContextVar("outermost", default=None)


@contextmanager
def listening(listener: WorkListener | None) -> Generator[None]:
    """Let `listener` hear of long work in this block and thread, in place of an earlier listener. Work that an error
    has ended is over with the block."""
    before, outer = _LISTENER.get(), _OUTERMOST.get()
    _LISTENER.set(listener)
    _OUTERMOST.set(None)
    try:
        yield
    finally:
        if (left := _OUTERMOST.get()) is not None:
            left.end()
        _LISTENER.set(before)
        _OUTERMOST.set(outer)


@contextmanager
def long_work(title: str, total: int | None = None) -> Generator[LongWork]:
    """Work that counts `title`, a plural, up to `total`."""
    listener, outer = _LISTENER.get(), _OUTERMOST.get()
    if listener is None or outer is not None:
        yield LongWork(title=title, total=total, tell=lambda: None if outer is None else outer.tell())
        return
    work = LongWork(title=title, total=total, tell=lambda: listener(work))
    _OUTERMOST.set(work)
    try:
        work.tell()
        yield work
    finally:
        if _OUTERMOST.get() is work:
            _OUTERMOST.set(None)
        work.end()


def counted(items: Iterable[T], title: str, total: int | None = None) -> Iterator[T]:
    """The items, counted as long work; `total` is their number where it is not told by `len(items)`."""
    known = len(items) if total is None and isinstance(items, Sized) else total
    with long_work(title, known) as work:
        for item in items:
            yield item
            work.advance()
