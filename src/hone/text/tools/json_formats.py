"""Calls as JSON objects: `hermes` (Hermes, Qwen2.5, Qwen3) and `llama3_json` (Llama 3.1 and later).

hermes:       any text, then one or more of `<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>`.
llama3_json:  an answer that is nothing but `{"name": "add", "parameters": {"a": 1}}`; several are separated by `; `.
A JSON string may hold `</tool_call>`: the object ends where its JSON does.
"""

import re
from collections.abc import Sequence

from hone.core.dialogue import ToolCall, ToolSchema
from hone.text.tools.call_text import CallAttempt, CallFaultError, call_of, read_json, write_json

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_SPACE = re.compile(r"\s*")
_LLAMA_START = re.compile(r'\s*(?:<\|python_tag\|>)?\s*(?=\{\s*"name"\s*:)')
_LLAMA_BETWEEN = re.compile(r"\s*;?\s*(?=\{)")


def parse_hermes(text: str, tools: Sequence[ToolSchema], /) -> list[CallAttempt]:
    """Attempts between `<tool_call>` and `</tool_call>`; the last one may lack its end, where a stop string cut it."""
    del tools
    found: list[CallAttempt] = []
    start = text.find(_OPEN)
    while start >= 0:
        found.append(_hermes_attempt(text, start))
        start = text.find(_OPEN, found[-1].end)
    return found


def render_hermes(calls: Sequence[ToolCall], tools: Sequence[ToolSchema], /) -> str:
    """Calls as Qwen's templates write them, one after another."""
    del tools
    return "\n".join(f"{_OPEN}\n{write_json(_as_object(one, 'arguments'))}\n{_CLOSE}" for one in calls)


def parse_llama3_json(text: str, tools: Sequence[ToolSchema], /) -> list[CallAttempt]:
    """Attempts of an answer that begins with `{"name":`, or with `<|python_tag|>` before it; none of any other."""
    del tools
    begin = _LLAMA_START.match(text)
    if begin is None:
        return []
    found: list[CallAttempt] = []
    place = begin.end()
    try:
        while place < len(text):
            value, end = read_json(text, place)
            found.append(CallAttempt(start=place, end=end, call=_from_object(value, "parameters")))
            between = _LLAMA_BETWEEN.match(text, end)
            if between is None:
                break
            place = between.end()
        if text[found[-1].end :].strip():
            raise CallFaultError("text after a call; an answer is either text or calls")
    except CallFaultError as fault:
        return [CallAttempt(start=0, end=len(text), fault=str(fault))]
    return found


def render_llama3_json(calls: Sequence[ToolCall], tools: Sequence[ToolSchema], /) -> str:
    """Calls as Llama's template writes one, separated by `; `."""
    del tools
    return "; ".join(write_json(_as_object(one, "parameters")) for one in calls)


def _hermes_attempt(text: str, start: int) -> CallAttempt:
    """The attempt that begins with the tag at `start`; a faulty one ends at the next closing tag."""
    inner = start + len(_OPEN)
    try:
        value, end = read_json(text, _skip_space(text, inner))
        end = _skip_space(text, end)
        if not text.startswith(_CLOSE, end) and end < len(text):
            raise CallFaultError(f"{_CLOSE} is missing after the JSON object")
        call = _from_object(value, "arguments")
        return CallAttempt(start=start, end=min(len(text), end + len(_CLOSE)), call=call)
    except CallFaultError as fault:
        close = text.find(_CLOSE, inner)
        return CallAttempt(start=start, end=len(text) if close < 0 else close + len(_CLOSE), fault=str(fault))


def _skip_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()


def _as_object(call: ToolCall, key: str) -> dict[str, object]:
    return {"name": call.name, key: dict(call.arguments)}


def _from_object(value: object, key: str) -> ToolCall:
    """The call of an object with `name` and the arguments under `key`; none means a call without arguments."""
    if not isinstance(value, dict) or "name" not in value:
        raise CallFaultError(f'a call is an object {{"name": ..., "{key}": {{...}}}}')
    extra = sorted(value.keys() - {"name", key})
    if extra:
        raise CallFaultError(f'unknown key {extra[0]!r} in a call; its keys are "name" and "{key}"')
    return call_of(value["name"], value.get(key, {}))
