"""Description of a service's routes in OpenAPI 3.1, with its own features and actions."""

from collections.abc import Mapping, Sequence
from typing import Final

import hone
from hone.core.decisions import SHADOW_PREFIX
from hone.decide.gateway.bodies import MAX_BATCH, MAX_DEADLINE_S
from hone.decide.gateway.requests import MAX_TEXT, TEXT_PATTERN
from hone.decide.gateway.schemas import MAX_ACTIONS
from hone.decide.gateway.service_config import ServiceTableConfig
from hone.decide.log.faults import MAX_SEQ

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
    "413": "The body is too long.",
    "422": "A field is missing, unknown or of the wrong kind; the message names it.",
    "429": "The tenant sends more than its rate; Retry-After says when to try again.",
    "503": "The decision log takes no records, or the server stops; nothing was decided.",
}


def openapi_document(name: str, service: ServiceTableConfig) -> Schema:
    """The document of `/openapi.json`."""
    schemas = {
        "Decide": decide_schema(service),
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
            "/v1/reward/batch": {
                "post": _post("Tell several outcomes.", _batch("rewards", "Reward"), _answers("Rewarded"))
            },
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}] if service.clients else [],
    }  # fmt: skip


def decide_schema(service: ServiceTableConfig) -> Schema:
    """Schema of a decision request."""
    context = _features_schema(service.features)
    action: Schema = {"enum": list(service.actions)} if service.actions else TEXT
    if service.action_features:
        action = _object({"name": TEXT, "features": _features_schema(service.action_features)})
    actions = {"type": "array", "items": action, "minItems": 1, "maxItems": MAX_ACTIONS, "uniqueItems": True}
    required = ["unit"] + (["context"] if context["required"] else [])
    required += [] if service.actions and not service.action_features else ["actions"]
    deadline = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DEADLINE_S}
    fields = {
        "unit": TEXT, "context": context, "actions": actions if "actions" in required else _optional(actions),
        "id": _optional(TEXT), "tenant": _optional(TEXT), "deadline_s": _optional(deadline),
    }  # fmt: skip
    return _object(fields, required=required)


def _features_schema(names: Sequence[str]) -> dict[str, object]:
    keys = {name.partition("=")[0]: TEXT if "=" in name else NUMBER for name in names}
    return _object(keys)


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
    faults = {status: {"description": told, "content": _json(_named("Fault"))} for status, told in _STATUSES.items()}
    return {
        "summary": words,
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {"200": {"description": "The answer.", "content": _json(answer)}, **faults},
    }


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}
