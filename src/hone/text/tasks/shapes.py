"""Shapes of a data file's rows: recognised by their columns and values, and converted to TRL's columns in one place.

| shape | columns | sure sign |
|---|---|---|
| TRL's and OpenAI's conversations | `messages` | - |
| TRL's rows with completions; prompts; text | `prompt`, `completion`; `prompt`; `text` | - |
| TRL's preferences; labelled steps | `chosen`, `rejected`; `prompt`, `completions`, `labels` | - |
| TRL's labelled answers | `prompt`, `completion`, `label` | labels are true or false |
| verl's | `data_source`, `prompt`, `reward_model` | - |
| ShareGPT | `conversations` or `conversation` | turns of `from` and `value`, or of `role` and `content` |
| Alpaca | `instruction`, `input`, `output` | texts |
| GSM8K | `question`, `answer` | an answer ends in a line `#### 42` |
| xLAM | `query`, `answers` | answers are a list of calls, as JSON text |
| HH | `chosen`, `rejected` | texts that begin with `Human:` and hold an `Assistant:` |
| OpenAI's preferences | `input`, `preferred_output`, `non_preferred_output` | `input` holds `messages` |

A shape is decided for the whole file: its columns are there, and most rows show its sign; rows that do not are faults.
Exactly one shape may give what a run needs. Columns that a config names (`task.columns`) settle the rest.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from hone.core.errors import DataError, did_you_mean
from hone.text.tasks.files import FileRow
from hone.text.tasks.scored_rows import BadRowError, ChatMessage

_Columns = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """One shape of rows."""

    kind: str
    """TRL's kind that its rows become."""
    words: str
    """The shape and what becomes of its columns, in words."""
    columns: tuple[str, ...]
    """Columns that it must have."""
    more: tuple[str, ...] = ()
    """Further columns that belong to it where a file has them."""
    unless: tuple[str, ...] = ()
    """Columns that rule it out."""
    sign: Callable[[_Columns], bool] | None = None
    """True of a row that shows the shape; None: the columns are enough."""
    convert: Callable[[_Columns], dict[str, object]] | None = None
    """Columns of a row -> what takes the place of `columns` and `more`, the same names for each row; None: they are
    TRL's. Raises BadRowError."""

    @property
    def uses(self) -> frozenset[str]:
        """Columns that belong to it."""
        return frozenset((*self.columns, *self.more))

    def fits(self, rows: Sequence[FileRow], names: Sequence[str]) -> bool:
        """True if a file of these columns has the shape."""
        if not set(names).issuperset(self.columns) or not set(names).isdisjoint(self.unless):
            return False
        return self.sign is None or 2 * sum(self.sign(row.columns) for row in rows) > len(rows)

    def columns_of(self, row: FileRow, names: Sequence[str]) -> dict[str, object]:
        """Columns of a row, the same ones in each row of a file. Raises BadRowError."""
        columns = {name: row.columns.get(name) for name in names}
        if self.convert is None:
            return columns
        return {name: value for name, value in columns.items() if name not in self.uses} | self.convert(columns)


def renamed_columns(
    rows: Sequence[FileRow], columns: Mapping[str, str], source: str
) -> tuple[Sequence[FileRow], tuple[str, ...]]:
    """Rows with the columns that `columns` names (hone's name -> the file's), and the columns that any of them has.
    Raises DataError with all faults."""
    names = tuple(dict.fromkeys(name for row in rows for name in row.columns))
    if not columns:
        return rows, names
    shown = f"columns found: {', '.join(names)}"
    faults = [
        f"{source}: task.columns: {name} = {column!r}: no such column ({shown})"
        f"{did_you_mean(column, names).split('; known')[0]}"
        for name, column in columns.items()
        if column not in names
    ]
    faults += [
        f"{source}: task.columns: {name} = {column!r}, but the file has a column {name!r} too ({shown}); give that one "
        f"another name as well: columns = {{ {name} = {column!r}, old_{name} = {name!r} }}"
        for name, column in columns.items()
        if name in names and name not in columns.values()
    ]
    if faults:
        raise DataError(*faults)
    taken = set(columns.values())
    renamed = [
        replace(
            row,
            columns={name: value for name, value in row.columns.items() if name not in taken}
            | {name: row.columns[column] for name, column in columns.items() if column in row.columns},
        )
        for row in rows
    ]
    return renamed, (*(name for name in names if name not in taken), *columns)


def fitting_shapes(rows: Sequence[FileRow], names: Sequence[str], named: Mapping[str, str]) -> list[RowShape]:
    """Shapes of a file. One that columns alone show gives way to another that reads the same columns and more of them,
    or their values. `named`: columns that the config names; a shape must read those among them that shapes are known
    by, and a name of TRL's means TRL's shape."""
    asked = _KNOWN_BY.intersection(named)
    fits = [
        shape
        for shape in SHAPES
        if asked <= shape.uses and not (shape.convert and _TRL.intersection(named)) and shape.fits(rows, names)
    ]
    return [
        shape
        for shape in fits
        if shape.sign is not None
        or not any(
            one is not shape and one.uses.issuperset(shape.columns) and (one.sign or len(one.uses) > len(shape.uses))
            for one in fits
        )
    ]


# ---------------------------------------------------------------------------------------------------------------- signs


def _lists(value: object, *keys: str) -> bool:
    """True for a list of tables that all have these keys."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return bool(items) and all(isinstance(one, dict) and all(key in one for key in keys) for one in items)


_FINAL: Final = re.compile(r"^####[ \t]*(\S[^\n]*?)[ \t]*\Z", re.MULTILINE)


def _final_answer(text: object) -> str | None:
    """What stands behind `####` in the last line, without the commas of a number."""
    last = _FINAL.search(text.rstrip()) if isinstance(text, str) else None
    return None if last is None else re.sub(r"(?<=\d),(?=\d{3})", "", last[1])


# ---------------------------------------------------------------------------------------------------------- conversions


_SPEAKERS: Final = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    "system": "system",
}


def _share_gpt(name: str) -> RowShape:
    """The shape whose turns stand in a column of this name."""

    def convert(row: _Columns) -> dict[str, object]:
        turns = row[name]
        if not isinstance(turns, list) or not turns:
            raise BadRowError(f"`{name}` is not a list of turns")
        messages = [_message(turn, name) for turn in cast("list[object]", turns)]
        if row.get("system"):
            messages.insert(0, {"role": "system", "content": row["system"]})
        first = next((turn for turn in messages if turn.get("role") != "system"), None)
        if first is not None and first.get("role") == "assistant":
            raise BadRowError(f"`{name}` begins with the assistant's turn: nothing was asked")
        return {"messages": messages}

    return RowShape(
        kind="messages",
        words=f"ShareGPT's conversations ({name}; human -> user, gpt -> assistant)",
        columns=(name,),
        more=("system",),
        sign=lambda row: _lists(row.get(name), "from", "value") or _lists(row.get(name), "role", "content"),
        convert=convert,
    )


def _message(turn: object, name: str) -> ChatMessage:
    """A turn of ShareGPT as a message; one with a role as it is."""
    table = cast("dict[str, object]", turn) if isinstance(turn, dict) else {}
    if isinstance(table.get("role"), str):
        return table
    speaker, value = table.get("from"), table.get("value")
    if speaker not in _SPEAKERS:
        raise BadRowError(f"`{name}` holds a turn from {speaker!r}; known: {', '.join(_SPEAKERS)}")
    rest = {key: part for key, part in table.items() if key not in ("from", "value")}
    if speaker == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": _calls(value, name), **rest}
    return {"role": _SPEAKERS[str(speaker)], "content": value, **rest}


def _parsed(value: object) -> object:
    """The value of a JSON text; None for what is none, another value as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _calls(value: object, name: str) -> list[ChatMessage]:
    """Calls of tools, of a table or a list of tables, also as JSON text."""
    parsed = _parsed(value)
    calls = cast("list[object]", parsed if isinstance(parsed, list) else [parsed])
    if not _lists(calls, "name"):
        raise BadRowError(f"`{name}` holds a call that is no table with a name and arguments: {str(value)[:60]!r}")
    return [{"type": "function", "function": call} for call in calls]


def _from_alpaca(row: _Columns) -> dict[str, object]:
    asked, answer = row.get("instruction"), row.get("output")
    if not isinstance(asked, str) or not asked.strip():
        raise BadRowError("`instruction` is missing, empty or not text")
    more, system, history = row.get("input"), row.get("system"), row.get("history")
    if more is not None and not isinstance(more, str):
        raise BadRowError(f"`input` is a {type(more).__name__}, expected text")
    prompt = f"{asked}\n\n{more}" if more and more.strip() else asked
    if not system and not history:
        return {"prompt": prompt, "completion": answer}
    pairs = cast("list[Sequence[object]]", history or [])
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise BadRowError("`history` holds something else than pairs of question and answer")
    turns: list[ChatMessage] = [{"role": "system", "content": system}] if system else []
    for question, reply in pairs:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    turns.append({"role": "user", "content": prompt})
    return {"prompt": turns, "completion": [{"role": "assistant", "content": answer}]}


def _gsm8k() -> RowShape:
    """The shape whose answers end in a line `#### N`."""

    def convert(row: _Columns) -> dict[str, object]:
        final = _final_answer(row["answer"])
        if final is None:
            raise BadRowError("`answer` does not end in a line `#### N`")
        return {"prompt": row["question"], "completion": row["answer"], "answer": final}

    return RowShape(
        kind="prompt-completion",
        words="GSM8K's questions (question -> prompt, answer -> completion; what stands behind its #### -> answer)",
        columns=("question", "answer"),
        unless=("prompt", "completion", "messages"),
        sign=lambda row: isinstance(row.get("question"), str) and _final_answer(row.get("answer")) is not None,
        convert=convert,
    )


_TURNS: Final = re.compile(r"\n\n(Human|Assistant):")


def _hh_turns(text: object, name: str) -> list[ChatMessage]:
    if not isinstance(text, str):
        raise BadRowError(f"`{name}` is not text")
    before, *pieces = _TURNS.split(f"\n\n{text.lstrip()}")
    roles = {"Human": "user", "Assistant": "assistant"}
    turns: list[ChatMessage] = [
        {"role": roles[speaker], "content": text.strip()}
        for speaker, text in zip(pieces[::2], pieces[1::2], strict=True)
    ]
    if before or not turns or turns[0]["role"] != "user" or turns[-1]["role"] != "assistant":
        raise BadRowError(f"`{name}` does not go from `Human:` to a last `Assistant:`")
    return turns


def _openai_preferences(better: str, worse: str) -> RowShape:
    """The shape whose answers stand in columns of these names."""

    def convert(row: _Columns) -> dict[str, object]:
        if not _lists([row["input"]], "messages"):
            raise BadRowError("`input` holds no `messages`")
        asked = cast("dict[str, object]", row["input"])
        tools = asked.get("tools", row.get("tools"))
        return {"prompt": asked["messages"], "chosen": row[better], "rejected": row[worse], "tools": tools}

    return RowShape(
        kind="preference",
        words=f"OpenAI's preferences (input -> prompt, {better} -> chosen, {worse} -> rejected)",
        columns=("input", better, worse),
        unless=("prompt", "chosen", "rejected"),
        sign=lambda row: _lists([row.get("input")], "messages"),
        convert=convert,
    )


# ----------------------------------------------------------------------------------------------------------- the shapes


_PAIR: Final = ("chosen", "rejected")
SHAPES: Final = (
    RowShape(kind="messages", words="conversations (messages, as TRL and OpenAI have them)", columns=("messages",)),
    RowShape(kind="prompt", words="prompts", columns=("prompt",)),
    RowShape(kind="prompt-completion", words="TRL's prompts with completions", columns=("prompt", "completion")),
    RowShape(kind="verl", words="verl's prompts", columns=("prompt", "data_source", "reward_model")),
    RowShape(
        kind="text",
        words="text, of which every token is learnt",
        columns=("text",),
        unless=("prompt", "messages", *_PAIR),
    ),
    RowShape(kind="preference", words="TRL's preferences", columns=_PAIR, more=("prompt",)),
    RowShape(
        kind="unpaired",
        words="TRL's labelled answers",
        columns=("prompt", "completion", "label"),
        sign=lambda row: isinstance(row.get("label"), bool),
    ),
    RowShape(kind="stepwise", words="TRL's answers with labelled steps", columns=("prompt", "completions", "labels")),
    *map(_share_gpt, ("conversations", "conversation")),
    RowShape(
        kind="prompt-completion",
        words="Alpaca's instructions (instruction, an empty line and input -> prompt; output -> completion)",
        columns=("instruction", "output"),
        more=("input", "system", "history", "text"),
        unless=("prompt", "completion"),
        sign=lambda row: isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str),
        convert=_from_alpaca,
    ),
    _gsm8k(),
    RowShape(
        kind="messages",
        words="xLAM's calls of tools (query -> user, answers -> the assistant's calls)",
        columns=("query", "answers"),
        unless=("prompt", "completion"),
        sign=lambda row: isinstance(row.get("query"), str) and _lists(_parsed(row.get("answers")), "name"),
        convert=lambda row: {
            "messages": [
                {"role": "user", "content": row["query"]},
                {"role": "assistant", "content": "", "tool_calls": _calls(row["answers"], "answers")},
            ]
        },
    ),
    RowShape(
        kind="preference",
        words="HH's transcripts (Human -> user, Assistant -> assistant; turns that both sides begin with -> prompt)",
        columns=_PAIR,
        unless=("prompt",),
        sign=lambda row: all(
            str(row.get(name)).lstrip().startswith("Human:") and "\n\nAssistant:" in str(row.get(name))
            for name in _PAIR
        ),
        convert=lambda row: {name: _hh_turns(row[name], name) for name in _PAIR},
    ),
    _openai_preferences("preferred_output", "non_preferred_output"),
    _openai_preferences("preferred_completion", "non_preferred_completion"),
)
_TRL: Final = frozenset(name for shape in SHAPES if not shape.convert and shape.kind != "verl" for name in shape.uses)
_KNOWN_BY: Final = _TRL.union(*(shape.columns for shape in SHAPES if shape.convert)) - {"answer"}
"""Columns that shapes are known by; `answer` is a column of rewards as well."""
