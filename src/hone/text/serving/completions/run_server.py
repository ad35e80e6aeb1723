"""A server process: from an opened model to a listening port, until a signal; then requests in progress end first."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

import uvicorn

from hone.core.clock import SystemClock
from hone.core.errors import ConfigError
from hone.run.http.listening import QuietSignals, listening, signals_end_quietly
from hone.text.serving.completions.answering import AnswerDesk
from hone.text.serving.completions.app import CompletionRoutes, ServingRules
from hone.text.serving.completions.counters import ServingCounters
from hone.text.serving.completions.open_served import CheckpointFollower, OpenedModel
from hone.text.serving.completions.service import EngineService

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


class _DrainingServer(uvicorn.Server):
    """uvicorn's server, which says to `/health` that it stops."""

    def __init__(self, config: uvicorn.Config, routes: CompletionRoutes, signals: QuietSignals) -> None:
        super().__init__(config)
        self._routes = routes
        self._signals = signals

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop accepting connections; requests in progress end."""
        self._routes.draining = True
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Run until a signal, which may have come before."""
        self.should_exit = self.should_exit or self._signals.seen
        await super().main_loop()


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
    with listening(place.host, place.port) as listener, signals_end_quietly() as signals:
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
            _DrainingServer(config, routes, signals).run(sockets=[listener])
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
