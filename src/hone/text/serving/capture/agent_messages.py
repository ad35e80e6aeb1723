"""Messages between agents and chat templates: calls of tools as OpenAI's protocol has them, and as templates do."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from hone.core.conversation import Message
from hone.core.dialogue import ToolSchema
from hone.models.language.tokenizers import Tokenizer
from hone.text.tools.formats import ToolFormat


def answer_message(text: str, tools: Sequence[Mapping[str, Any]], tool_format: ToolFormat, key: str) -> Message:
    """The message of an answer: its text, with the calls in it taken out where the agent offers `tools`.

    Text whose calls cannot be read is sent as it is. Ids of calls are those of the answer, `key`, so that a run can be
    repeated.
    """
    if not tools:
        return {"role": "assistant", "content": text}
    parsed = tool_format.parse(text, tool_schemas(tools))
    if not parsed.calls:
        return {"role": "assistant", "content": text}
    calls = [
        {
            "id": f"call_{key}_{place}",
            "type": "function",
            "function": {"name": one.name, "arguments": json.dumps(dict(one.arguments))},
        }
        for place, one in enumerate(parsed.calls)
    ]
    return {"role": "assistant", "content": parsed.content, "tool_calls": calls}


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> list[ToolSchema]:
    """The tools of a request."""
    functions = [cast("Mapping[str, Any]", one["function"]) for one in tools]
    return [
        ToolSchema(
            name=one["name"],
            description=one.get("description", ""),
            parameters=one.get("parameters") or {"type": "object", "properties": {}},
        )
        for one in functions
    ]


def with_tools(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> Tokenizer:
    """The tokenizer with a chat template that is told about the tools."""
    return replace(tokenizer, tools=tuple(tools)) if tools else tokenizer


def for_template(messages: Sequence[Message]) -> list[Message]:
    """Messages as chat templates take them: arguments of calls as tables, not as texts of JSON."""
    return [_for_template(one) if one.get("tool_calls") else one for one in messages]


def _for_template(message: Message) -> Message:
    calls: list[object] = []
    for call in cast("Sequence[Mapping[str, Any]]", message["tool_calls"]):
        function = dict(call.get("function", {}))
        with contextlib.suppress(ValueError, TypeError):
            function["arguments"] = json.loads(function.get("arguments", "{}"))
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}
