"""The socket of a server, and its signals: the same for completions and for decisions."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from hone.core.errors import ResourceError


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens. Raises ResourceError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it an answer waits for the other side 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(2048)
        except (OSError, OverflowError) as error:
            told = error.strerror if isinstance(error, OSError) else str(error)
            raise ResourceError(f"cannot listen on {host}:{port}: {told}; give another --port") from None
        yield listener


@dataclass(slots=True)
class QuietSignals:
    """SIGTERM and Ctrl-C while no server handles them."""

    seen: bool = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        del number, frame
        self.seen = True


@contextmanager
def signals_end_quietly() -> Iterator[QuietSignals]:
    """Take signals before the server handles them, which must then end at once (`seen`), and after: uvicorn raises the
    signal that ended it once more when it is done.
    """
    signals = QuietSignals()
    before = {number: signal.signal(number, signals.note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
