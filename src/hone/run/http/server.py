"""A server of ASGI that ends quietly, reloads on SIGHUP, and closes connections whose requests do not arrive."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, ClassVar, Final, cast

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from hone.run.http.listening import QuietSignals

MOST_HEAD_BYTES: Final = 64 << 10
"""Longest head of a request; its body has a limit of its own."""
_LOOK_S: Final = 0.2
"""Seconds between two looks at SIGHUP."""


class TimedConnection(asyncio.Protocol):
    """uvicorn's connection, closed where the head of a request does not arrive.

    A request's head has `head_s` seconds from its first byte, and the first one from the connection's begin. A client
    that sends a body after it was refused has as long to end it. So a client that opens connections and sends little,
    or nothing, holds none for long.
    """

    head_s: ClassVar[float] = 10.0

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,  # noqa: ANN401 - uvicorn's own
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        make: Any = AutoHTTPProtocol
        self._inner: Any = make(config, server_state, app_state, _loop)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(self.head_s, self._late)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, and watch whether they make a request."""
        self._inner.data_received(data)
        if self._transport is not None and self._transport.get_protocol() is not self:
            self._stop_timer()  # upgraded to a WebSocket, which watches itself
            return
        cycle = self._inner.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop_timer()
            self._head_bytes = 0
            return
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.head_s, self._late)
        if cycle is None or not cycle.more_body:  # otherwise the rest of a refused body
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")

    def eof_received(self) -> bool | None:
        """Pass the client's end on."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the client reads slowly."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client reads again."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self._stop_timer()
        self._inner.connection_lost(exc)

    def _late(self) -> None:
        self._timer = None
        if self._head_bytes:
            self._refuse(b"408 Request Timeout")
        elif self._transport is not None:
            self._transport.close()

    def _refuse(self, status: bytes) -> None:
        self._stop_timer()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self._transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvents:
    """What a server does beside its requests."""

    stop: Callable[[], None]
    """Called once a signal ends the server, before the requests in progress end."""
    reload: Callable[[], None]
    """Called on a thread at each SIGHUP. It must not raise."""
    tick: Callable[[], None] | None = None
    """Called once a second."""


class RunningServer(uvicorn.Server):
    """uvicorn's server with events."""

    def __init__(self, config: uvicorn.Config, events: ServerEvents, signals: QuietSignals) -> None:
        super().__init__(config)
        self._events = events
        self._signals = signals

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop accepting connections; requests in progress are answered."""
        self._events.stop()
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Run until a signal, which may have come before."""
        self.should_exit = self.should_exit or self._signals.seen
        looking = [asyncio.ensure_future(self._watch_reloads())]
        if self._events.tick is not None:
            looking.append(asyncio.ensure_future(self._tick(self._events.tick)))
        try:
            await super().main_loop()
        finally:
            for one in looking:
                one.cancel()

    async def _watch_reloads(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._signals.reload:
                self._signals.reload = False
                await asyncio.to_thread(self._events.reload)

    @staticmethod
    async def _tick(tick: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(1.0)
            tick()
