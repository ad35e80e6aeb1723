"""Tools of chats: what the chat template is told, and calls between OpenAI's shape and the text of the model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from hone.core.conversation import Message
from hone.core.dialogue import ToolCall, ToolSchema
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.models.language.tokenizers import Tokenizer
from hone.text.serving.completions.api_errors import ApiError, unsupported
from hone.text.serving.completions.fields import ToolChoice, ToolFields
from hone.text.tools.formats import TOOL_FORMATS, ParsedAnswer, ToolFormat, check_round_trip, example_arguments

_PROBE: Final = ToolSchema(
    name="probe_of_tools",
    description="Finds out what the chat template does with tools.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
)


def find_format(tokenizer: Tokenizer, name: str = "") -> ToolFormat | None:
    """The format in which a chat template writes calls: `name`, or the only one that reads them back; None for a
    template that describes no tools, or whose calls no format or several read. Raises ConfigError for an unknown
    `name`.
    """
    if name:
        if name not in TOOL_FORMATS:
            raise ConfigError(f"--tool-format: no format {name!r}{did_you_mean(name, list(TOOL_FORMATS))}")
        return TOOL_FORMATS[name]
    told = replace(tokenizer, tools=(_PROBE.as_function(),))
    try:
        if tokenizer.chat_template is None or _PROBE.name not in told.render_chat([{"role": "user", "content": "a"}]):
            return None
    except DataError:
        return None
    fitting = [one for one in TOOL_FORMATS.values() if _reads(one, told)]
    return fitting[0] if len(fitting) == 1 else None


def told_of_tools(tokenizer: Tokenizer, tools: Sequence[ToolSchema], tool_format: ToolFormat | None) -> Tokenizer:
    """The tokenizer whose chat template is told of `tools`. Raises ApiError where it has none."""
    if not tools:
        return tokenizer
    if tool_format is None:
        raise unsupported(
            "tools",
            "the chat template of this model describes no tools, or its calls are in no known format; start the server "
            f"with --tool-format ({', '.join(TOOL_FORMATS)}) if it was trained with one",
        )
    return replace(tokenizer, tools=tuple(one.as_function() for one in tools))


def tool_schemas(given: Sequence[ToolFields]) -> tuple[ToolSchema, ...]:
    """Tools of a request. Raises ApiError for two of one name."""
    names = [one.function.name for one in given]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ApiError(400, f"two tools have the name {twice[0]!r}", param="tools", code="invalid_value")
    nothing: Mapping[str, Any] = {"type": "object", "properties": {}}
    return tuple(
        ToolSchema(
            name=one.function.name,
            description=one.function.description or "",
            parameters=one.function.parameters or nothing,
        )
        for one in given
    )


def begun_call(choice: str | ToolChoice | None, tools: Sequence[ToolSchema], tool_format: ToolFormat | None) -> str:
    """Text with which an answer begins that has to call a tool: up to the name of the tool, and that name where one is
    chosen. Empty where the model decides. Raises ApiError for a tool that is not among `tools`."""
    if not isinstance(choice, ToolChoice) and choice != "required":
        return ""
    name = choice.function.name if isinstance(choice, ToolChoice) else (tools[0].name if len(tools) == 1 else "")
    tool = next((one for one in tools if not name or one.name == name), None)
    if tool is None or tool_format is None:
        asked = f"the tool {name!r}" if name else "a call"
        raise ApiError(
            400, f"tool_choice asks for {asked}, which is not in tools", param="tool_choice", code="invalid_value"
        )
    text = tool_format.render([ToolCall(name=tool.name, arguments=example_arguments(tool))], tools)
    return text[: text.index(tool.name) + len(name)]


def with_objects(message: Message, place: int) -> Message:
    """A message whose calls have their arguments as objects, as chat templates read them; OpenAI sends them as text.
    Raises ApiError for arguments that are no JSON object."""
    calls = cast("Sequence[Mapping[str, Any]] | None", message.get("tool_calls"))
    if not calls:
        return message
    found: list[Mapping[str, Any]] = []
    for number, call in enumerate(calls):
        function = cast("Mapping[str, Any]", call.get("function") or {})
        arguments = _object(function.get("arguments"))
        if arguments is None:
            where = f"messages[{place}].tool_calls[{number}].function.arguments"
            raise ApiError(400, f"{where} must be a JSON object", param=where, code="invalid_value")
        found.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": found}


def parsed_answer(text: str, tools: Sequence[ToolSchema], tool_format: ToolFormat | None) -> ParsedAnswer:
    """Text and calls of an answer; calls that cannot be read stay text."""
    if not tools or tool_format is None:
        return ParsedAnswer(content=text)
    return tool_format.parse(text, tools)


def call_shapes(calls: Sequence[ToolCall], answer: str) -> list[dict[str, Any]]:
    """Calls in OpenAI's shape; `answer` names the answer, and is a part of their ids."""
    return [
        {
            "id": f"call_{answer}_{place}",
            "type": "function",
            "function": {"name": one.name, "arguments": json.dumps(dict(one.arguments), ensure_ascii=False)},
        }
        for place, one in enumerate(calls)
    ]


def _reads(tool_format: ToolFormat, told: Tokenizer) -> bool:
    try:
        check_round_trip(tool_format, [_PROBE], told.render_chat)
    except (ConfigError, DataError):
        return False
    return True


def _object(given: object) -> Mapping[str, Any] | None:
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except ValueError:
            return None
    return cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else None
