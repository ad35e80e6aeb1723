"""A control policy behind HTTP: observations in, actions out, one at a time or in batches, until a signal.

POST /v1/predict; GET /v1/policy, /live, /ready, /health, /metrics. The body of a prediction is an object with
`observation` (one, or a list of them), and optionally `state`, `episode_start`, `mask`, `deterministic` and `seed`, as
`SavedPolicy.predict` takes them; the answer has `action`, `state` (null without memory) and `policy`, the name of run,
step and weights. Errors have OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hone.control.networks.mlp import BoxActions
from hone.control.predict import SavedPolicy, open_saved_policy
from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, HoneError, did_you_mean
from hone.core.strict_json import strict_json
from hone.run.http.listening import METRICS_TYPE, SecondsHistogram, listening, metric_lines, signals_end_quietly
from hone.run.http.requests import BODY_S, MOST_BODY_BYTES, ApiError, BodyReader, check_key, read_key, require_key
from hone.run.http.server import RunningServer, ServerEvents, TimedConnection
from hone.run.store.folder import open_run

_FIELDS: Final = ("observation", "state", "episode_start", "mask", "deterministic", "seed")
_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_SHOWN: Final = 12
"""Digits of the weights' hash in the name of a policy."""

# ---------------------------------------------------------------------------------------------------------- policy


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServedPolicy:
    """An opened policy and its name for clients."""

    saved: SavedPolicy
    fingerprint: str
    """`run@step-hash`; without the step outside of a run."""
    step: int
    """Step of the checkpoint; 0 outside of a run."""

    def describe(self) -> dict[str, Any]:
        """What a client needs to know."""
        actions = self.saved.actions
        return {
            "policy": self.fingerprint,
            "observation": str(self.saved.observation),
            "action": actions.describe(),
            "memory": self.saved.has_memory,
            "mask": sum(actions.choices) if not isinstance(actions, BoxActions) and actions.masked else 0,
        }


def open_served_policy(folder: Path, *, name: str, step: int | None) -> _ServedPolicy:
    """Open the policy in `folder` to be served. Raises DataError."""
    saved, digest = open_saved_policy(folder), sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file():
            digest.update(file.read_bytes())
    at = "" if step is None else f"@{step}"
    return _ServedPolicy(saved=saved, fingerprint=f"{name}{at}-{digest.hexdigest()[:_SHOWN]}", step=step or 0)


# ---------------------------------------------------------------------------------------------------------- routes


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyServerConfig:
    """Where a server listens, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    api_key: str = ""
    """Bearer token that requests must bring; empty: none."""
    key_file: Path | None = None
    """File that `api_key` was read from; it is read again at SIGHUP."""
    most_body_bytes: int = MOST_BODY_BYTES
    body_s: float = BODY_S
    """Seconds for a body to arrive."""
    deadline_s: float = 600.0
    """A request that is not answered by then gets 408."""
    follow: Path | None = None
    """Run whose new checkpoints are taken up once a second."""


@dataclass(slots=True, eq=False, kw_only=True)
class PolicyRoutes:
    """Handlers of the routes, for `serve_policy` or for an application of your own."""

    served: _ServedPolicy
    config: PolicyServerConfig
    clock: Clock
    draining: bool = False
    """True once the server stops: `/ready` says so, and balancers send nobody any more."""
    decisions: int = 0
    responses: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """Responses by path and status."""
    refused: set[int] = field(default_factory=set[int])
    """Steps of checkpoints that could not be taken up."""
    seconds: SecondsHistogram = field(default_factory=lambda: SecondsHistogram(_BUCKETS_S))
    bodies: BodyReader = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = BodyReader(most_bytes=self.config.most_body_bytes, within_s=self.config.body_s)

    def app(self) -> Starlette:
        """The application, for any server of ASGI."""
        routes = [
            Route("/v1/predict", self._guarded(self.predict, "/v1/predict"), methods=["POST"]),
            Route("/v1/policy", self._guarded(self.policy, "/v1/policy")),
            Route("/live", self.live),
            Route("/ready", self.ready),
            Route("/health", self.ready),
            Route("/metrics", self.metrics),
        ]
        return Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found})

    async def predict(self, call: Request) -> Response:
        """Actions for the observations of a body."""
        began_s, served = self.clock.monotonic_s(), self.served
        try:
            async with asyncio.timeout(self.config.deadline_s):
                content, count = await self.bodies.prepared(call, partial(answer_prediction, served))
        except TimeoutError:
            message = f"no answer within {self.config.deadline_s:g} s; send fewer observations at a time"
            raise ApiError(408, message, code="deadline") from None
        self.decisions += count
        self.seconds.add(self.clock.monotonic_s() - began_s)
        return Response(content, media_type="application/json")

    async def policy(self, call: Request) -> Response:
        """Name and spaces of the policy."""
        del call
        return JSONResponse(self.served.describe())

    async def live(self, call: Request) -> Response:
        """200 while the process answers at all."""
        del call
        return JSONResponse({"status": "ok"})

    async def ready(self, call: Request) -> Response:
        """200 while requests are answered, 503 once the server stops."""
        del call
        status = {"status": "draining" if self.draining else "ok", "policy": self.served.fingerprint}
        return JSONResponse(status, status_code=503 if self.draining else 200)

    async def metrics(self, call: Request) -> Response:
        """Counts in Prometheus's text format."""
        del call
        responses, labels = sorted(self.responses.items()), ("path", "status")
        lines = [
            *metric_lines("hone_decisions_total", "counter", "Decisions.", (), [((), self.decisions)]),
            *metric_lines("hone_policy_step", "gauge", "Step of the policy.", (), [((), self.served.step)]),
            *metric_lines("hone_responses_total", "counter", "Responses by path and status.", labels, responses),
            *self.seconds.lines("hone_prediction_seconds", "Seconds of a prediction."),
        ]
        return PlainTextResponse("\n".join(lines) + "\n", media_type=METRICS_TYPE)

    def drain(self) -> None:
        """Note that the server stops."""
        self.draining = True

    def _guarded(
        self, handler: Callable[[Request], Awaitable[Response]], path: str
    ) -> Callable[[Request], Awaitable[Response]]:
        """A handler behind the key, whose errors have a status and words for the client."""

        async def guarded(call: Request) -> Response:
            try:
                check_key(call, self.config.api_key)
                response = await handler(call)
            except Exception as error:  # noqa: BLE001 - every failure has a status and words for its client
                fault = ApiError.of(error)
                response = JSONResponse(fault.body(), status_code=fault.status, headers=fault.headers)
            self.responses[path, response.status_code] += 1
            return response

        return guarded


def answer_prediction(served: _ServedPolicy, body: bytes) -> tuple[bytes, int]:
    """The JSON answer to the body of a prediction, and the number of its observations. Raises ApiError."""
    fields = _read_fields(body)
    rows, is_batch = served.saved.observation.rows(fields["observation"])
    flag, seed = fields.get("deterministic", True), fields.get("seed")
    if not isinstance(flag, bool):
        raise ApiError(400, "deterministic must be true or false", param="deterministic", code="invalid_value")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ApiError(400, "seed must be a whole number >= 0", param="seed", code="invalid_value")
    action, state = served.saved.predict(
        rows if is_batch else rows[0],
        state=cast("Any", fields.get("state")),
        episode_start=cast("Any", fields.get("episode_start")),
        mask=cast("Any", fields.get("mask")),
        deterministic=flag,
        seed=seed,
    )
    answer = {"action": np.asarray(action).tolist(), "state": None if state is None else state.tolist()}
    return bytes(JSONResponse({**answer, "policy": served.fingerprint}).body), len(rows)


def _read_fields(body: bytes) -> Mapping[str, object]:
    try:
        value = strict_json(body)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error!s:.200}", code="not_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be an object with a field observation", code="not_an_object")
    unknown = [name for name in value if name not in _FIELDS]
    if unknown:
        hint = did_you_mean(unknown[0], list(_FIELDS))
        raise ApiError(400, f"unknown field {unknown[0]!r:.60}{hint}", param=unknown[0][:60], code="unknown_field")
    if "observation" not in value:
        raise ApiError(400, "the body has no field observation", param="observation", code="missing_field")
    return cast("dict[str, object]", value)


async def _not_found(call: Request, error: Exception) -> Response:
    del error
    known = "POST /v1/predict, GET /v1/policy, /live, /ready, /health, /metrics"
    fault = ApiError(404, f"{call.method} {call.url.path} is not served; served: {known}", code="not_found")
    return JSONResponse(fault.body(), status_code=fault.status)


# ---------------------------------------------------------------------------------------------------------- server


def serve_policy(served: _ServedPolicy, config: PolicyServerConfig, tell: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress end first. SIGHUP reads the file of the key again. `tell`
    receives lines for the user. Raises ConfigError for an address that others reach without a key, ResourceError where
    the port is taken."""
    require_key(config.host, config.api_key)
    routes = PolicyRoutes(served=served, config=config, clock=SystemClock())
    with listening(config.host, config.port) as listener, signals_end_quietly() as signals:
        host, port = listener.getsockname()[:2]
        server = uvicorn.Config(
            routes.app(), http=TimedConnection, ws="none", log_level="warning", access_log=False, lifespan="off",
            timeout_graceful_shutdown=max(1, round(config.deadline_s)),
        )  # fmt: skip
        shown = f"[{host}]" if ":" in host else host
        tell(f"serving {served.fingerprint} at http://{shown}:{port}/v1/predict: {served.saved.observation}")
        events = ServerEvents(
            stop=routes.drain,
            reload=partial(_reload_key, routes, tell),
            tick=None if config.follow is None else partial(take_newest, routes, config.follow, tell),
        )
        RunningServer(server, events, signals).run(sockets=[listener])
    tell("stopped: every request in progress was answered")


def take_newest(routes: PolicyRoutes, run: Path, tell: Callable[[str], None]) -> None:
    """Serve the newest checkpoint of a run if it is newer. One that cannot be read is told, and not looked at again."""
    checkpoints = open_run(run, clock=SystemClock()).checkpoints()
    newest = max(checkpoints.steps(), default=0)
    if newest <= routes.served.step or newest in routes.refused:
        return
    name = routes.served.fingerprint.rpartition("-")[0].partition("@")[0]
    try:
        routes.served = open_served_policy(checkpoints.at(newest).policy_folder, name=name, step=newest)
    except HoneError as fault:
        routes.refused.add(newest)
        tell(f"step {newest} is not served, the one before is: {fault}")
    else:
        tell(f"serving {routes.served.fingerprint}")


def _reload_key(routes: PolicyRoutes, tell: Callable[[str], None]) -> None:
    """Answer SIGHUP; what fails is told, and the old key stays."""
    file = routes.config.key_file
    try:
        if file is not None:
            routes.config = replace(routes.config, api_key=read_key(file))
    except ConfigError as fault:
        tell(f"not reloaded: {fault}")
    else:
        tell("reloaded" if file is None else "reloaded: the key")
