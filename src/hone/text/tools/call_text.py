"""Pieces that the formats of tool calls share: an attempt at a call, and strict JSON in the middle of a text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from hone.core.dialogue import ToolCall, ToolSchema
from hone.core.strict_json import strict_json

_SHOWN = 60
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAttempt:
    """A place in an answer that is written as a call."""

    start: int
    end: int
    """Its characters are `text[start:end]`."""
    call: ToolCall | None = None
    fault: str | None = None
    """Reason why it cannot be read; exactly one of `call` and `fault` is set."""


class CallFaultError(ValueError):
    """A call that cannot be read, in words for the model."""


def read_json(text: str, start: int) -> tuple[object, int]:
    """The JSON value that begins at `start`, and the place after it.

    Raises CallFaultError for text that is no JSON, NaN and Infinity, a key that occurs twice, and half a surrogate
    pair.
    """
    try:
        _, end = _DECODER.raw_decode(text, start)
        value = strict_json(text[start:end])
        json.dumps(value, allow_nan=False)
    except json.JSONDecodeError as error:
        raise CallFaultError(f"invalid JSON: {error.msg} at {quoted(text[error.pos :])}") from None
    except (ValueError, RecursionError) as error:
        raise CallFaultError(f"invalid JSON: {error}") from None
    return value, end


def read_string(text: str, start: int) -> tuple[str, int]:
    """The JSON string that begins at `start`, and the place after it. Raises CallFaultError."""
    value, end = read_json(text, start)
    if not isinstance(value, str):
        raise CallFaultError(f"a JSON string was expected at {quoted(text[start:])}")
    return value, end


def write_json(value: object) -> str:
    """A JSON value as chat templates write it: `", "` and `": "` between the parts, letters of all scripts as they are.

    Raises ValueError for NaN and Infinity, TypeError for values that JSON does not have.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def call_of(name: object, arguments: object) -> ToolCall:
    """A call whose parts were read from JSON. Raises CallFaultError."""
    if not isinstance(name, str) or not name:
        raise CallFaultError(f"the name of the tool is {quoted(repr(name))}, not text")
    if not isinstance(arguments, dict):
        raise CallFaultError(f"the arguments of {name} are {quoted(repr(arguments))}, not an object")
    return ToolCall(name=name, arguments=arguments)


def sole_text_parameter(tool: ToolSchema) -> str | None:
    """Name of a tool's parameter if it has exactly one, which is a text that is required."""
    properties: Mapping[str, Mapping[str, object]] = tool.parameters.get("properties", {})
    names = list(properties)
    if len(names) != 1 or properties[names[0]].get("type") != "string":
        return None
    return names[0] if names[0] in tool.parameters.get("required", ()) else None


def quoted(text: str) -> str:
    """The beginning of a text, in quotes."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
