"""Servers of hone: socket and signals, the same for completions and decisions, and metrics in Prometheus's text."""

import signal
import socket
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final, Literal

from hone.core.errors import ResourceError

_GONE_S: Final = 60
"""Seconds after which a peer that acknowledges nothing counts as gone."""
_RELOADING: Final = () if sys.platform == "win32" else (signal.SIGHUP,)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens. Raises ResourceError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it an answer waits for the other side 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections take these over: the system closes one whose peer vanished, or reads nothing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _GONE_S)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _GONE_S // 6)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _GONE_S)
        try:
            listener.bind((host, port))
            listener.listen(2048)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ResourceError(f"cannot listen on {host}:{port}: {reason}; give another --port") from None
        yield listener


@dataclass(slots=True)
class QuietSignals:
    """SIGTERM and Ctrl-C while no server handles them, and SIGHUP."""

    seen: bool = False
    reload: bool = False
    """A SIGHUP came that nobody has answered yet."""

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        del frame
        if number in _RELOADING:
            self.reload = True
        else:
            self.seen = True


@contextmanager
def signals_end_quietly() -> Iterator[QuietSignals]:
    """Take signals before the server handles them, which must then end at once (`seen`), and after: uvicorn raises the
    signal that ended it once more when it is done. SIGHUP asks for a reload.
    """
    signals = QuietSignals()
    before = {number: signal.signal(number, signals.note) for number in (signal.SIGTERM, signal.SIGINT, *_RELOADING)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------------------------------------------------ histogram


METRICS_TYPE: Final = "text/plain; version=0.0.4"
"""Content type of Prometheus's text format."""


def metric_lines(
    name: str,
    kind: Literal["counter", "gauge"],
    meaning: str,
    labels: Sequence[str],
    values: Iterable[tuple[Sequence[object], float]],
) -> Iterator[str]:
    """Lines of Prometheus's text format: a metric's values, each with the values of its `labels`."""
    yield from _metric_head(name, kind, meaning)
    for of, value in values:
        pairs = ",".join(f'{label}="{_escaped(one)}"' for label, one in zip(labels, of, strict=True))
        yield f"{name}{{{pairs}}} {value:.12g}" if pairs else f"{name} {value:.12g}"


def _metric_head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class SecondsHistogram:
    """Histogram of durations, seconds."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = tuple(bounds_s)
        self._counts = [0] * (len(self._bounds_s) + 1)
        self._total_s = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self._counts)

    @property
    def mean_s(self) -> float:
        """Mean; 0 without any."""
        return self._total_s / self.count if self.count else 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count `count` equal durations."""
        self._counts[bisect_left(self._bounds_s, seconds)] += count
        self._total_s += seconds * count

    def lines(self, name: str, meaning: str) -> Iterator[str]:
        """Lines of Prometheus's text format."""
        yield from _metric_head(name, "histogram", meaning)
        below = 0
        for bound, count in zip((*map(str, self._bounds_s), "+Inf"), self._counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{bound}"}} {below}'
        yield f"{name}_sum {self._total_s:.6f}"
        yield f"{name}_count {below}"
