"""A server process of a decision service: listens until a signal; requests in progress are answered first."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn

from hone.core.addresses import is_loopback
from hone.core.clock import Clock
from hone.core.errors import ConfigError
from hone.decide.gateway.access import TenantLimits, TokenBucket
from hone.decide.gateway.http_app import GatewayRoutes, RequestBatcher
from hone.decide.gateway.joined_writes import OnePacketProtocol
from hone.decide.gateway.openapi import openapi_document
from hone.decide.gateway.opening import OpenedService, open_service, read_service_file
from hone.decide.gateway.policy_config import FolderServiceConfig
from hone.decide.gateway.service import TICK_S
from hone.run.http.listening import QuietSignals, listening, signals_end_quietly

DRAIN_S: Final = 30
"""Longest wait for requests in progress at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlace:
    """Where a service listens."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""

    def check(self, *, has_clients: bool) -> None:
        """Raise ConfigError for an address that others reach without a token."""
        if not has_clients and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} is reached from other machines: declare [[service.clients]] with tokens first"
            )


class DrainingGateway(uvicorn.Server):
    """uvicorn's server, which says to `/health` that it stops, and ticks the service while it runs."""

    def __init__(self, config: uvicorn.Config, routes: GatewayRoutes, signals: QuietSignals) -> None:
        super().__init__(config)
        self._routes = routes
        self._signals = signals

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop accepting connections; requests in progress are answered."""
        self._routes.draining = True
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Run until a signal, which may have come before."""
        self.should_exit = self.should_exit or self._signals.seen
        ticking = asyncio.ensure_future(self._tick())
        try:
            await super().main_loop()
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._routes.service.tick()


def make_routes(opened: OpenedService) -> GatewayRoutes:
    """The routes of a service, for `serve_gateway` here or for an application of your own."""
    config = opened.config
    limit = config.service.limit
    buckets = {t: TokenBucket(limit.per_s, limit.burst) for t in config.service.tenants} if limit.per_s else {}
    waits = "://" in config.log.address or isinstance(config.policy, FolderServiceConfig)
    return GatewayRoutes(
        service=opened.service,
        batcher=RequestBatcher(opened.service, apart=waits),
        access=opened.access,
        limits=TenantLimits(buckets),
        max_body_bytes=config.service.max_body_bytes,
        openapi=openapi_document(opened.folder.name, config.service),
    )


def serve_gateway(path: Path, place: GatewayPlace, *, clock: Clock, tell: Callable[[str], None]) -> None:
    """Serve a file's service until SIGTERM or Ctrl-C. Raises ConfigError, DataError, ResourceError."""
    place.check(has_clients=bool(read_service_file(path).config.service.clients))
    opened = open_service(path, clock=clock, tell=tell)
    try:
        routes = make_routes(opened)
        with listening(place.host, place.port) as listener, signals_end_quietly() as signals:
            host, port = listener.getsockname()[:2]
            config = uvicorn.Config(
                routes.app(), http=OnePacketProtocol, ws="none", log_level="warning", access_log=False, lifespan="off",
                server_header=False, date_header=False, proxy_headers=False, timeout_graceful_shutdown=DRAIN_S,
            )  # fmt: skip
            shown = f"[{host}]" if ":" in host else host
            live = ", ".join(sorted({serving.live.name for serving in opened.policies.tenants.values()}))
            tell(f"serving decisions of {opened.folder.name} (version {live}) at http://{shown}:{port}/v1/decide")
            DrainingGateway(config, routes, signals).run(sockets=[listener])
    finally:
        opened.close()
    tell("stopped: every request in progress was answered, every record is in the log")
