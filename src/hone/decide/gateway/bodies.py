"""Bodies of HTTP requests and responses: JSON, read strictly, every unknown field named."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

import orjson

from hone.core.errors import did_you_mean
from hone.core.strict_json import strict_json
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
    shown,
)

MAX_DEADLINE_S: Final = 60.0
MAX_BATCH: Final = 1000
_DECIDE_FIELDS: Final = ("actions", "context", "deadline_s", "id", "tenant", "unit")
_REWARD_FIELDS: Final = ("at_s", "id", "key", "kind", "seq", "source", "tenant", "value")


def read_object(body: bytes) -> Mapping[str, object]:
    """The object of a body. Raises RequestError (400) for anything else."""
    try:
        value = strict_json(body)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise RequestError(f"the body is not JSON: {error!s:.200}", status=400, code="not_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be an object, got {shown(value)}", status=400, code="not_an_object")
    return cast("dict[str, object]", value)


def read_decision(fields: Mapping[str, object], key: str = "", tenant: str = "") -> DecisionRequest:
    """A decision request; `key` is the id and `tenant` the tenant if the body gives none."""
    _refuse_unknown(fields, _DECIDE_FIELDS)
    deadline_s = fields.get("deadline_s")
    if deadline_s is not None:
        deadline_s = check_number(deadline_s, "deadline_s")
        if not 0 < deadline_s <= MAX_DEADLINE_S:
            told = f"deadline_s must be above 0 and at most {MAX_DEADLINE_S:g}, got {deadline_s:g}"
            raise RequestError(told, code="bad_value", field="deadline_s")
    return DecisionRequest(
        unit=check_text(_required(fields, "unit"), "unit"),
        context=cast("ContextInput", fields.get("context")),
        actions=cast("Sequence[ActionInput] | None", fields.get("actions")),
        id=_optional_text(fields, "id") or key,
        tenant=_optional_text(fields, "tenant") or tenant,
        deadline_s=deadline_s,
    )


def read_reward(fields: Mapping[str, object], key: str = "", tenant: str = "") -> RewardRequest:
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


def read_batch(fields: Mapping[str, object], name: str) -> Sequence[object]:
    """The entries of a batch under the field `name`. Raises RequestError."""
    _refuse_unknown(fields, (name,))
    entries = _required(fields, name)
    if not isinstance(entries, list) or not 0 < len(cast("list[object]", entries)) <= MAX_BATCH:
        told = f"{name} must be a list of 1 to {MAX_BATCH} entries, got {shown(entries)}"
        raise RequestError(told, code="bad_batch", field=name)
    return cast("list[object]", entries)


def answer_body(answer: Decided | Rewarded | RequestError) -> dict[str, object]:
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


def to_json(value: object) -> bytes:
    """JSON in UTF-8."""
    return orjson.dumps(value)


def _refuse_unknown(fields: Mapping[str, object], known: Sequence[str]) -> None:
    if not fields.keys() <= set(known):
        name = min(fields.keys() - set(known))
        told = f"unknown field {shown(name)}{did_you_mean(name[:60], known)}"
        raise RequestError(told, code="unknown_field", field=name[:60])


def _required(fields: Mapping[str, object], name: str) -> object:
    if name not in fields:
        raise RequestError(f"{name} is missing", code="missing_field", field=name)
    return fields[name]


def _optional_text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    return "" if value is None else check_text(value, name)
