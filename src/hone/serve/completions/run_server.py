"""A server process: from an opened model to a listening port, until a signal; then requests in progress end first."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

import uvicorn

from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, ResourceError
from hone.serve.completions.answering import AnswerDesk
from hone.serve.completions.app import CompletionRoutes, ServingRules
from hone.serve.completions.counters import ServingCounters
from hone.serve.completions.open_served import CheckpointFollower, OpenedModel
from hone.serve.completions.service import EngineService

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """Where a server listens, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    deadline_s: float = 600.0
    """A request that is not answered by then gets 408; a stopping server waits as long for its requests."""
    queue: int = 256
    """Answers that may wait beside those that are being written; more are refused with 429."""
    follow: bool = False
    """Take up each new checkpoint of the run."""
    rules: ServingRules = field(default_factory=ServingRules)

    def check(self) -> None:
        """Raise ConfigError for an address that others reach without a key."""
        if self.host not in _LOOPBACK and not self.rules.api_key:
            raise ConfigError(
                f"--host {self.host} is reached from other machines: give --api-key, or the environment variable "
                "HONE_API_KEY"
            )


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which says to `/health` that it stops."""

    def __init__(self, config: uvicorn.Config, routes: CompletionRoutes) -> None:
        super().__init__(config)
        self._routes = routes

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop accepting connections; requests in progress end."""
        self._routes.draining = True
        super().handle_exit(sig, frame)


def make_routes(opened: OpenedModel, service: EngineService, place: ServerPlace) -> CompletionRoutes:
    """The routes of one model, for `serve` here or for an application of your own."""
    clock = SystemClock()
    desk = AnswerDesk(
        service=service,
        counters=ServingCounters(),
        clock=clock,
        deadline_s=place.deadline_s,
        most_samples=opened.source.slots + place.queue,
    )
    return CompletionRoutes(served=opened.served, desk=desk, clock=clock, rules=place.rules)


def serve(opened: OpenedModel, place: ServerPlace, tell: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress end first. `tell` receives lines for the user.

    Raises ConfigError as `place.check`, ResourceError where the port is taken.
    """
    place.check()
    service = EngineService(opened.engine)
    routes = make_routes(opened, service, place)
    with _listening(place) as listener, _signals_end_quietly():
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            routes.app(),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=max(1, round(place.deadline_s)),
        )
        service.start()
        follower = CheckpointFollower(opened=opened, service=service, tell=tell) if place.follow else None
        if follower is not None:
            follower.start()
        tell(_address(opened, host, port))
        try:
            DrainingServer(config, routes).run(sockets=[listener])
        finally:
            if follower is not None:
                follower.close()
            service.close()
    tell("stopped: every request in progress was answered")


def _address(opened: OpenedModel, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    calls = opened.served.tool_format
    named = opened.served.fingerprint_of(opened.engine.version)
    return (
        f"serving {opened.served.name} ({named}) at http://{shown}:{port}/v1: {opened.engine.runner.name}, "
        f"{opened.source.slots} slots, context {opened.served.context} tokens, {opened.engine.stats.pages} pages, "
        f"{'no tools' if calls is None else f'tools as {calls.name}'}"
    )


@contextmanager
def _listening(place: ServerPlace) -> Iterator[socket.socket]:
    """A socket that listens. Raises ResourceError."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it an answer waits for the other side 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((place.host, place.port))
            listener.listen(2048)
        except (OSError, OverflowError) as error:
            told = error.strerror if isinstance(error, OSError) else str(error)
            raise ResourceError(f"cannot listen on {place.host}:{place.port}: {told}; give another --port") from None
        yield listener


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more when it is done: it has had its effect by then."""
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame
