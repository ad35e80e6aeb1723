"""One agent's dialogue as a tree of drawn answers: which answer a request continues, and the rows that training reads.

An agent sends whole histories of messages. A history that begins with the messages of an earlier request and the answer
to it continues that answer: its prompt is the tokens that were read and drawn there, and what the chat template writes
after them. Text is never encoded in the place of tokens that were drawn. Any other history is a new row.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message, TranscriptBuilder
from hone.core.errors import DataError
from hone.core.generation import Completion
from hone.models.language.tokenizers import Tokenizer
from hone.text.serving.completions.asked import call_shapes
from hone.text.tools.formats import ToolFormat
from hone.text.tools.schemas import schema_of

# ------------------------------------------------------------------------------------------------------- agent messages


def answer_message(text: str, tools: Sequence[Mapping[str, Any]], tool_format: ToolFormat, key: str) -> Message:
    """The message of an answer: its text, with the calls in it taken out where the agent offers `tools`. Text whose
    calls cannot be read is sent as it is. Ids of calls are those of the answer, `key`, so that a run can be
    repeated."""
    parsed = tool_format.parse(text, [schema_of(one) for one in tools]) if tools else None
    if parsed is None or not parsed.calls:
        return {"role": "assistant", "content": text}
    calls = call_shapes(parsed.calls, key, ascii_only=True)
    return {"role": "assistant", "content": parsed.content, "tool_calls": calls}


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


# -------------------------------------------------------------------------------------------------------- dialogue tree

_COMPARED = ("role", "content", "tool_calls", "tool_call_id", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskingPart:
    """Which part of an agent asks, and what it offers: requests that differ in it never share a row."""

    role: str = ""
    tools: str = ""
    """Digest of the tools that it offers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAnswer:
    """A request that was placed in the tree."""

    key: str
    """Names the request within the dialogue: equal requests in the same place have equal keys, whatever came first."""
    messages: tuple[Message, ...]
    before: "_DrawnAnswer | None"
    """The answer that it continues; None: it begins a row."""
    written: NDArray[np.int32]
    """`[n]` tokens that stand between that answer and this one; the whole prompt where there is none before."""
    prompt: NDArray[np.int32]
    """`[n]` all tokens before the answer."""
    asking: _AskingPart


@dataclass(frozen=True, slots=True, eq=False)
class _DrawnAnswer:
    """An answer in a dialogue, and the way to it."""

    asked: PlannedAnswer
    history: tuple[Message, ...]
    """All messages, the answer included, as the agent sees them."""
    completion: Completion


@dataclass(slots=True, eq=False)
class DialogueTree:
    """All answers of one session, in the order in which they were drawn."""

    answers: list[_DrawnAnswer] = field(default_factory=list[_DrawnAnswer])
    rewritten: int = 0
    """Requests that began a row because the chat template rewrote their history."""
    _asked: dict[str, int] = field(default_factory=dict[str, int])
    """Times that a request was made, by its content."""

    def plan(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        role: str = "",
    ) -> PlannedAnswer:
        """Place a request; `tokenizer` is told of the tools and variables. Raises DataError for messages that the chat
        template does not take."""
        asked, offered = tuple(messages), [*tools, *([variables] if variables else [])]
        asking = _AskingPart(role=role, tools=_digest(offered) if offered else "")
        compared = _compared(asked)
        # The answer with the longest history that the messages begin with and go beyond; the latest of equal ones.
        before: _DrawnAnswer | None = None
        for one in self.answers:
            length = len(one.history)
            fits = one.asked.asking == asking and length < len(asked) and _compared(one.history) == compared[:length]
            if fits and (before is None or length >= len(before.history)):
                before = one
        content = _digest([compared, asking.tools, "" if before is None else before.asked.key])
        place = self._asked.get(content, 0)
        self._asked[content] = place + 1
        key = f"{content}.{place}"
        if before is not None:
            history, new = for_template(before.history[:-1]), for_template(asked[len(before.history) :])
            try:
                written = tokenizer.continue_chat(history, new, answer=before.completion.tokens)
            except DataError:
                self.rewritten += 1
            else:
                prompt = np.concatenate([_tokens_to(before), written]).astype(np.int32)
                return PlannedAnswer(
                    key=key, messages=asked, before=before, written=written, prompt=prompt, asking=asking
                )
        prompt = tokenizer.apply_chat(for_template(asked))
        return PlannedAnswer(key=key, messages=asked, before=None, written=prompt, prompt=prompt, asking=asking)

    def add(self, planned: PlannedAnswer, completion: Completion, answer: Message) -> None:
        """Append the answer to a planned request; `answer` is the message that the agent is sent."""
        self.answers.append(_DrawnAnswer(planned, (*planned.messages, answer), completion))

    @property
    def opening(self) -> str:
        """Names the first request: dialogues with equal openings answer the same question. Empty without an answer."""
        return "" if not self.answers else _digest(_compared(self.answers[0].history[:-1]))

    def rows(self, *, without: frozenset[str] = frozenset()) -> list[TranscriptBuilder]:
        """Every drawn answer as a decision of exactly one row, in an order that does not depend on time. Where two
        requests continue one answer, the first by key goes on in its row; in the row of the other the shared tokens are
        its prompt. Answers of the roles in `without` are left out."""
        kept = [one for one in self.answers if one.asked.asking.role not in without]
        after: dict[int, list[_DrawnAnswer]] = {}
        for one in sorted(kept, key=lambda one: one.asked.key):
            after.setdefault(0 if one.asked.before is None else id(one.asked.before), []).append(one)
        rows: list[TranscriptBuilder] = []
        begun = after.get(0, [])
        while begun:
            first = begun.pop(0)
            way, branches = _follow(first, after)
            rows.append(_row(way))
            begun = [*branches, *begun]
        return rows


def _follow(
    first: _DrawnAnswer, after: Mapping[int, Sequence[_DrawnAnswer]]
) -> tuple[list[_DrawnAnswer], list[_DrawnAnswer]]:
    """Answers of the row that begins with `first`, and those that begin rows of their own beside it."""
    way, branches = [first], list[_DrawnAnswer]()
    while following := after.get(id(way[-1]), []):
        way.append(following[0])
        branches += following[1:]
    return way, branches


def _row(way: Sequence[_DrawnAnswer]) -> TranscriptBuilder:
    row = TranscriptBuilder(way[0].asked.prompt)
    for place, one in enumerate(way):
        if place:
            row.append_environment(one.asked.written)
        row.append_sampled(one.completion)
    return row


def _tokens_to(answer: _DrawnAnswer) -> NDArray[np.int32]:
    """`[n]` all tokens up to the end of an answer."""
    pieces: list[NDArray[np.int32]] = []
    place: _DrawnAnswer | None = answer
    while place is not None:
        pieces += [place.completion.tokens, place.asked.written]
        place = place.asked.before
    return np.concatenate(pieces[::-1]).astype(np.int32)


def _compared(messages: Sequence[Message]) -> list[dict[str, object]]:
    """What counts when histories are compared: clients add fields of their own to an answer that they send back."""
    return [{name: one[name] for name in _COMPARED if one.get(name)} for one in messages]


def _digest(value: object) -> str:
    content = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
