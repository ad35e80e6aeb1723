"""Checks of the columns of a row: text or messages, with something in them."""

from typing import TypeAlias

ChatMessage: TypeAlias = dict[str, object]
PromptContent: TypeAlias = str | list[ChatMessage]


class BadRowError(Exception):
    """A row that cannot be used; the message says why, without the row's number."""


def checked_content(value: object, name: str) -> PromptContent:
    """Return text with something in it, or well-formed messages; `name` is the column. Raises BadRowError."""
    if value is None:
        raise BadRowError(f"`{name}` is null or missing")
    if isinstance(value, str):
        if not value.strip():
            raise BadRowError(f"`{name}` is empty or only whitespace")
        return value
    if not isinstance(value, list):
        raise BadRowError(f"`{name}` is a {type(value).__name__}, expected text or a list of messages")
    if not value:
        raise BadRowError(f"`{name}` is an empty list of messages")
    turns = [_checked_message(turn, name) for turn in value]
    if not any(str(turn["content"] or "").strip() or "tool_calls" in turn for turn in turns):
        raise BadRowError(f"`{name}` has no message with content")
    return turns


def _checked_message(value: object, name: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise BadRowError(f"`{name}` holds a {type(value).__name__}, expected a message with role and content")
    # Parquet gives every message all keys that any message has: null says that this one lacks it.
    turn: ChatMessage = {str(key): part for key, part in value.items() if part is not None}
    if not isinstance(turn.get("role"), str):
        raise BadRowError(f"`{name}` holds a message without a role")
    if not isinstance(turn.setdefault("content", ""), str):
        raise BadRowError(f"`{name}` holds a message whose content is a {type(turn['content']).__name__}, not text")
    return turn
