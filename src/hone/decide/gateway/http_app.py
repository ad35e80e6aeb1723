"""The routes of a decision service, an application for any server of ASGI.

POST /v1/decide, /v1/reward, /v1/decide/batch, /v1/decide/joint, /v1/reward/batch, /v1/features; GET /live, /ready,
/health, /metrics, /openapi.json; WebSocket /v1/session. A request is refused by its token and its tenant's rate before
its body is read.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, cast

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from hone.core.errors import did_you_mean
from hone.core.strict_json import strict_json
from hone.decide.gateway.access import (
    AccessList,
    AccessScope,
    CallerAccess,
    HeldRefusals,
    TenantLimits,
)
from hone.decide.gateway.feature_join import FeatureJoin
from hone.decide.gateway.requests import (
    ActionInput,
    ContextInput,
    Decided,
    DecisionRequest,
    RequestError,
    Rewarded,
    RewardRequest,
    check_number,
    check_text,
    joint_requests,
    shown,
)
from hone.decide.gateway.service import DecisionService, ServiceAnswer, ServiceRequest
from hone.run.http.listening import METRICS_TYPE

# --------------------------------------------------------------------------------------------------------------- bodies


MAX_DEADLINE_S: Final = 60.0
MAX_BATCH: Final = 1000
BODY_S: Final = 10.0
_DECIDE_FIELDS: Final = ("actions", "context", "deadline_s", "id", "tenant", "unit")
_REWARD_FIELDS: Final = ("at_s", "id", "key", "kind", "seq", "source", "tenant", "value")


def _read_object(body: bytes) -> Mapping[str, object]:
    """The object of a body. Raises RequestError (400) for anything else."""
    try:
        value = strict_json(body)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise RequestError(f"the body is not JSON: {error!s:.200}", status=400, code="not_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be an object, got {shown(value)}", status=400, code="not_an_object")
    return cast("dict[str, object]", value)


def _read_decision(fields: Mapping[str, object], key: str = "", tenant: str = "") -> DecisionRequest:
    """A decision request; `key` is the id and `tenant` the tenant if the body gives none."""
    _refuse_unknown(fields, _DECIDE_FIELDS)
    deadline_s = fields.get("deadline_s")
    if deadline_s is not None:
        deadline_s = check_number(deadline_s, "deadline_s")
        if not 0 < deadline_s <= MAX_DEADLINE_S:
            message = f"deadline_s must be above 0 and at most {MAX_DEADLINE_S:g}, got {deadline_s:g}"
            raise RequestError(message, code="bad_value", field="deadline_s")
    return DecisionRequest(
        unit=check_text(_required(fields, "unit"), "unit"),
        context=cast("ContextInput", fields.get("context")),
        actions=cast("Sequence[ActionInput] | None", fields.get("actions")),
        id=_optional_text(fields, "id") or key,
        tenant=_optional_text(fields, "tenant") or tenant,
        deadline_s=deadline_s,
    )


def _read_reward(fields: Mapping[str, object], key: str = "", tenant: str = "") -> RewardRequest:
    """A reward; `key` is its key and `tenant` the tenant if the body gives none."""
    _refuse_unknown(fields, _REWARD_FIELDS)
    at_s = fields.get("at_s")
    return RewardRequest(
        id=check_text(_required(fields, "id"), "id"),
        value=check_number(_required(fields, "value"), "value"),
        kind=_optional_text(fields, "kind") or "reward",
        tenant=_optional_text(fields, "tenant") or tenant,
        at_s=None if at_s is None else check_number(at_s, "at_s"),
        source=_optional_text(fields, "source"),
        seq=-1 if fields.get("seq") is None else cast("int", fields["seq"]),
        key=_optional_text(fields, "key") or key,
    )


def _read_joint(fields: Mapping[str, object], key: str, tenant: str, made: Callable[[], str]) -> list[DecisionRequest]:
    """The requests of a joint decision's units; `made` gives it an id if neither the body nor `key` does."""
    units = _required(fields, "units")
    if not isinstance(units, list):
        raise RequestError(f"units must be a list, got {shown(units)}", code="bad_batch", field="units")
    shared = {name: value for name, value in fields.items() if name != "units"}
    if "unit" in shared:
        raise RequestError("unknown field 'unit'; did you mean units?", code="unknown_field", field="unit")
    request = _read_decision({**shared, "unit": "joint"}, key, tenant)
    return joint_requests(cast("list[object]", units), replace(request, id=request.id or made()))


def _read_batch(fields: Mapping[str, object], name: str) -> Sequence[object]:
    """The entries of a batch under the field `name`. Raises RequestError."""
    _refuse_unknown(fields, (name,))
    entries = _required(fields, name)
    if not isinstance(entries, list) or not 0 < len(cast("list[object]", entries)) <= MAX_BATCH:
        message = f"{name} must be a list of 1 to {MAX_BATCH} entries, got {shown(entries)}"
        raise RequestError(message, code="bad_batch", field=name)
    return cast("list[object]", entries)


def _answer_body(answer: Decided | Rewarded | RequestError) -> dict[str, object]:
    """The body of an answer."""
    match answer:
        case Decided():
            return {
                "id": answer.id, "action": answer.action, "index": answer.index, "logp": answer.logp,
                "probability": answer.probability, "version": answer.version, "route": answer.route,
                "intervention": answer.intervention,
            }  # fmt: skip
        case Rewarded():
            return {"id": answer.id, "status": answer.status}
        case RequestError():
            return {"error": {"code": answer.code, "message": str(answer), "field": answer.field}}


def _to_json(value: object) -> bytes:
    """JSON in UTF-8."""
    return orjson.dumps(value)


def _refuse_unknown(fields: Mapping[str, object], known: Sequence[str]) -> None:
    if not fields.keys() <= set(known):
        name = min(fields.keys() - set(known))
        message = f"unknown field {shown(name)}{did_you_mean(name[:60], known)}"
        raise RequestError(message, code="unknown_field", field=name[:60])


def _required(fields: Mapping[str, object], name: str) -> object:
    if name not in fields:
        raise RequestError(f"{name} is missing", code="missing_field", field=name)
    return fields[name]


def _optional_text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    return "" if value is None else check_text(value, name)


# ------------------------------------------------------------------------------------------------------------- http app


_SERVED: Final = (
    "POST /v1/decide, /v1/reward, /v1/decide/batch, /v1/decide/joint, /v1/reward/batch, /v1/features; GET /live, "
    "/ready, /metrics, "
    "/openapi.json; WebSocket /v1/session"
)


class _RateLimitError(RequestError):
    """A tenant sends more than its rate."""

    def __init__(self, tenant: str, retry_after_s: float) -> None:
        message = f"tenant {tenant!r} sends more than its rate; try again in {retry_after_s:.1f} s"
        super().__init__(message, status=429, code="rate_limited")
        self.tenant = tenant
        self.retry_after_s = retry_after_s


@dataclass(slots=True, eq=False)
class _RequestBatch:
    """Requests that are answered together."""

    requests: list[ServiceRequest] = field(default_factory=list[ServiceRequest])
    answers: Sequence[ServiceAnswer | RequestError] | None = None
    error: Exception | None = None
    done: asyncio.Event | None = None
    """Set once the thread has answered; None: nobody waits for a thread."""

    def answer(self, service: DecisionService) -> None:
        """Answer all of them; a failure is each one's own."""
        try:
            self.answers = service.answer_many(self.requests)
        except Exception as error:  # noqa: BLE001 - each waiting request gets the failure
            self.error = error


class RequestBatcher:
    """Requests that arrive at the same time are answered together: one append to the log for all of them.

    `apart`: on a thread, for logs and policies that may wait; else in the event loop, which is quicker: the first
    request of an iteration answers them all in the next one, without any hand-over.
    """

    def __init__(self, service: DecisionService, *, apart: bool) -> None:
        self._service = service
        self._batch = _RequestBatch()
        self._threads = ThreadPoolExecutor(1, "decide") if apart else None
        self._busy = False
        self._ticking: Future[None] | None = None

    def tick(self) -> None:
        """Do what is due by time: on the thread, if there is one, unless it is still at it."""
        if self._threads is None:
            self._service.tick()
        elif self._ticking is None or self._ticking.done():
            self._ticking = self._threads.submit(self._service.tick)

    async def answer(self, requests: Sequence[ServiceRequest]) -> Sequence[ServiceAnswer | RequestError]:
        """Answers in the order of the requests."""
        batch, place = self._batch, len(self._batch.requests)
        batch.requests.extend(requests)
        if self._threads is None:
            await asyncio.sleep(0)  # the others of this iteration join
            if batch is self._batch:
                self._batch = _RequestBatch()
                batch.answer(self._service)
        else:
            await self._on_thread(batch, self._threads)
        if batch.answers is None:
            raise batch.error or RuntimeError("requests without answers")
        return batch.answers[place : place + len(requests)]

    async def _on_thread(self, batch: _RequestBatch, threads: ThreadPoolExecutor) -> None:
        """Wait for the thread, which takes all requests that came while it was busy."""
        if batch.done is None:
            batch.done = asyncio.Event()
            if not self._busy:
                asyncio.get_running_loop().call_soon(self._send, threads)
                self._busy = True
        await batch.done.wait()

    def _send(self, threads: ThreadPoolExecutor) -> None:
        batch, self._batch = self._batch, _RequestBatch()
        work = asyncio.get_running_loop().run_in_executor(threads, batch.answer, self._service)
        work.add_done_callback(lambda _: self._sent(batch, threads))

    def _sent(self, batch: _RequestBatch, threads: ThreadPoolExecutor) -> None:
        if batch.done is not None:
            batch.done.set()
        self._busy = bool(self._batch.requests)
        if self._busy:
            self._send(threads)


@dataclass(slots=True, eq=False, kw_only=True)
class GatewayRoutes:
    """Handlers of the routes."""

    service: DecisionService
    batcher: RequestBatcher
    access: AccessList = field(default_factory=AccessList)
    limits: TenantLimits = field(default_factory=lambda: TenantLimits({}))
    max_body_bytes: int = 1 << 20
    openapi: Mapping[str, object] = field(default_factory=dict[str, object])
    draining: bool = False
    """True once the server stops: `/ready` says so."""
    log_fault: Callable[[], Awaitable[str]] | None = None
    """Why decisions cannot be logged now; empty: they can."""
    body_s: float = BODY_S
    """Seconds for a body to arrive."""
    held: dict[str, HeldRefusals] = field(default_factory=dict[str, HeldRefusals])
    """Refusals that are answered late, by tenant."""

    def app(self) -> ASGIApp:
        """The application."""
        posts = {
            "/v1/decide": _PostEndpoint(self, "/v1/decide", "decide", _read_decision),
            "/v1/reward": _PostEndpoint(self, "/v1/reward", "reward", _read_reward),
            "/v1/decide/batch": _PostEndpoint(self, "/v1/decide/batch", "decide", _read_decision, "decisions"),
            "/v1/decide/joint": _PostEndpoint(self, "/v1/decide/joint", "decide", _read_decision, "units"),
            "/v1/reward/batch": _PostEndpoint(self, "/v1/reward/batch", "reward", _read_reward, "rewards"),
        }
        if (features := self.service.parts.features) is not None:
            posts["/v1/features"] = _FeaturesEndpoint(self, features)
        routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
        routes += [
            Route("/live", self.live),
            Route("/ready", self.ready),
            Route("/health", self.ready),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.schema),
            WebSocketRoute("/v1/session", _Session(self, posts)),
        ]
        other = Starlette(routes=routes, exception_handlers={404: self._not_served, 405: self._not_allowed})

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            """Answer at once where the path is known: Starlette's routing costs a tenth of a decision."""
            endpoint = posts.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
            await (endpoint or other)(scope, receive, send)

        return app

    async def live(self, call: Request) -> Response:
        """200 while the process can answer at all."""
        del call
        return Response(_to_json({"status": "ok"}), media_type="application/json")

    async def ready(self, call: Request) -> Response:
        """200 while decisions are answered, 503 with the reason while they are not: send them elsewhere, and wait."""
        del call
        fault = "draining" if self.draining else ""
        if not fault and self.log_fault is not None:
            fault = await self.log_fault()
        status = {"status": fault or "ok", "log_waiting": self.service.parts.writer.waiting()}
        return Response(_to_json(status), 503 if fault else 200, media_type="application/json")

    async def metrics(self, call: Request) -> Response:
        """Prometheus's text."""
        try:
            self.access.caller(call.headers.get("authorization", "")).require_scope("read")
        except RequestError as fault:
            return Response(_to_json(_answer_body(fault)), fault.status, media_type="application/json")
        return Response(self.service.counters_text(), media_type=METRICS_TYPE)

    async def schema(self, call: Request) -> Response:
        """The description of the routes."""
        del call
        return Response(_to_json(self.openapi), media_type="application/json")

    async def _not_served(self, call: Request, error: Exception) -> Response:
        del error
        return _refusal(f"{call.url.path:.100} is not served; served: {_SERVED}", 404, "not_found")

    async def _not_allowed(self, call: Request, error: Exception) -> Response:
        headers = error.headers if isinstance(error, HTTPException) else None
        message = f"{call.method:.20} {call.url.path:.100} is not served; served: {_SERVED}"
        return _refusal(message, 405, "method_not_allowed", headers)

    def drain(self) -> None:
        """Note that the server stops."""
        self.draining = True

    def refuse(self, path: str, fault: RequestError, caller: CallerAccess | None) -> None:
        """Count a refused request, and write its line."""
        self.service.parts.counters.faults[fault.code] += 1
        named = {"path": path, "status": fault.status, "field": fault.field, "client": caller.client if caller else ""}
        self.service.parts.lines.fault(fault.code, str(fault), named)

    def limit(self, tenant: str, count: int) -> None:
        """Raise RateLimitError if the tenant sends more than its rate."""
        wait_s = self.limits.check(tenant, count, self.service.parts.clock.monotonic_s())
        if wait_s > 0.0:
            raise _RateLimitError(tenant, wait_s)

    async def hold(self, fault: _RateLimitError) -> bool:
        """Hold a refusal back for a moment; False: too many are held, its connection must be closed."""
        held = self.held.setdefault(fault.tenant, HeldRefusals())
        hold_s = held.begin(fault.retry_after_s, self.service.parts.clock.monotonic_s())
        if hold_s is None:
            return False
        try:
            await asyncio.sleep(hold_s)
        finally:
            held.end()
        return True


def _refusal(words: str, status: int, code: str, headers: Mapping[str, str] | None = None) -> Response:
    body = _to_json(_answer_body(RequestError(words, status=status, code=code)))
    return Response(body, status, headers=headers, media_type="application/json")


Reader = Callable[[Mapping[str, object], str, str], ServiceRequest]
"""From a body, the caller's key and its tenant."""


class _PostEndpoint:
    """A route that takes JSON: an application of ASGI of its own, as Starlette's wrapping costs half of the time."""

    def __init__(self, routes: GatewayRoutes, path: str, scope: AccessScope, read: Reader, many: str = "") -> None:
        self._routes = routes
        self._path = path
        self._scope: AccessScope = scope
        self._read = read
        self._many = many
        """Field of a batch's entries; empty: the body is one request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = self._routes.service.parts
        began_s = parts.clock.monotonic_s()
        headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
        caller: CallerAccess | None = None
        try:
            headers_sent = _headers(scope)
            caller = self._routes.access.caller(headers_sent.get(b"authorization", b"").decode("latin-1"))
            status, value = await self._answer(caller, headers_sent, receive)
        except RequestError as fault:
            self._routes.refuse(self._path, fault, caller)
            status, value = fault.status, _answer_body(fault)
            if isinstance(fault, _RateLimitError):
                headers.append((b"retry-after", str(max(1, round(fault.retry_after_s + 0.5))).encode()))
                if not await self._routes.hold(fault):
                    headers.append((b"connection", b"close"))
            elif status == 408:
                headers.append((b"connection", b"close"))
            elif status == 503:
                headers.append((b"retry-after", b"1"))
            elif status == 401:
                headers.append((b"www-authenticate", b"Bearer"))
        body = _to_json(value)
        headers.append((b"content-length", str(len(body)).encode()))
        parts.counters.responded(self._path, status, parts.clock.monotonic_s() - began_s)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, caller: CallerAccess, headers: Mapping[bytes, bytes], receive: Receive
    ) -> tuple[int, object]:
        routes = self._routes
        self.admit(caller)
        fields = _read_object(await _body(headers, receive, routes.max_body_bytes, routes.body_s))
        return 200, await self.answer(caller, fields, headers.get(b"idempotency-key", b"").decode("latin-1"))

    def admit(self, caller: CallerAccess) -> None:
        """Raise RequestError for a caller who lacks the scope, or whose tenant sends more than its rate."""
        caller.require_scope(self._scope)
        if caller.tenant:
            self._routes.limit(caller.tenant, 1)

    async def answer(self, caller: CallerAccess, fields: Mapping[str, object], key: str) -> object:
        """The body of the answer to an admitted request. Raises RequestError."""
        routes = self._routes
        tenants = routes.service.parts.rules.tenants
        tenant = caller.tenant or tenants[0]
        entries: list[ServiceRequest | RequestError]
        if self._many == "units":
            entries = [*_read_joint(fields, key, tenant, routes.service.parts.new_id)]
        elif self._many:
            entries = [_entry(entry, self._read, tenant) for entry in _read_batch(fields, self._many)]
        else:
            entries = [self._read(fields, key, tenant)]
        answers: list[ServiceAnswer | RequestError | None] = []
        requests: list[ServiceRequest] = []
        for entry in entries:
            bound = _bound(entry, caller, tenants)
            answers.append(bound if isinstance(bound, RequestError) else None)
            if not isinstance(bound, RequestError):
                requests.append(bound)
        if routes.limits.active:
            for tenant, count in Counter(one.tenant for one in requests).items():
                more = count - 1 if tenant == caller.tenant else count
                if more:
                    routes.limit(tenant, more)
        answered = iter(await routes.batcher.answer(requests)) if requests else iter(())
        whole = [answer if answer is not None else next(answered) for answer in answers]
        if isinstance(whole[0], RequestError) and self._many in ("", "units"):
            raise whole[0]
        return {"answers": [_answer_body(answer) for answer in whole]} if self._many else _answer_body(whole[0])


class _FeaturesEndpoint(_PostEndpoint):
    """The route that stores features: writers are other programs than callers of decisions, with a scope of their
    own."""

    def __init__(self, routes: GatewayRoutes, features: FeatureJoin) -> None:
        super().__init__(routes, "/v1/features", "features", _read_decision)
        self._features = features

    async def answer(self, caller: CallerAccess, fields: Mapping[str, object], key: str) -> object:
        """Store the rows on a thread, as the store may wait. Raises RequestError."""
        del key  # rows that are put again change nothing
        tenant = caller.tenant_of(_optional_text(fields, "tenant"), self._routes.service.parts.rules.tenants)
        rows = {name: value for name, value in fields.items() if name != "tenant"}
        return {"stored": await asyncio.to_thread(self._features.put, tenant, rows)}


SESSION_IDLE_S: Final = 300.0
"""A session without a message for so long is closed."""


@dataclass(frozen=True, slots=True)
class _Session:
    """A game's connection: messages are requests with the name of their route, answered one after another.

    `{"op": "decide", "unit": ..., "ref": 7}` is answered as POST /v1/decide is, with `ref` as it came; other names are
    `reward` and `decide/joint`. A refused message is answered and leaves the session open, one that is no request
    closes it. The token is that of the handshake.
    """

    routes: GatewayRoutes
    posts: Mapping[str, _PostEndpoint]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        try:
            caller = self.routes.access.caller(socket.headers.get("authorization", ""))
        except RequestError as fault:
            self.routes.refuse("/v1/session", fault, None)
            await socket.close(1008, str(fault)[:100])
            return
        await socket.accept()
        try:
            while not self.routes.draining:
                async with asyncio.timeout(SESSION_IDLE_S):
                    text = await socket.receive_text()
                await socket.send_text((await self._reply(caller, text)).decode())
            await socket.close(1012, "the server stops; connect again")
        except TimeoutError:
            await socket.close(1001, f"no message for {SESSION_IDLE_S:g} s")
        except RequestError as fault:
            self.routes.refuse("/v1/session", fault, caller)
            await socket.close(1009 if fault.status == 413 else 1003, str(fault)[:100])
        except WebSocketDisconnect:
            return

    async def _reply(self, caller: CallerAccess, text: str) -> bytes:
        """The answer to one message. Raises RequestError for one that is no request."""
        if len(text) > self.routes.max_body_bytes:
            message = f"the message has {len(text)} characters, at most {self.routes.max_body_bytes} are read"
            raise RequestError(message, status=413, code="too_large")
        fields = dict(_read_object(text.encode("utf-8", "surrogatepass")))
        name, ref = fields.pop("op", None), fields.pop("ref", None)
        path = f"/v1/{name}"
        endpoint = self.posts.get(path) if path in _SESSION_PATHS else None
        try:
            if endpoint is None:
                known = ", ".join(one.removeprefix("/v1/") for one in _SESSION_PATHS)
                message = f"op must be one of {known}, got {shown(name)}"
                raise RequestError(message, code="bad_value", field="op")
            endpoint.admit(caller)
            answer = await endpoint.answer(caller, fields, "")
        except RequestError as fault:
            self.routes.refuse("/v1/session", fault, caller)
            answer = _answer_body(fault)
        return _to_json({**cast("dict[str, object]", answer), "ref": ref})


_SESSION_PATHS: Final = ("/v1/decide", "/v1/decide/joint", "/v1/reward")


def _bound(
    entry: ServiceRequest | RequestError, caller: CallerAccess, tenants: Sequence[str]
) -> ServiceRequest | RequestError:
    """The request, or the fault of its tenant."""
    if isinstance(entry, RequestError):
        return entry
    try:
        caller.tenant_of(entry.tenant, tenants)
    except RequestError as fault:
        return fault
    return entry


def _entry(entry: object, read: Reader, tenant: str) -> ServiceRequest | RequestError:
    if not isinstance(entry, dict):
        return RequestError(f"an entry must be an object, got {shown(entry)}", code="bad_type")
    try:
        return read(cast("dict[str, object]", entry), "", tenant)
    except RequestError as fault:
        return fault


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return dict(cast("Sequence[tuple[bytes, bytes]]", scope["headers"]))


async def _body(headers: Mapping[bytes, bytes], receive: Receive, most: int, within_s: float) -> bytes:
    """The body. Raises RequestError: 413 as soon as it is known to be too long, 408 if it does not arrive."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > most:
        raise RequestError(f"the body has {int(length)} bytes, at most {most} are read", status=413, code="too_large")
    try:
        async with asyncio.timeout(within_s):
            return await _arrived(receive, most)
    except TimeoutError:
        raise RequestError(f"the body did not arrive within {within_s:g} s", status=408, code="slow_body") from None


async def _arrived(receive: Receive, most: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("the client closed its connection", status=400, code="disconnected")
        piece = cast("bytes", message.get("body", b""))
        size += len(piece)
        if size > most:
            raise RequestError(f"the body has more than {most} bytes", status=413, code="too_large")
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces) if len(pieces) > 1 else piece
