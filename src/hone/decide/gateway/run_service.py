"""A server process of a decision service: listens until a signal; requests in progress are answered first."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

import uvicorn

import hone
from hone.core.clock import Clock
from hone.core.config import is_loopback
from hone.core.decisions import SHADOW_PREFIX
from hone.core.errors import ConfigError, HoneError
from hone.decide.gateway.http_app import MAX_BATCH, MAX_DEADLINE_S, GatewayRoutes, RequestBatcher
from hone.decide.gateway.opening import OpenedService, open_service, read_service_file
from hone.decide.gateway.operations import LogProbe, reload_service, tenant_limits
from hone.decide.gateway.requests import MAX_ACTIONS, MAX_JOINT, MAX_TEXT, TEXT_PATTERN
from hone.decide.gateway.service_config import FolderServiceConfig, ServiceFileConfig, ServiceTableConfig
from hone.decide.log.codec import MAX_SEQ
from hone.run.http.listening import listening, signals_end_quietly
from hone.run.http.server import RunningServer, ServerEvents, TimedConnection

# -------------------------------------------------------------------------------------------------------------- openapi


Schema = Mapping[str, object]
TEXT: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT, "pattern": TEXT_PATTERN}
KIND: Final[Schema] = {**TEXT, "not": {"pattern": f"^{SHADOW_PREFIX}"}}
NUMBER: Final[Schema] = {"type": "number"}
_STATUSES: Final = {
    "400": "The body is not JSON, or no object.",
    "401": "No token, or an unknown one.",
    "403": "The token lacks the scope, or belongs to another tenant.",
    "404": "Unknown tenant or path.",
    "409": "The id, key or number was used for another request.",
    "408": "The body did not arrive in time.",
    "413": "The body is too long.",
    "422": "A field is missing, unknown or of the wrong kind; the message names it.",
    "429": "The tenant sends more than its rate; Retry-After says when to try again.",
    "503": "The decision log takes no records, or the server stops; nothing was decided.",
}


def _openapi_document(name: str, config: ServiceFileConfig) -> Schema:
    """The document of `/openapi.json`."""
    service, table = config.service, config.features
    joined = set[str]() if table is None else table.names
    sent = [one for one in service.features if one.partition("=")[0] not in joined]
    values = {"type": "object", "minProperties": 1, "additionalProperties": _optional({"type": ["number", "string"]})}
    rows = {"type": "object", "minProperties": 1, "additionalProperties": values}
    put = {"group": TEXT, "rows": rows, "at_s": _optional(NUMBER), "tenant": _optional(TEXT)}
    stored = _post("Store features.", _object(put, required=("group", "rows")), _named("Stored"))
    context = _features_schema(sent, [] if table is None else [one.entity for one in table.groups if one.entity])
    schemas = {
        "Decide": _decide_schema(service, context),
        "Decided": _object({
            "id": TEXT, "action": TEXT, "index": {"type": "integer", "minimum": 0},
            "logp": {"type": "number", "maximum": 0, "description": "nats"}, "probability": NUMBER,
            "version": {"type": "string"}, "route": {"type": "string"}, "intervention": {"type": "string"},
        }),
        "Reward": _object(
            {
                "id": TEXT, "value": NUMBER, "kind": _optional(KIND), "tenant": _optional(TEXT),
                "at_s": _optional({"type": "number", "minimum": 0}), "source": _optional(TEXT),
                "seq": _optional({"type": "integer", "minimum": 0, "maximum": MAX_SEQ}), "key": _optional(TEXT),
            },
            required=("id", "value"),
        ),
        "Stored": _object({"stored": {"type": "integer", "minimum": 1}}),
        "Rewarded": _object({"id": TEXT, "status": {"enum": ["joined", "waiting", "repeated"]}}),
        "Fault": _object({
            "error": _object({"code": {"type": "string"}, "message": {"type": "string"}, "field": {"type": "string"}})
        }),
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Decisions of {name}", "version": hone.__version__},
        "paths": {
            "/v1/decide": {"post": _post("Decide for a unit.", _named("Decide"), _named("Decided"))},
            "/v1/reward": {"post": _post("Tell an outcome of a decision.", _named("Reward"), _named("Rewarded"))},
            "/v1/decide/batch": {
                "post": _post("Decide for several units.", _batch("decisions", "Decide"), _answers("Decided"))
            },
            "/v1/decide/joint": {
                "post": _post(
                    "Decide once for several units, that execute one joint action.",
                    _decide_schema(service, context, joint=True), _answers("Decided"),
                )
            },
            "/v1/reward/batch": {
                "post": _post("Tell several outcomes.", _batch("rewards", "Reward"), _answers("Rewarded"))
            },
            **({} if table is None else {"/v1/features": {"post": stored}}),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}] if service.clients else [],
    }  # fmt: skip


def _decide_schema(service: ServiceTableConfig, context: Schema, *, joint: bool = False) -> Schema:
    """Schema of a decision request; of a joint one, with `units`."""
    action: Schema = {"enum": list(service.actions)} if service.actions else TEXT
    if service.action_features:
        action = _object({"name": TEXT, "features": _features_schema(service.action_features)})
    actions = {"type": "array", "items": action, "minItems": 1, "maxItems": MAX_ACTIONS, "uniqueItems": True}
    who = "units" if joint else "unit"
    required = [who] + (["context"] if context["required"] else [])
    required += [] if service.actions and not service.action_features else ["actions"]
    deadline = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DEADLINE_S}
    units = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": MAX_JOINT, "uniqueItems": True}
    fields = {
        who: units if joint else TEXT, "context": context,
        "actions": actions if "actions" in required else _optional(actions),
        "id": _optional(TEXT), "tenant": _optional(TEXT), "deadline_s": _optional(deadline),
    }  # fmt: skip
    return _object(fields, required=required)


def _features_schema(names: Sequence[str], entities: Sequence[str] = ()) -> dict[str, object]:
    keys = {name.partition("=")[0]: TEXT if "=" in name else NUMBER for name in names}
    return _object({**keys, **dict.fromkeys(entities, TEXT)})


def _object(fields: Mapping[str, object], required: Sequence[str] | None = None) -> dict[str, object]:
    names = list(fields) if required is None else list(required)
    return {"type": "object", "properties": fields, "required": names, "additionalProperties": False}


def _optional(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _batch(field: str, name: str) -> Schema:
    words = f"as {name}; a fault of an entry stands in its answer's place"
    items = {"description": words}
    return _object({field: {"type": "array", "items": items, "minItems": 1, "maxItems": MAX_BATCH}})


def _answers(name: str) -> Schema:
    return _object({"answers": {"type": "array", "items": {"anyOf": [_named(name), _named("Fault")]}}})


def _post(words: str, body: Schema, answer: Schema) -> Schema:
    faults = {status: {"description": text, "content": _json(_named("Fault"))} for status, text in _STATUSES.items()}
    return {
        "summary": words,
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {"200": {"description": "The answer.", "content": _json(answer)}, **faults},
    }


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


# -------------------------------------------------------------------------------------------------------- joined writes


class JoinedWrites(asyncio.Transport):
    """A connection that holds the head of an answer back until its body, or the end."""

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        self._inner = inner
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, with a head that waits in front; a head itself waits, unless more heads follow it (100 Continue)."""
        piece = bytes(data)
        if self._head:
            piece, self._head = self._head + piece, b""
        elif piece.startswith(b"HTTP/1.1 ") and piece.endswith(b"\r\n\r\n") and piece[9:10] != b"1":
            self._head = piece
            return
        self._inner.write(piece)

    def close(self) -> None:
        """Write what waits, and close."""
        if self._head and not self._inner.is_closing():
            self._inner.write(self._head)
        self._head = b""
        self._inner.close()

    def is_closing(self) -> bool:
        """True once it is closed or about to be."""
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """What the connection knows of itself: its socket, the address of its peer ..."""
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop reading."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._inner.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to another protocol."""
        self._inner.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that has the connection."""
        return self._inner.get_protocol()

    def abort(self) -> None:
        """Close at once; what waits is lost."""
        self._inner.abort()


class _OnePacketConnection(TimedConnection):
    """A connection over `JoinedWrites`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a connection."""
        super().connection_made(JoinedWrites(cast("asyncio.Transport", transport)))


# ---------------------------------------------------------------------------------------------------------- run service


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


def make_routes(opened: OpenedService) -> GatewayRoutes:
    """The routes of a service, for `serve_gateway` here or for an application of your own."""
    config = opened.config
    clock, writer = opened.clock, opened.service.parts.writer
    remote = [table.address for table in (config.log, config.features) if table is not None and "://" in table.address]
    waits = bool(remote) or isinstance(config.policy, FolderServiceConfig)
    return GatewayRoutes(
        service=opened.service,
        batcher=RequestBatcher(opened.service, apart=waits),
        access=opened.access,
        limits=tenant_limits(config.service.limit, config.service.tenants),
        log_fault=LogProbe(log=opened.log, write_failed_s=writer.failed_s, clock=clock).fault,
        max_body_bytes=config.service.max_body_bytes,
        openapi=_openapi_document(opened.folder.name, config),
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
                routes.app(), http=_OnePacketConnection, ws="auto", log_level="warning", access_log=False,
                ws_max_size=4 * opened.config.service.max_body_bytes, lifespan="off", server_header=False,
                date_header=False, proxy_headers=False, timeout_graceful_shutdown=DRAIN_S,
            )  # fmt: skip
            shown = f"[{host}]" if ":" in host else host
            live = ", ".join(sorted({serving.live.name for serving in opened.policies.tenants.values()}))
            tell(f"serving decisions of {opened.folder.name} (version {live}) at http://{shown}:{port}/v1/decide")
            events = ServerEvents(
                stop=routes.drain, reload=partial(_reload, path, opened, routes, place, tell), tick=routes.batcher.tick
            )
            RunningServer(config, events, signals).run(sockets=[listener])
    finally:
        opened.close()
    tell("stopped: every request in progress was answered, every record is in the log")


def _reload(
    path: Path, opened: OpenedService, routes: GatewayRoutes, place: GatewayPlace, tell: Callable[[str], None]
) -> None:
    """Answer SIGHUP; what fails is told, and what was served before stays."""
    try:
        place.check(has_clients=bool(read_service_file(path).config.service.clients))
        tell(reload_service(path, opened, routes))
    except HoneError as error:
        tell(f"not reloaded: {error}")
