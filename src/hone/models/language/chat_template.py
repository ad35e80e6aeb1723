"""Chat templates: rendering with the users' text kept apart, and the default template.

The default one belongs to tokenizers that hone builds for a new model and data with conversations. A message is its
role's token, its text, and `<eos>`: `<|user|>2+2?<eos><|assistant|>4<eos>`. It appends only, keeps all
whitespace, and needs no character beside those of the messages.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from hone.core.conversation import Message
from hone.core.errors import DataError

ROLE_TOKENS: Final = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
"""Special tokens of the roles, in the order of their ids, which follow all others."""
DEFAULT_CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{- raise_exception('the default chat template has no role \\'' ~ message['role'] ~ '\\'; known: system, user, "
    "assistant, tool') -}}"
    "{%- endif -%}"
    "{%- if message['content'] is not string or message['tool_calls'] -%}"
    "{{- raise_exception('the default chat template takes messages of plain text, without parts and tool calls') -}}"
    "{%- endif -%}"
    "{{- '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ '<eos>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def chat_pieces(
    template: str,
    messages: Sequence[Message],
    *,
    protected: Sequence[str],
    special: Mapping[str, str],
    tools: Sequence[Mapping[str, object]],
    add_generation_prompt: bool,
) -> list[tuple[str, bool]]:
    """Pieces of the rendered conversation, and whether a piece is the name of a special token (`protected`) in a user's
    text, which is plain text there.

    Raises DataError when the template does not take these messages.
    """
    from transformers.utils.chat_template_utils import (  # noqa: PLC0415 - takes a second to import
        render_jinja_template,
    )

    mark = unused_character(messages)
    guarded = [_guard(message, protected, mark) for message in messages]
    try:
        (rendered,), _ = render_jinja_template(
            conversations=[guarded],
            chat_template=template,
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=add_generation_prompt,
            **special,  # pyright: ignore[reportArgumentType] - their names end in _token
        )
    except (ValueError, TypeError, KeyError, _template_error()) as error:
        raise DataError(
            f"the chat template does not take the messages {shorten_text(str(messages))}: {error}"
        ) from error
    return [(piece, number % 2 == 1) for number, piece in enumerate(rendered.split(mark))]


def unused_character(messages: Sequence[Message]) -> str:
    """A private-use character that no message contains."""
    text = json.dumps(messages, ensure_ascii=False, default=str)
    return next(mark for mark in map(chr, range(0xE000, 0xF8FF)) if mark not in text)


def _guard(message: Message, names: Sequence[str], mark: str) -> dict[str, object]:
    """The message with special tokens' names in its content set between marks."""
    content = message.get("content")
    if not isinstance(content, str):
        return dict(message)
    for name in sorted(names, key=len, reverse=True):
        parts = content.split(mark)
        # Odd parts are marked already, by a longer name.
        parts[::2] = [part.replace(name, f"{mark}{name}{mark}") for part in parts[::2]]
        content = mark.join(parts)
    return {**message, "content": content}


def _template_error() -> type[Exception]:
    from jinja2 import TemplateError  # noqa: PLC0415 - needed for chat templates only

    return TemplateError


def shorten_text(text: str, limit: int = 80) -> str:
    """The text, cut after `limit` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
