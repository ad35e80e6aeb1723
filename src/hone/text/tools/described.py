"""Tools in the prompt: in the words of the chat template where it describes tools, else in a form of hone's own.

hone's form is text in messages: the tools and a call stand in the system message (before the first user's text, where
the template takes none), calls in the content of an answer, and results in a user's message:

    You have tools:
    {"name": "add", "description": "Add two numbers.", "parameters": {...}}

    Use a tool by an answer that holds a call, written as in this example:
    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 1}}
    </tool_call>
    The next message holds its result, between <tool_response> and </tool_response>. Once you know the answer, give it
    without a call.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, cast

import tokenizers as hf

from hone.core.conversation import Message
from hone.core.dialogue import ToolCall, ToolSchema
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, Tokenizer
from hone.text.tools.formats import TOOL_FORMATS, ToolFormat, check_round_trip, same_calls
from hone.text.tools.schemas import schema_of

_PROBE: Final = ToolSchema(
    name="probe_of_tools",
    description="Finds out what the chat template does with tools.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
)
_SYSTEM: Final = "probe of system messages"
_VALUES: Final[Mapping[str, object]] = {
    "string": "...", "integer": 1, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None,
}  # fmt: skip
"""Arguments of the call that shows how one is written."""


def with_tools(
    tokenizer: Tokenizer,
    functions: Sequence[Mapping[str, Any]],
    tool_format: ToolFormat,
    *,
    describe: bool | None = None,
) -> Tokenizer:
    """The tokenizer whose chats are told of tools, given as OpenAI's protocol does (`ToolSchema.as_function`).

    `describe`: as in `needs_description`.
    """
    if not functions or tokenizer.chat_template is None:
        return tokenizer
    if not needs_description(tokenizer, describe=describe):
        return replace(tokenizer, tools=tuple(functions))
    schemas = tuple(map(schema_of, functions))
    return replace(tokenizer, prepare=_DescribedTools(schemas, tool_format, _template_facts(tokenizer)[1]))


def needs_description(tokenizer: Tokenizer, *, describe: bool | None) -> bool:
    """True if hone describes tools in the messages: the chat template does not, and `describe` asks for it; None asks
    but for hone's own template, whose models learn from nothing."""
    if describe is None:
        describe = tokenizer.chat_template != DEFAULT_CHAT_TEMPLATE
    return describe and not describes_tools(tokenizer)


def describes_tools(tokenizer: Tokenizer) -> bool:
    """True if the chat template writes the tools that it is given; one that fails on them does not."""
    return _template_facts(tokenizer)[0]


def find_format(tokenizer: Tokenizer, name: str = "") -> ToolFormat | None:
    """The format of the calls of a model: `name`, or the only one that reads the calls which its chat template writes,
    or `hermes` where the template describes no tools and hone does. None without a chat template, and for one whose
    calls no format or several read. Raises ConfigError for an unknown `name`."""
    if name:
        if name not in TOOL_FORMATS:
            raise ConfigError(f"--tool-format: no format {name!r}{did_you_mean(name, list(TOOL_FORMATS))}")
        return TOOL_FORMATS[name]
    if tokenizer.chat_template is None:
        return None
    if not describes_tools(tokenizer):
        return TOOL_FORMATS["hermes"]
    with_probe = replace(tokenizer, tools=(_PROBE.as_function(),))
    fitting = [one for one in TOOL_FORMATS.values() if _reads(one, with_probe)]
    return fitting[0] if len(fitting) == 1 else None


def _reads(tool_format: ToolFormat, tokenizer: Tokenizer) -> bool:
    try:
        check_round_trip(tool_format, [_PROBE], tokenizer.render_chat)
    except (ConfigError, DataError):
        return False
    return True


def _template_facts(tokenizer: Tokenizer) -> tuple[bool, bool]:
    """Whether the chat template describes tools, and whether it writes a system message."""
    special = tuple(tokenizer.special.items())
    return _facts_of(tokenizer.backend, tokenizer.eos_ids, tokenizer.chat_template or "", special)


@lru_cache(maxsize=64)
def _facts_of(
    backend: hf.Tokenizer, eos_ids: tuple[int, ...], template: str, special: tuple[tuple[str, str], ...]
) -> tuple[bool, bool]:
    bare = Tokenizer(backend=backend, eos_ids=eos_ids, pad_id=eos_ids[0], chat_template=template, special=dict(special))
    user = {"role": "user", "content": "a"}

    def writes(text: str, tokenizer: Tokenizer, messages: Sequence[Message]) -> bool:
        try:
            return text in tokenizer.render_chat(messages)
        except DataError:
            return False

    tools = writes(_PROBE.name, replace(bare, tools=(_PROBE.as_function(),)), [user])
    return tools, writes(_SYSTEM, bare, [{"role": "system", "content": _SYSTEM}, user])


# ---------------------------------------------------------------------------------------------------------- hone's form


@dataclass(frozen=True, slots=True)
class _DescribedTools:
    """Messages for a chat template that knows no tools (`Tokenizer.prepare`)."""

    tools: tuple[ToolSchema, ...]
    format: ToolFormat
    in_system: bool
    """The template writes system messages; False: the first user's message begins with the description."""

    def __call__(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with the description of the tools, calls as text, and results as user's messages: those of one
        turn in one message. Raises DataError for a call that the format cannot write."""
        written: list[Message] = []
        after_result = False
        for message in messages:
            is_result = message.get("role") in ("tool", "function")
            one = self._with_calls_as_text(message)
            if is_result:
                content = f"<tool_response>\n{message.get('content', '')}\n</tool_response>"
                one = {"role": "user", "content": content}
            joins = after_result and one.get("role") == "user"
            if joins:  # roles alternate in many templates
                one = {"role": "user", "content": f"{written.pop()['content']}\n{one.get('content', '')}"}
            written.append(one)
            after_result = is_result or joins
        return self._with_description(written)

    def _with_calls_as_text(self, message: Message) -> Message:
        listed, content = message.get("tool_calls"), message.get("content")
        if not listed:
            return message
        calls = [_call(one) for one in cast("Sequence[Mapping[str, Any]]", listed)]
        text = self.format.renderer(calls, self.tools)
        read = [one.call for one in self.format.parser(text, self.tools) if one.call is not None]
        if not same_calls(read, calls):
            raise DataError(
                f"the format {self.format.name!r} of tool calls cannot write {text!r}: it reads it otherwise"
            )
        kept = {name: value for name, value in message.items() if name != "tool_calls"}
        return {**kept, "content": f"{content}\n{text}" if content else text}

    def _with_description(self, messages: list[Message]) -> list[Message]:
        text = self.description()
        roles = ("system", "developer") if self.in_system else ("user",)
        place = next((n for n, one in enumerate(messages) if one.get("role") in roles), None)
        if place is None:
            return [{"role": roles[0], "content": text}, *messages]
        own = messages[place]
        parts = [str(own.get("content", "")), text] if self.in_system else [text, str(own.get("content", ""))]
        return [*messages[:place], {**own, "content": "\n\n".join(filter(None, parts))}, *messages[place + 1 :]]

    def description(self) -> str:
        """The tools, and how they are called."""
        lines = [
            json.dumps(
                {"name": one.name, "description": one.description, "parameters": one.parameters}, ensure_ascii=False
            )
            for one in self.tools
        ]
        schema = self.tools[0].parameters
        properties = cast("Mapping[str, Any]", schema.get("properties") or {})
        arguments = {name: _value(properties.get(name)) for name in schema.get("required") or properties}
        call = ToolCall(name=self.tools[0].name, arguments=arguments)
        return (
            "You have tools:\n"
            + "\n".join(lines)
            + "\n\nUse a tool by an answer that holds a call, written as in this "
            f"example:\n{self.format.renderer([call], self.tools)}\n"
            "The next message holds its result, between <tool_response> and </tool_response>. Once you know the "
            "answer, give it without a call."
        )


def _call(call: Mapping[str, Any]) -> ToolCall:
    """A call of a message, as `template_message` leaves it."""
    function = cast("Mapping[str, Any]", call.get("function") or call)
    arguments = function.get("arguments") or {}
    if not isinstance(arguments, Mapping) or not function.get("name"):
        raise DataError(f"a tool call needs a name, and arguments that are an object or JSON text of one; got {call}")
    return ToolCall(name=str(function["name"]), arguments=cast("Mapping[str, Any]", arguments))


def _value(schema: object) -> object:
    match schema:
        case {"enum": [first, *_]} | {"const": first}:
            return first
        case {"anyOf": [{"type": str(kind)}, *_]} | {"type": [str(kind), *_]} | {"type": str(kind)}:
            return _VALUES.get(kind, "...")
        case _:
            return "..."
