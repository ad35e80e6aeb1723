"""What a world says, checked, and as JSON: the messages between a world's process and the trainer.

A world is user code. Its turns are checked where they arise, next to the traceback, and made again from plain values in
the trainer: nothing that a world returns reaches the trainer as an object.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias, cast

from hone.core.conversation import Message
from hone.core.dialogue import PolicyTurn, ToolCall, WorldTurn
from hone.core.episodes import ScoreStatus

MAX_CHARACTERS: Final = 100_000
"""Longest message of a world; a longer one is cut in the middle before anything else looks at it."""
ROLES: Final = ("system", "user", "tool")
OWN_FACTS: Final = ("wait_s", "p95_s", "late")
"""Names of hone's own figures on worlds."""

Json: TypeAlias = dict[str, Any]


class WorldFaultError(Exception):
    """A world that failed: it raised, died, broke its contract (ERROR), or gave no answer in time (TIMEOUT)."""

    def __init__(self, reason: str, *, status: ScoreStatus = ScoreStatus.ERROR, traceback: str = "") -> None:
        super().__init__(reason)
        self.reason, self.status, self.traceback = reason, status, traceback


class WorldContractError(Exception):
    """A value that is no `WorldTurn`; the message says which."""


class WorldHost(Protocol):
    """Runs the worlds of many dialogues at the same time; a dialogue is named by a number."""

    def number(self) -> int:
        """A number for a dialogue, that none had before."""
        ...

    def begin(self, dialogue: int, columns: Mapping[str, object], seed: int) -> "Future[WorldTurn]":
        """Begin a dialogue and return at once. The future may raise WorldFaultError."""
        ...

    def answer(self, dialogue: int, said: PolicyTurn) -> "Future[WorldTurn]":
        """Hand a turn of the policy to the dialogue's world and return at once. The future may raise
        WorldFaultError."""
        ...

    def end(self, dialogue: int) -> None:
        """Close a dialogue, also one that failed; nothing is awaited."""
        ...

    def late_answers(self) -> int:
        """Answers that came after their dialogue had ended, since the last call; they were ignored."""
        ...

    def close(self) -> None:
        """End everything that runs. May be called twice."""
        ...


def turn_to_json(turn: object) -> Json:
    """A world's turn as JSON. Raises WorldContractError for anything else."""
    if not isinstance(turn, WorldTurn):
        raise WorldContractError(f"returned {_kind(turn)}, expected a WorldTurn")
    if isinstance(turn.messages, str) or not isinstance(turn.messages, Sequence):
        raise WorldContractError(f"returned messages of {_kind(turn.messages)}, expected a list of messages")
    if not isinstance(turn.done, bool):
        raise WorldContractError(f"returned done = {turn.done!r}, expected true or false")
    return {
        "messages": [_message(message, place) for place, message in enumerate(turn.messages)],
        "reward": None if turn.reward is None else _number(turn.reward, "reward"),
        "done": turn.done,
        "facts": _facts(turn.facts),
    }


def turn_from_json(value: object) -> WorldTurn:
    """The turn that `turn_to_json` wrote. Raises WorldContractError: what a world's process sends is checked again."""
    table = cast("Json", value) if isinstance(value, dict) else {}
    try:
        turn = WorldTurn(
            messages=tuple(table["messages"]),
            reward=table["reward"],
            done=table["done"],
            facts=table["facts"],
        )
    except (KeyError, TypeError) as error:
        raise WorldContractError(f"sent an answer that is none ({type(error).__name__}: {error})") from None
    turn_to_json(turn)
    return turn


def said_to_json(said: PolicyTurn) -> Json:
    """A turn of the policy as JSON."""
    return {
        "text": said.text,
        "calls": [{"name": call.name, "arguments": dict(call.arguments)} for call in said.calls],
        "fault": said.fault,
        "finish_reason": said.finish_reason,
        "turn": said.turn,
        "turns_left": said.turns_left,
        "tokens_left": said.tokens_left,
    }


def said_from_json(value: object) -> PolicyTurn:
    """The turn that `said_to_json` wrote."""
    table = cast("Json", value)
    calls = tuple(ToolCall(name=call["name"], arguments=call["arguments"]) for call in table["calls"])
    return replace(PolicyTurn(**{**table, "calls": ()}), calls=calls)


def _cut_middle(text: str, limit: int) -> str:
    """The text, of more than `limit` characters its beginning and its end with a notice between."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _message(message: object, place: int) -> Json:
    if not isinstance(message, Mapping):
        raise WorldContractError(f"returned {_kind(message)} as message {place}, expected role and content")
    table = cast("Message", message)
    role, content = table.get("role"), table.get("content")
    if role not in ROLES:
        raise WorldContractError(f"returned role {role!r} in message {place}, expected one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise WorldContractError(f"returned content of {_kind(content)} in message {place}, expected text")
    further = {str(key): value for key, value in table.items() if isinstance(value, str)}
    # Halves of surrogate pairs have no encoding.
    clean = _cut_middle(content, MAX_CHARACTERS).encode("utf-8", errors="replace").decode("utf-8")
    return {**further, "role": role, "content": clean}


def _facts(facts: object) -> dict[str, float]:
    if not isinstance(facts, Mapping):
        raise WorldContractError(f"returned facts of {_kind(facts)}, expected numbers by name")
    named = {str(name): _number(value, f"facts[{name!r}]") for name, value in cast("Json", facts).items()}
    if taken := [name for name in named if name in OWN_FACTS]:
        raise WorldContractError(f"returned a fact of the name {taken[0]!r}, which is a figure of hone's own")
    return named


def _number(value: object, name: str) -> float:
    if isinstance(value, bool):
        return float(value)
    try:
        number = float(cast("float", value))
    except (TypeError, ValueError):
        raise WorldContractError(f"returned {name} = {_kind(value)}, expected a number") from None
    if isinstance(value, str) or not math.isfinite(number):
        raise WorldContractError(f"returned {name} = {value!r}, expected a finite number")
    return number


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
