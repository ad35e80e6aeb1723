"""Formats of tool calls: the text of an answer -> its calls, or a fault in words for the model; and calls -> text.

Parsing is pure. A fault anywhere in an answer means that none of its calls is made. A format belongs to a chat
template: `check_round_trip` finds one that does not.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from hone.core.conversation import Message
from hone.core.dialogue import ToolCall, ToolSchema
from hone.core.errors import ConfigError, DataError
from hone.core.strict_json import strict_json
from hone.text.tools.schemas import argument_faults, quoted, unknown_tool

# -------------------------------------------------------------------------------------------------------------- pieces
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallAttempt:
    """A place in an answer that is written as a call."""

    start: int
    end: int
    """Its characters are `text[start:end]`."""
    call: ToolCall | None = None
    fault: str | None = None
    """Reason why it cannot be read; exactly one of `call` and `fault` is set."""


class _CallFaultError(ValueError):
    """A call that cannot be read, in words for the model."""


def _read_json(text: str, start: int) -> tuple[object, int]:
    """The JSON value that begins at `start`, and the place after it. Raises _CallFaultError for text that is no JSON,
    NaN and Infinity, a key that occurs twice, and half a surrogate pair."""
    try:
        _, end = _DECODER.raw_decode(text, start)
        value = strict_json(text[start:end])
        json.dumps(value, allow_nan=False)
    except json.JSONDecodeError as error:
        raise _CallFaultError(f"invalid JSON: {error.msg} at {quoted(text[error.pos :])}") from None
    except (ValueError, RecursionError) as error:
        raise _CallFaultError(f"invalid JSON: {error}") from None
    return value, end


def _write_json(value: object) -> str:
    """A JSON value as chat templates write it: `", "` and `": "` between the parts, letters of all scripts as they are.
    Raises ValueError for NaN and Infinity, TypeError for values that JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _call_of(name: object, arguments: object) -> ToolCall:
    """A call whose parts were read from JSON. Raises _CallFaultError."""
    if not isinstance(name, str) or not name:
        raise _CallFaultError(f"the name of the tool is {quoted(repr(name))}, not text")
    if not isinstance(arguments, dict):
        raise _CallFaultError(f"the arguments of {name} are {quoted(repr(arguments))}, not an object")
    return ToolCall(name=name, arguments=arguments)


def _sole_text_parameter(tool: ToolSchema) -> str | None:
    """Name of a tool's parameter if it has exactly one, which is a text that is required."""
    properties: Mapping[str, Mapping[str, object]] = tool.parameters.get("properties", {})
    names = list(properties)
    if len(names) != 1 or properties[names[0]].get("type") != "string":
        return None
    return names[0] if names[0] in tool.parameters.get("required", ()) else None


def _attempts(text: str, marks: tuple[str, str], read: Callable[[int], tuple[ToolCall, int]]) -> list[_CallAttempt]:
    """Attempts from each opening mark on, whose call and end `read` gives; a faulty one ends at the next closing mark.
    The last one may lack its end, where a stop string cut it."""
    opening, closing = marks
    attempts: list[_CallAttempt] = []
    start = text.find(opening)
    while start >= 0:
        try:
            call, end = read(start + len(opening))
            attempts.append(_CallAttempt(start=start, end=end, call=call))
        except _CallFaultError as fault:
            close = text.find(closing, start)
            end = len(text) if close < 0 else close + len(closing)
            attempts.append(_CallAttempt(start=start, end=end, fault=str(fault)))
        start = text.find(opening, end)
    return attempts


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


# ------------------------------------------------------------------------------------------------------ qwen xml format
# Calls as nested tags, one for each parameter: `qwen_xml` (Qwen3-Coder, Qwen3.5).
#
#     <tool_call>
#     <function=add>
#     <parameter=a>
#     1
#     </parameter>
#     </function>
#     </tool_call>
#
# A value is text or JSON: the tool's schema decides. Text has no escapes, so a text that holds the closing tags itself
# cannot be written.

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>\s*(?=<parameter=|</function>)", re.DOTALL)
_FUNCTION_END = re.compile(r"</function>\s*(?:</tool_call>|\Z)")
_KINDS_OF: Mapping[type, set[str]] = {
    type(None): {"null"}, bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, str: {"string"},
    list: {"array"},
}  # fmt: skip
"""Names of the JSON types of a value."""
_WORDS: Mapping[str, object] = {"true": True, "false": False, "null": None, "none": None}


def _parse_qwen_xml(text: str, tools: Sequence[ToolSchema], /) -> list[_CallAttempt]:
    def read(place: int) -> tuple[ToolCall, int]:
        function = _FUNCTION.match(text, place)
        if function is None:
            raise _CallFaultError(f"<function=NAME> is missing after {_OPEN}")
        name, place = function.group(1).strip(), function.end()
        schema = next((one for one in tools if one.name == name), None)
        properties: Mapping[str, object] = {} if schema is None else schema.parameters.get("properties", {})
        arguments: dict[str, object] = {}
        while (parameter := _PARAMETER.match(text, place)) is not None:
            key, place = parameter.group(1).strip(), parameter.end()
            if key in arguments:
                raise _CallFaultError(f"parameter {key!r} of {name} stands there twice")
            arguments[key] = _qwen_value(parameter.group(2), properties.get(key, {}), f"{name}: parameter {key!r}")
        end = _FUNCTION_END.match(text, place)
        if end is None:
            raise _CallFaultError(f"<parameter=...>, </parameter> or </function> is missing at {quoted(text[place:])}")
        return _call_of(name, arguments), end.end()

    return _attempts(text, (_OPEN, _CLOSE), read)


def _render_qwen_xml(calls: Sequence[ToolCall], tools: Sequence[ToolSchema], /) -> str:
    """Calls as Qwen's templates write them, one after another."""
    del tools
    texts: list[str] = []
    for call in calls:
        values = {key: value if isinstance(value, str) else _write_json(value) for key, value in call.arguments.items()}
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        texts.append(f"{_OPEN}\n<function={call.name}>\n{parameters}</function>\n{_CLOSE}")
    return "\n".join(texts)


def _qwen_value(written: str, schema: object, where: str) -> object:
    """The value of a parameter: text if its schema takes text and the value is no other JSON value that it takes."""
    text = written.removeprefix("\n").removesuffix("\n")
    kinds = _json_kinds(schema)
    if kinds == {"string"}:
        return text
    try:
        value = _json_value(text)
        return text if "string" in kinds and not kinds & _KINDS_OF.get(type(value), {"object"}) else value
    except _CallFaultError as fault:
        if not kinds or "string" in kinds:
            return text
        raise _CallFaultError(f"{where} is {quoted(text)}, not {' or '.join(sorted(kinds))}: {fault}") from None


def _json_value(text: str) -> object:
    stripped = text.strip()
    if stripped.lower() in _WORDS:  # templates write Python's True, False and None
        return _WORDS[stripped.lower()]
    value, end = _read_json(stripped, 0)
    if end < len(stripped):
        raise _CallFaultError(f"text after the value: {quoted(stripped[end:])}")
    return value


def _json_kinds(schema: Any) -> set[str]:  # noqa: ANN401 - a piece of a JSON schema
    """Names of the JSON types that a schema takes; empty if it does not say."""
    match schema:
        case {"type": str(kind)}:
            return {kind}
        case {"type": list(kinds)}:
            return {str(kind) for kind in kinds}
        case {"enum": list(values)} if all(isinstance(one, str) for one in values):
            return {"string"}
        case {"anyOf": list(branches)} | {"oneOf": list(branches)}:
            return set[str]().union(*(_json_kinds(branch) for branch in branches))
        case _:
            return set()


# --------------------------------------------------------------------------------------------------------- json formats
# Calls as JSON objects: `hermes` (Hermes, Qwen2.5, Qwen3) and `llama3_json` (Llama 3.1 and later).
#
# hermes: any text, then one or more of `<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>`. llama3_json: an
# answer that is nothing but `{"name": "add", "parameters": {"a": 1}}`; several are separated by `; `. A JSON string may
# hold `</tool_call>`: the object ends where its JSON does.

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_LLAMA_START = re.compile(r'\s*(?:<\|python_tag\|>)?\s*(?=\{\s*"name"\s*:)')
_LLAMA_BETWEEN = re.compile(r"\s*;?\s*(?=\{)")


def _parse_hermes(text: str, tools: Sequence[ToolSchema], /) -> list[_CallAttempt]:
    del tools

    def read(place: int) -> tuple[ToolCall, int]:
        value, end = _read_json(text, _skip(text, place))
        end = _skip(text, end)
        if not text.startswith(_CLOSE, end) and end < len(text):
            raise _CallFaultError(f"{_CLOSE} is missing after the JSON object")
        return _from_object(value, "arguments"), min(len(text), end + len(_CLOSE))

    return _attempts(text, (_OPEN, _CLOSE), read)


def _parse_llama3_json(text: str, tools: Sequence[ToolSchema], /) -> list[_CallAttempt]:
    """Attempts of an answer that begins with `{"name":`, or with `<|python_tag|>` before it; none of any other."""
    del tools
    begin = _LLAMA_START.match(text)
    if begin is None:
        return []
    attempts: list[_CallAttempt] = []
    place = begin.end()
    try:
        while place < len(text):
            value, end = _read_json(text, place)
            attempts.append(_CallAttempt(start=place, end=end, call=_from_object(value, "parameters")))
            between = _LLAMA_BETWEEN.match(text, end)
            if between is None:
                break
            place = between.end()
        if text[attempts[-1].end :].strip():
            raise _CallFaultError("text after a call; an answer is either text or calls")
    except _CallFaultError as fault:
        return [_CallAttempt(start=0, end=len(text), fault=str(fault))]
    return attempts


def _from_object(value: object, key: str) -> ToolCall:
    """The call of an object with `name` and the arguments under `key`; none means a call without arguments."""
    if not isinstance(value, dict) or "name" not in value:
        raise _CallFaultError(f'a call is an object {{"name": ..., "{key}": {{...}}}}')
    extra = sorted(value.keys() - {"name", key})
    if extra:
        raise _CallFaultError(f'unknown key {extra[0]!r} in a call; its keys are "name" and "{key}"')
    return _call_of(value["name"], value.get(key, {}))


# ------------------------------------------------------------------------------------------------------- bracket format
# Calls in square brackets, for small models that learn a format from nothing: `bracket`.
#
# With one tool that takes one text, the bracket holds that text: `[34+58]`. With others it begins with the tool's name:
# `[search rivers of Peru]` for a tool of one text, `[add {"a": 1, "b": 2}]` for any other, `[clock]` without arguments.
# A text that has brackets, quotes or line breaks is written as a JSON string: `["a [b]"]`. Every bracket in an answer
# is a call.

_NAME = re.compile(r"[^\s\[\]\"]+")
_PLAIN = re.compile(r"[^\[\]\"{}\s](?:[^\[\]\"\n\r]*[^\[\]\"\s])?")
"""Text that stands in a bracket as it is: no brackets, quotes, line breaks or spaces at its ends."""


def _parse_bracket(text: str, tools: Sequence[ToolSchema], /) -> list[_CallAttempt]:
    def read(place: int) -> tuple[ToolCall, int]:
        call, end = _read(text, place, tools)
        end = _skip(text, end)
        if end < len(text) and text[end] != "]":
            raise _CallFaultError(f"] is missing at {quoted(text[end:])}")
        return call, min(len(text), end + 1)

    return _attempts(text, ("[", "]"), read)


def _content(call: ToolCall, tools: Sequence[ToolSchema]) -> str:
    schema = next((one for one in tools if one.name == call.name), None)
    parameter = None if schema is None else _sole_text_parameter(schema)
    if parameter is None or list(call.arguments) != [parameter]:
        return f"{call.name} {_write_json(dict(call.arguments))}" if call.arguments else call.name
    value = call.arguments[parameter]
    plain = isinstance(value, str) and _PLAIN.fullmatch(value)
    written = str(value) if plain else _write_json(value)
    return written if len(tools) == 1 else f"{call.name} {written}"


def _read(text: str, place: int, tools: Sequence[ToolSchema]) -> tuple[ToolCall, int]:
    """The call whose content begins at `place`, and the place after it. Raises _CallFaultError."""
    only = _sole_text_parameter(tools[0]) if len(tools) == 1 else None
    if only is not None:
        value, end = _read_text(text, _skip(text, place))
        return ToolCall(name=tools[0].name, arguments={only: value}), end
    match = _NAME.match(text, _skip(text, place))
    if match is None:
        raise _CallFaultError("a bracket begins with the name of a tool")
    schema = next((one for one in tools if one.name == match.group()), None)
    if schema is None:
        raise _CallFaultError(unknown_tool(match.group(), tools))
    place = _skip(text, match.end())
    if place == len(text) or text[place] == "]":
        return ToolCall(name=schema.name, arguments={}), place
    parameter = _sole_text_parameter(schema)
    if parameter is not None:
        value, end = _read_text(text, place)
        return ToolCall(name=schema.name, arguments={parameter: value}), end
    arguments, end = _read_json(text, place)
    return _call_of(schema.name, arguments), end


def _read_text(text: str, place: int) -> tuple[str, int]:
    """A JSON string, or the plain text up to `]`."""
    if text.startswith('"', place):
        value, end = _read_json(text, place)
        if not isinstance(value, str):
            raise _CallFaultError(f"a JSON string was expected at {quoted(text[place:])}")
        return value, end
    ends = [at for at in (text.find("]", place), text.find("[", place)) if at >= 0]
    end = min(ends, default=len(text))
    return text[place:end].rstrip(), end


# -------------------------------------------------------------------------------------------------------------- formats

_MARK = "\ue000"
"""A character that no template writes."""
NO_CALL_MADE = "No tool was called."


_FormatParser: TypeAlias = Callable[[str, Sequence[ToolSchema]], Sequence[_CallAttempt]]
_FormatRenderer: TypeAlias = Callable[[Sequence[ToolCall], Sequence[ToolSchema]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParsedAnswer:
    """An answer of a policy, taken apart."""

    content: str
    """The text without its calls; the whole text where there is a fault."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of known tools with arguments of the declared types; none where there is a fault."""
    fault: str | None = None
    """Every fault of the answer, in words for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A way to write tool calls into an answer."""

    name: str
    parser: _FormatParser
    """Attempts at a call, in their order, faulty ones included; never raises for any text."""
    renderer: _FormatRenderer
    """Text of calls; `render` checks that it can be read again."""
    call_end: str
    """Text that ends a call; a turn may stop after it. Empty where the end of the answer ends the call."""

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> _ParsedAnswer:
        """Take an answer apart. Unknown tools, unreadable calls, and missing, unknown or mistyped arguments are faults;
        nothing is raised."""
        attempts = self.parser(text, tools)
        faults = [fault for one in attempts for fault in _faults(one, tools)]
        if faults:
            return _ParsedAnswer(content=text, fault=f"{'; '.join(dict.fromkeys(faults))}. {NO_CALL_MADE}")
        content, end = "", 0
        for one in attempts:
            content, end = content + text[end : one.start], one.end
        calls = tuple(one.call for one in attempts if one.call is not None)
        return _ParsedAnswer(content=content + text[end:], calls=calls)

    def render(self, calls: Sequence[ToolCall], tools: Sequence[ToolSchema]) -> str:
        """Text of some calls. Raises ValueError if the format cannot write them: their text would be read otherwise."""
        text = self.renderer(calls, tools)
        parsed = self.parse(text, tools)
        if not same_calls(parsed.calls, calls):
            reading = parsed.fault or f"it is read as {_described(parsed.calls)}"
            raise ValueError(f"the format {self.name} cannot write {_described(calls)}: {reading}")
        return text

    def example(self, tool: ToolSchema, tools: Sequence[ToolSchema]) -> str:
        """Text of a call of `tool` with arguments of the types that it declares."""
        return self.render([ToolCall(name=tool.name, arguments=_example_arguments(tool))], tools)


TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        one.name: one
        for one in (
            ToolFormat(
                name="hermes",
                parser=_parse_hermes,
                renderer=lambda calls, _, /: "\n".join(
                    f"{_OPEN}\n{_write_json({'name': one.name, 'arguments': dict(one.arguments)})}\n{_CLOSE}"
                    for one in calls
                ),
                call_end="</tool_call>",
            ),
            ToolFormat(
                name="llama3_json",
                parser=_parse_llama3_json,
                renderer=lambda calls, _, /: "; ".join(
                    _write_json({"name": one.name, "parameters": dict(one.arguments)}) for one in calls
                ),
                call_end="",
            ),
            ToolFormat(name="qwen_xml", parser=_parse_qwen_xml, renderer=_render_qwen_xml, call_end="</tool_call>"),
            ToolFormat(
                name="bracket",
                parser=_parse_bracket,
                renderer=lambda calls, tools, /: "".join(f"[{_content(call, tools)}]" for call in calls),
                call_end="]",
            ),
        )
    }
)
"""Every format by its name in `task.tools.format`."""


def same_calls(ours: Sequence[ToolCall], theirs: Sequence[ToolCall]) -> bool:
    """Whether two lists of calls are equal; `True` and 1 are two values, 1 and 1.0 are one."""
    return [(one.name, _typed(one.arguments)) for one in ours] == [(one.name, _typed(one.arguments)) for one in theirs]


class _ChatRenderer(Protocol):
    """A model's chat template."""

    def __call__(self, messages: Sequence[Message], /, *, add_generation_prompt: bool) -> str:
        """The text of a conversation, the descriptions of the tools included. Raises DataError."""
        ...


def check_round_trip(tool_format: ToolFormat, tools: Sequence[ToolSchema], render: _ChatRenderer) -> None:
    """Check, without a model, that a chat template writes calls as a format reads them.

    One call of each tool is rendered by the template and parsed; bounds and patterns of its arguments do not count. A
    template that writes no calls (it refuses a message with `tool_calls`, or leaves them out) says nothing about the
    format and passes.

    Raises ConfigError with the template's text and the format's for each tool that comes back otherwise.
    """
    faults: list[str] = []
    for tool in tools:
        call = ToolCall(name=tool.name, arguments=_example_arguments(tool))
        text = _text_of_call(call, render)
        if text is None:
            continue
        attempts = tool_format.parser(text, tools)
        if not _reads(attempts, call):
            reading = "; ".join(one.fault for one in attempts if one.fault) or "no such call was found"
            faults.append(
                f"task.tools.format = {tool_format.name!r} does not read the calls that the chat template writes. The "
                f"template writes {text!r}, the format writes {tool_format.renderer([call], tools)!r}; "
                f"{reading}{_suggestion(text, call, tools)}"
            )
    if faults:
        raise ConfigError(*faults)


def _example_arguments(tool: ToolSchema) -> dict[str, object]:
    """Arguments of the types that a tool declares, one for each parameter that is required."""
    properties: Mapping[str, Mapping[str, object]] = tool.parameters.get("properties", {})
    return {name: _example(properties.get(name, {})) for name in tool.parameters.get("required", ())}


_EXAMPLES: Mapping[str, object] = {
    "string": "a \"text\" of <two>\nlines", "integer": 3, "number": 0.5, "boolean": True, "array": [], "object": {},
    "null": None,
}  # fmt: skip


def _example(schema: Mapping[str, object]) -> object:
    match schema:
        case {"enum": [first, *_]} | {"const": first} | {"anyOf": [{"enum": [first, *_]}, *_]}:
            return first
        case {"anyOf": [{"type": str(kind)}, *_]} | {"type": [str(kind), *_]} | {"type": str(kind)}:
            return _EXAMPLES.get(kind, "x")
        case _:
            return "x"


def _text_of_call(call: ToolCall, render: _ChatRenderer) -> str | None:
    """Text that a template writes for an answer of one call; None if it writes none."""
    asked: list[Message] = [{"role": "user", "content": "a question"}]
    function = {"name": call.name, "arguments": dict(call.arguments)}
    called: Message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    try:
        prompt = render(asked, add_generation_prompt=True)
        whole = render([*asked, called], add_generation_prompt=False)
        marked = render([*asked, {"role": "assistant", "content": _MARK}], add_generation_prompt=False)
    except DataError:
        return None
    before, _, after = marked.partition(_MARK)
    text = whole.removeprefix(prompt) if whole.startswith(prompt) else whole.removeprefix(before)
    return text.removesuffix(after) if call.name in text else None


def _reads(attempts: Sequence[_CallAttempt], call: ToolCall) -> bool:
    """Whether the attempts are that call and nothing else."""
    return same_calls([one.call for one in attempts if one.call is not None], [call]) and len(attempts) == 1


def _suggestion(text: str, call: ToolCall, tools: Sequence[ToolSchema]) -> str:
    fitting = [one.name for one in TOOL_FORMATS.values() if _reads(one.parser(text, tools), call)]
    return f". Formats that read it: {', '.join(fitting)}" if fitting else ""


def _faults(attempt: _CallAttempt, tools: Sequence[ToolSchema]) -> list[str]:
    if attempt.call is None:
        return [attempt.fault or "a call cannot be read"]
    tool = next((one for one in tools if one.name == attempt.call.name), None)
    return [unknown_tool(attempt.call.name, tools)] if tool is None else argument_faults(attempt.call, tool)


def _typed(value: object) -> object:
    """A JSON value in which `True` differs from 1."""
    match value:
        case bool():
            return ("bool", value)
        case Mapping():
            return {key: _typed(item) for key, item in value.items()}
        case list() | tuple():
            return [_typed(item) for item in value]
        case _:
            return value


def _described(calls: Sequence[ToolCall]) -> str:
    return ", ".join(f"{one.name}({dict(one.arguments)})" for one in calls) or "no call"
