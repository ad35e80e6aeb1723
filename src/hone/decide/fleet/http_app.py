"""A fleet over HTTP: POST /v1/fleet/steps; GET /v1/fleet/manifest, /v1/fleet/versions/ID/PATH, /v1/fleet/status, /."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from hone.core.clock import Clock
from hone.core.config import is_loopback
from hone.core.errors import ConfigError, DataError, HoneError
from hone.decide.fleet.page import fleet_page, read_fleet
from hone.decide.fleet.service import FleetService, StrangerError, UnknownSchemaError, open_fleet, schemas_of
from hone.decide.fleet.store import read_batch
from hone.decide.gateway.access import AccessList
from hone.decide.gateway.opening import open_access, read_service_file
from hone.decide.gateway.requests import RequestError
from hone.decide.gateway.run_service import DRAIN_S, GatewayPlace
from hone.run.http.listening import listening, signals_end_quietly
from hone.run.http.requests import BODY_S, ApiError, BodyReader
from hone.run.http.server import RunningServer, ServerEvents, TimedConnection

_SERVED: Final = (
    "POST /v1/fleet/steps; GET /v1/fleet/manifest, /v1/fleet/versions/ID/PATH, /v1/fleet/status, /, /live, /ready"
)


@dataclass(slots=True, eq=False, kw_only=True)
class FleetRoutes:
    """Handlers of the routes."""

    service: FleetService
    access: AccessList
    tell: Callable[[str], None]
    reader: BodyReader
    draining: bool = False
    fault: str = ""
    """Last fault of the ticks; empty after a good one."""

    def app(self) -> Starlette:
        """The application."""
        get: Mapping[str, Callable[[Request], Any]] = {
            "/v1/fleet/manifest": self.manifest,
            "/v1/fleet/versions/{version}/{path:path}": self.version,
            "/v1/fleet/status": self.status,
            "/": self.page,
            "/live": self.live,
            "/ready": self.ready,
        }
        return Starlette(
            routes=[Route("/v1/fleet/steps", self.steps, methods=["POST"]), *(Route(*one) for one in get.items())],
            exception_handlers={ApiError: _refusal, HoneError: _refusal, 404: _not_served, 405: _not_served},
        )

    async def steps(self, call: Request) -> Response:
        """Store a robot's batch; the answer comes after its commit."""
        robot = self._robot(call)

        def stored(body: bytes) -> dict[str, object]:
            return self.service.ingest(robot, read_batch(body))

        return JSONResponse(await self.reader.prepared(call, stored))

    async def manifest(self, call: Request) -> Response:
        """The signed manifest of a robot."""
        text, signature = await self.reader.beside(0, partial(self.service.manifest, self._robot(call)))
        return JSONResponse({"manifest": text, "signature": signature})

    async def version(self, call: Request) -> Response:
        """A file of a version."""
        self._robot(call)
        path = call.path_params
        read = partial(self.service.policy_file, str(path["version"]), str(path["path"]))
        try:
            return Response(await self.reader.beside(0, read), media_type="application/octet-stream")
        except DataError as error:
            raise ApiError(404, str(error), code="unknown_file") from None

    async def status(self, call: Request) -> Response:
        """The fleet as JSON."""
        self._reads(call)
        view = await self.reader.beside(0, partial(read_fleet, self.service))
        return JSONResponse(asdict(view))

    async def page(self, call: Request) -> Response:
        """The fleet as a page."""
        self._reads(call)
        view = await self.reader.beside(0, partial(read_fleet, self.service))
        return HTMLResponse(fleet_page(view))

    async def live(self, call: Request) -> Response:
        """200 while the process can answer at all."""
        del call
        return JSONResponse({"status": "ok"})

    async def ready(self, call: Request) -> Response:
        """200 while steps are stored, 503 with the reason while they are not."""
        del call
        fault = "draining" if self.draining else self.fault
        return JSONResponse({"status": fault or "ok"}, 503 if fault else 200)

    def tick(self) -> None:
        """Do what is due by time; what fails is told once, and tried again."""
        try:
            self.service.tick()
            self.fault = ""
        except HoneError as error:
            if str(error) != self.fault:
                self.fault = str(error)
                self.tell(self.fault)

    def drain(self) -> None:
        """Note that the server stops."""
        self.draining = True

    def _robot(self, call: Request) -> str:
        robot = call.headers.get("x-robot", "")
        self.service.check_robot(robot, call.headers.get("authorization", ""))
        return robot

    def _reads(self, call: Request) -> None:
        """Raise ApiError for a caller that may not read."""
        try:
            self.access.caller(call.headers.get("authorization", "")).require_scope("read")
        except RequestError as fault:
            raise ApiError(fault.status, str(fault), code=fault.code) from None


async def _refusal(call: Request, error: Exception) -> Response:
    del call
    if isinstance(error, UnknownSchemaError):
        error = ApiError(422, str(error), code="unknown_schema")
    elif isinstance(error, StrangerError):
        error = ApiError(401, str(error), code="unauthorized")
    answer = ApiError.of(error)
    return JSONResponse(answer.body(), answer.status, headers=answer.headers)


async def _not_served(call: Request, error: Exception) -> Response:
    del error
    return await _refusal(call, ApiError(404, f"{call.method:.20} {call.url.path:.100} is not served; {_SERVED}"))


def fleet_plan_lines(path: Path) -> list[str]:
    """Lines of a fleet's plan. Raises ConfigError with every fault of the file, tokens that are not set included."""
    resolved = read_service_file(path)
    config, fleet = resolved.config, resolved.config.fleet
    open_access(resolved, path.parent)
    if fleet is None:
        raise ConfigError(f"{path} has no [fleet]")
    schema, rollout = schemas_of(fleet)[0], config.rollout
    acts = f"one of {fleet.choices}" if fleet.choices else f"{len(fleet.action)} numbers ({', '.join(fleet.action)})"
    shown = "each shows its token, and checks signatures" if fleet.tokens else "from this machine, without a token"
    shares = ", ".join(f"{2 * share:.3g} of the robots" for share in rollout.stages)
    return [
        f"fleet      {config.service.name or path.stem} ({path.name}), {schema.layout.size} bytes a step, schema "
        f"{schema.hash}",
        f"seen       {len(fleet.observation)} numbers: {', '.join(fleet.observation)}",
        f"done       {acts}; older schemas taken: {len(fleet.older)}",
        f"robots     {shown}",
        f"trials     {shares}, half of their episodes each; at most {fleet.trial_episodes} without word from here",
        f"evidence   {', '.join(one.kind for one in rollout.guardrails)}, alpha {rollout.alpha:g} over all stages, "
        f"{'looked at every ' + format(rollout.look_every_s, 'g') + ' s' if rollout.watch else 'by hone ship'}",
    ]


def serve_fleet(path: Path, place: GatewayPlace, *, clock: Clock, tell: Callable[[str], None]) -> None:
    """Serve a file's fleet until SIGTERM or Ctrl-C. Raises ConfigError, DataError, ResourceError."""
    resolved = read_service_file(path)
    fleet = resolved.config.fleet
    access = open_access(resolved, path.parent)
    if not is_loopback(place.host) and (fleet is None or not fleet.tokens or access.open):
        raise ConfigError(
            f"--host {place.host} is reached from other machines: set tokens = true in [fleet], and declare "
            "[[service.clients]] with the scope read for the page"
        )
    service = open_fleet(path, clock=clock, tell=tell)
    routes = FleetRoutes(
        service=service, access=access, tell=tell,
        reader=BodyReader(most_bytes=service.fleet.max_body_bytes, within_s=BODY_S),
    )  # fmt: skip
    try:
        with listening(place.host, place.port) as listener, signals_end_quietly() as signals:
            host, port = listener.getsockname()[:2]
            config = uvicorn.Config(
                routes.app(), http=TimedConnection, ws="none", log_level="warning", access_log=False, lifespan="off",
                server_header=False, date_header=False, proxy_headers=False, timeout_graceful_shutdown=DRAIN_S,
            )  # fmt: skip
            shown = f"[{host}]" if ":" in host else host
            tell(f"serving the fleet {service.folder.name} at http://{shown}:{port}")
            ticking = _Ticking(routes)
            events = ServerEvents(stop=routes.drain, reload=lambda: tell("nothing to reload"), tick=ticking)
            RunningServer(config, events, signals).run(sockets=[listener])
    finally:
        service.close()
    tell("stopped: every batch that was acknowledged is stored")


@dataclass(slots=True, eq=False)
class _Ticking:
    """Ticks on a thread, one at a time, beside the event loop."""

    routes: FleetRoutes
    running: "asyncio.Task[None] | None" = None

    def __call__(self) -> None:
        if self.running is None or self.running.done():
            self.running = asyncio.get_running_loop().create_task(asyncio.to_thread(self.routes.tick))
