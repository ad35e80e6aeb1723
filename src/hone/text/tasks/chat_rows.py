"""Rows as chats: the messages that a prompt is asked as, and what the chat template is told beside them.

| from | the chat template is told |
|---|---|
| `task.chat`, `task.system` | a plain prompt as a user's message; a system message where the row has none |
| `task.chat_template_kwargs`, column `chat_template_kwargs` | variables by name; the row's before the task's |
| column `tools` | tools in OpenAI's form, unless the task has tools of its own |

Both columns may be JSON text, as files with one type for each column hold them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.strict_json import strict_json
from hone.models.language.tokenizers import Tokenizer
from hone.text.tasks.dataset import ExampleDataset
from hone.text.tasks.scored_rows import ChatMessage, PromptContent
from hone.text.tasks.task import TaskConfig, variable_fault
from hone.text.tools.described import describes_tools, with_tools
from hone.text.tools.formats import TOOL_FORMATS

TOOLS: Final = "tools"
VARIABLES: Final = "chat_template_kwargs"
_MEDIA: Final = "hone reads text only"
_TOKENS: Final = "hone encodes the text itself"
_CALLS: Final = "give tools as a list in OpenAI's form in a column `tools`"
_HOLDERS: Final = "tools run by task.tools.use, worlds by task.source"
_PEERS: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), ("TRL and verl", _MEDIA)),
    **dict.fromkeys(("input_ids", "attention_mask", "completion_mask", "assistant_masks"), ("TRL", _TOKENS)),
    **dict.fromkeys(("functions", "function_call"), ("OpenAI", _CALLS)),
    **dict.fromkeys(
        ("parallel_tool_calls", "tool_choice"), ("OpenAI", "calls are as the assistant's messages have them")
    ),
    **dict.fromkeys(("tools_kwargs", "interaction_kwargs", "agent_name"), ("verl", _HOLDERS)),
    "environment": ("TRL", _HOLDERS),
    "enable_thinking": ("verl", "put it into a column `chat_template_kwargs`"),
    "raw_prompt_ids": ("verl", _TOKENS),
    "margin": ("TRL", "pairs are weighed alike"),
    "ref_chosen_logps": ("TRL", "the reference policy is asked"),
    "ref_rejected_logps": ("TRL", "the reference policy is asked"),
}
"""Columns that other trainers use and hone does not: who does, and what to do instead."""


@dataclass(frozen=True, slots=True)
class AskedRow:
    """A prompt as a policy is asked it."""

    content: PromptContent
    """Text that is encoded as it is, or messages for the chat template of `tokenizer`."""
    tokenizer: Tokenizer

    @property
    def tokens(self) -> NDArray[np.int32]:
        """`[n]` up to the beginning of the answer. Raises DataError where the tokenizer or its template cannot write
        them."""
        content = self.content
        return self.tokenizer.encode(content) if isinstance(content, str) else self.tokenizer.apply_chat(content)

    @property
    def has_tools(self) -> bool:
        """True if the chat template is told of tools, in its words or in hone's."""
        return bool(self.tokenizer.tools) or self.tokenizer.prepare is not None


def asked_row(task: TaskConfig, prompt: PromptContent, columns: Mapping[str, object], tokenizer: Tokenizer) -> AskedRow:
    """A row's prompt in `task.template` or as messages, with the tokenizer that is told of the row. Raises DataError
    for a column that cannot be used, or is not there."""
    content = task.fill_template(prompt, columns)
    if isinstance(content, str) and content:
        if not asks_in_chat(task, tokenizer):
            return AskedRow(content, tokenizer)
        messages: list[ChatMessage] = [{"role": "user", "content": content}]
        content = messages
    return AskedRow(content, row_tokenizer(task, columns, tokenizer))


def asks_in_chat(task: TaskConfig, tokenizer: Tokenizer) -> bool:
    """True if plain prompts are a user's message."""
    return bool(task.system) or (tokenizer.chat_template is not None if task.chat is None else task.chat)


def row_tokenizer(task: TaskConfig, columns: Mapping[str, object], tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer whose chat template is told of the task's system message and variables, and of a row's variables
    and tools. Raises DataError for columns that cannot be used."""
    variables = {**task.chat_template_kwargs, **_variables(columns.get(VARIABLES))}
    if task.system or variables:
        tokenizer = replace(tokenizer, system=task.system, variables=variables)
    if tokenizer.tools or tokenizer.prepare is not None or not (listed := _tools(columns.get(TOOLS))):
        return tokenizer
    return with_tools(tokenizer, listed, TOOL_FORMATS[task.tool_format], describe=task.describes_tools is not False)


def _variables(value: object) -> Mapping[str, object]:
    parsed = _parsed(value, VARIABLES)
    if not isinstance(parsed, Mapping):
        raise DataError(
            f"`{VARIABLES}` is a {type(parsed).__name__}, expected a table of variables or JSON text of one"
        )
    table = {str(name): one for name, one in cast("Mapping[object, object]", parsed).items() if one is not None}
    if fault := variable_fault(table):
        raise DataError(f"`{VARIABLES}`: {fault}")
    return table


def _tools(value: object) -> list[Mapping[str, Any]]:
    """Tools of a column in OpenAI's form, without the nulls that a file with one type for all rows holds."""
    parsed = _parsed(value, TOOLS)
    listed = [] if isinstance(parsed, Mapping) and not parsed else parsed
    tools: list[Mapping[str, Any]] = []
    for one in cast("list[object]", listed) if isinstance(listed, list) else [listed]:
        table = cast("dict[str, Any]", _without_nulls(one)) if isinstance(one, Mapping) else {}
        function = table.get("function", table)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise DataError(
                f"`{TOOLS}` holds {str(one)[:80]!r}, expected tools in OpenAI's form, "
                '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}; rename the '
                "column if it is something else"
            )
        parameters = function.get("parameters")
        if isinstance(parameters, dict) and parameters and not {"type", "properties", "$ref"} & parameters.keys():
            function = {**function, "parameters": {"type": "object", "properties": parameters}}  # as xLAM's rows
        tools.append({"type": "function", "function": function})
    return tools


def _parsed(value: object, column: str) -> object:
    """A column's value, or what its JSON text holds; nothing is an empty table."""
    if not isinstance(value, str):
        return {} if value is None else value
    try:
        return strict_json(value) if value.strip() else {}
    except ValueError as error:
        raise DataError(f"`{column}` is text and no JSON: {error}") from None


def _without_nulls(value: object) -> object:
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return {name: _without_nulls(one) for name, one in pairs if one is not None}
    return [_without_nulls(one) for one in cast("list[object]", value)] if isinstance(value, list) else value


# --------------------------------------------------------------------------------------------------------------- notes


def chat_notes(task: TaskConfig, examples: ExampleDataset, tokenizer: Tokenizer) -> list[str]:
    """What is done with the rows of a dataset as chats, in words: plain prompts in the chat template, tools that it
    does not describe, and columns that other trainers use and hone does not."""
    empty = (None, "", [], {})
    filled = {name for row in examples.rows for name, one in row.columns.items() if one not in empty}
    plain = [row for row in examples.rows if isinstance(row.prompt, str) and row.prompt]
    in_chat = asks_in_chat(task, tokenizer)
    chats = in_chat or len(plain) < len(examples)
    notes = _tool_notes(task, tokenizer, has_column=TOOLS in filled, chats=chats)
    if plain and in_chat and task.chat is None and not task.system:
        notes.append(
            "plain prompts are asked as a user's message of the chat template; task.chat = false encodes them as they "
            "are"
        )
    if not chats:
        unused = [f"column {name!r}" for name in (TOOLS, VARIABLES) if name in filled]
        unused += ["task.chat_template_kwargs"] if task.chat_template_kwargs else []
        notes += [f"{name} is not used: prompts are plain text, without a chat template" for name in unused]
    more = [row.columns.get("extra_info") for row in examples.rows]
    inside = {str(name) for one in more if isinstance(one, Mapping) for name in cast("Mapping[str, object]", one)}
    for name in sorted({*filled, *inside} & set(_PEERS)):
        peer, instead = _PEERS[name]
        notes.append(f"column {name!r}, which {peer} would use, reaches reward functions only: {instead}")
    return [f"{examples.source}: {note}" for note in notes]


def _tool_notes(task: TaskConfig, tokenizer: Tokenizer, *, has_column: bool, chats: bool) -> list[str]:
    own = bool(tokenizer.tools) or tokenizer.prepare is not None
    if not chats:
        plain = "prompts are plain text: nobody tells the policy of the tools but the prompts themselves"
        return [plain] if own or (task.tools is not None and task.tools.use) else []
    if not (own or has_column):
        return []
    notes = ["column 'tools' is not used: the policy is told of the tools of task.tools"] if own and has_column else []
    if describes_tools(tokenizer):
        return notes
    if tokenizer.prepare is not None or (not own and task.describes_tools is not False):
        form = f"with calls as {task.tool_format} (task.tools.format)"
        return [*notes, f"the chat template describes no tools: hone describes them in the system message, {form}"]
    return [
        *notes,
        "the chat template describes no tools, and nobody tells the policy of them: the prompts have to, or "
        "task.tools.describe = true",
    ]
