r"""Calls as nested tags, one for each parameter: `qwen_xml` (Qwen3-Coder, Qwen3.5).

    <tool_call>
    <function=add>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

A value is text or JSON: the tool's schema decides. Text has no escapes, so a text that holds the closing tags itself
cannot be written.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hone.core.dialogue import ToolCall, ToolSchema
from hone.text.tools.call_text import CallAttempt, CallFaultError, call_of, quoted, read_json, write_json

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>\s*(?=<parameter=|</function>)", re.DOTALL)
_FUNCTION_END = re.compile(r"</function>\s*(?:</tool_call>|\Z)")
_WORDS: Mapping[str, object] = {"true": True, "false": False, "null": None, "none": None}


def parse_qwen_xml(text: str, tools: Sequence[ToolSchema], /) -> list[CallAttempt]:
    """Attempts from each `<tool_call>` on; the last one may lack its end, where a stop string cut it."""
    found: list[CallAttempt] = []
    start = text.find(_OPEN)
    while start >= 0:
        found.append(_attempt(text, start, tools))
        start = text.find(_OPEN, found[-1].end)
    return found


def render_qwen_xml(calls: Sequence[ToolCall], tools: Sequence[ToolSchema], /) -> str:
    """Calls as Qwen's templates write them, one after another."""
    del tools
    return "\n".join(_rendered(one) for one in calls)


def _rendered(call: ToolCall) -> str:
    values = {key: value if isinstance(value, str) else write_json(value) for key, value in call.arguments.items()}
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"{_OPEN}\n<function={call.name}>\n{parameters}</function>\n{_CLOSE}"


def _attempt(text: str, start: int, tools: Sequence[ToolSchema]) -> CallAttempt:
    try:
        function = _FUNCTION.match(text, start + len(_OPEN))
        if function is None:
            raise CallFaultError(f"<function=NAME> is missing after {_OPEN}")
        name, place = function.group(1).strip(), function.end()
        schema = next((one for one in tools if one.name == name), None)
        properties: Mapping[str, object] = {} if schema is None else schema.parameters.get("properties", {})
        arguments: dict[str, object] = {}
        while (parameter := _PARAMETER.match(text, place)) is not None:
            key, place = parameter.group(1).strip(), parameter.end()
            if key in arguments:
                raise CallFaultError(f"parameter {key!r} of {name} stands there twice")
            arguments[key] = _value(parameter.group(2), properties.get(key, {}), f"{name}: parameter {key!r}")
        end = _FUNCTION_END.match(text, place)
        if end is None:
            raise CallFaultError(f"<parameter=...>, </parameter> or </function> is missing at {quoted(text[place:])}")
        return CallAttempt(start=start, end=end.end(), call=call_of(name, arguments))
    except CallFaultError as fault:
        close = text.find(_CLOSE, start)
        return CallAttempt(start=start, end=len(text) if close < 0 else close + len(_CLOSE), fault=str(fault))


def _value(written: str, schema: object, where: str) -> object:
    """The value of a parameter: text if its schema takes text and the value is no other JSON value that it takes."""
    text = written.removeprefix("\n").removesuffix("\n")
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return text
    try:
        value = _json_value(text)
        return text if "string" in kinds and not kinds & _kinds_of(value) else value
    except CallFaultError as fault:
        if not kinds or "string" in kinds:
            return text
        raise CallFaultError(f"{where} is {quoted(text)}, not {' or '.join(sorted(kinds))}: {fault}") from None


def _json_value(text: str) -> object:
    stripped = text.strip()
    if stripped.lower() in _WORDS:  # templates write Python's True, False and None
        return _WORDS[stripped.lower()]
    value, end = read_json(stripped, 0)
    if end < len(stripped):
        raise CallFaultError(f"text after the value: {quoted(stripped[end:])}")
    return value


def _kinds(schema: Any) -> set[str]:  # noqa: ANN401 - a piece of a JSON schema
    """Names of the JSON types that a schema takes; empty if it does not say."""
    match schema:
        case {"type": str(kind)}:
            return {kind}
        case {"type": list(kinds)}:
            return {str(kind) for kind in kinds}
        case {"enum": list(values)} if all(isinstance(one, str) for one in values):
            return {"string"}
        case {"anyOf": list(branches)} | {"oneOf": list(branches)}:
            return set[str]().union(*(_kinds(branch) for branch in branches))
        case _:
            return set()


def _kinds_of(value: object) -> set[str]:
    """Names of the JSON types that a value has."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}
