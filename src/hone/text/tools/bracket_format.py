"""Calls in square brackets, for small models that learn a format from nothing: `bracket`.

With one tool that takes one text, the bracket holds that text: `[34+58]`. With others it begins with the tool's name:
`[search rivers of Peru]` for a tool of one text, `[add {"a": 1, "b": 2}]` for any other, `[clock]` without arguments.
A text that has brackets, quotes or line breaks is written as a JSON string: `["a [b]"]`. Every bracket in an answer
is a call.
"""

import re
from collections.abc import Sequence

from hone.core.dialogue import ToolCall, ToolSchema
from hone.text.tools.call_text import (
    CallAttempt,
    CallFaultError,
    call_of,
    quoted,
    read_json,
    read_string,
    sole_text_parameter,
    write_json,
)
from hone.text.tools.schemas import unknown_tool

_NAME = re.compile(r"[^\s\[\]\"]+")
_PLAIN = re.compile(r"[^\[\]\"{}\s](?:[^\[\]\"\n\r]*[^\[\]\"\s])?")
"""Text that stands in a bracket as it is: no brackets, quotes, line breaks or spaces at its ends."""


def parse_bracket(text: str, tools: Sequence[ToolSchema], /) -> list[CallAttempt]:
    """Attempts from each `[` to its `]`; the last one may lack its end, where a stop string cut it."""
    found: list[CallAttempt] = []
    start = text.find("[")
    while start >= 0:
        found.append(_attempt(text, start, tools))
        start = text.find("[", found[-1].end)
    return found


def render_bracket(calls: Sequence[ToolCall], tools: Sequence[ToolSchema], /) -> str:
    """Calls in brackets, one after another."""
    return "".join(f"[{_content(call, tools)}]" for call in calls)


def _content(call: ToolCall, tools: Sequence[ToolSchema]) -> str:
    schema = next((one for one in tools if one.name == call.name), None)
    parameter = None if schema is None else sole_text_parameter(schema)
    if parameter is None or list(call.arguments) != [parameter]:
        return f"{call.name} {write_json(dict(call.arguments))}" if call.arguments else call.name
    value = call.arguments[parameter]
    plain = isinstance(value, str) and _PLAIN.fullmatch(value)
    written = str(value) if plain else write_json(value)
    return written if len(tools) == 1 else f"{call.name} {written}"


def _attempt(text: str, start: int, tools: Sequence[ToolSchema]) -> CallAttempt:
    try:
        call, end = _read(text, start + 1, tools)
        end = _skip(text, end)
        if end < len(text) and text[end] != "]":
            raise CallFaultError(f"] is missing at {quoted(text[end:])}")
        return CallAttempt(start=start, end=min(len(text), end + 1), call=call)
    except CallFaultError as fault:
        close = text.find("]", start)
        return CallAttempt(start=start, end=len(text) if close < 0 else close + 1, fault=str(fault))


def _read(text: str, place: int, tools: Sequence[ToolSchema]) -> tuple[ToolCall, int]:
    """The call whose content begins at `place`, and the place after it. Raises CallFaultError."""
    only = sole_text_parameter(tools[0]) if len(tools) == 1 else None
    if only is not None:
        value, end = _read_text(text, _skip(text, place))
        return ToolCall(name=tools[0].name, arguments={only: value}), end
    match = _NAME.match(text, _skip(text, place))
    if match is None:
        raise CallFaultError("a bracket begins with the name of a tool")
    schema = next((one for one in tools if one.name == match.group()), None)
    if schema is None:
        raise CallFaultError(unknown_tool(match.group(), tools))
    place = _skip(text, match.end())
    if place == len(text) or text[place] == "]":
        return ToolCall(name=schema.name, arguments={}), place
    parameter = sole_text_parameter(schema)
    if parameter is not None:
        value, end = _read_text(text, place)
        return ToolCall(name=schema.name, arguments={parameter: value}), end
    arguments, end = read_json(text, place)
    return call_of(schema.name, arguments), end


def _read_text(text: str, place: int) -> tuple[str, int]:
    """A JSON string, or the plain text up to `]`."""
    if text.startswith('"', place):
        return read_string(text, place)
    ends = [at for at in (text.find("]", place), text.find("[", place)) if at >= 0]
    end = min(ends, default=len(text))
    return text[place:end].rstrip(), end


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
