"""Rows with scored answers, in TRL's formats: pairs (preference), labelled answers (unpaired) and steps (stepwise).

| kind | columns | answers of an example |
|---|---|---|
| preference | `chosen`, `rejected`; `prompt`, or it is their common beginning | chosen (score 1) and rejected (0) |
| unpaired | `prompt`, `completion`, `label` | one, with score 1 or 0 |
| stepwise | `prompt`, `completions` (steps), `labels` | one, with its steps and a label for each |

The columns `score_chosen` and `score_rejected` of a pair take the place of 1 and 0. Labels of steps are true, false, or
shares between 0 and 1 (k of K continuations that ended well).
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.ragged import Ints

# ---------------------------------------------------------------------------------------------------- checks of columns


ChatMessage: TypeAlias = dict[str, object]
PromptContent: TypeAlias = str | list[ChatMessage]
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
"""What a name that nearly is one of them was meant to be. A template may have others."""


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
    # Parquet gives every message all keys that any message has, and so on inside: null says that this one lacks it.
    turn = cast("ChatMessage", _without_nulls(value))
    if not isinstance(turn.get("role"), str):
        raise BadRowError(f"`{name}` holds a message without a role")
    if "function_call" in turn:  # as OpenAI had calls before `tool_calls`
        turn["tool_calls"] = [{"type": "function", "function": turn.pop("function_call")}]
    if turn["role"] == "function":
        turn["role"] = "tool"
    role = str(turn["role"])
    # A template writes a misspelt role as it stands, so that an answer under it would be read and never learnt.
    if role not in _ROLES and (close := difflib.get_close_matches(role.casefold(), _ROLES, n=1, cutoff=0.85)):
        raise BadRowError(f"`{name}` holds a message of role {role!r}; did you mean {close[0]}?")
    if isinstance(turn.setdefault("content", ""), list):
        from hone.models.language.chat_template import joined_parts  # noqa: PLC0415 - for such rows only

        try:
            turn["content"] = joined_parts(cast("list[object]", turn["content"]))
        except DataError as fault:
            raise BadRowError(f"`{name}`: {fault}") from None
    if not isinstance(turn["content"], str):
        raise BadRowError(f"`{name}` holds a message whose content is a {type(turn['content']).__name__}, not text")
    return turn


def _without_nulls(value: object) -> object:
    """A JSON value without keys that are null, at any depth."""
    if isinstance(value, dict):
        table = cast("dict[object, object]", value)
        return {str(key): _without_nulls(part) for key, part in table.items() if part is not None}
    return [_without_nulls(item) for item in cast("list[object]", value)] if isinstance(value, list) else value


# ---------------------------------------------------------------------------------------------------------- scored rows


_SCORES: Final = ("score_chosen", "score_rejected")
SCORED_COLUMNS: Final = {
    "preference": {"prompt", "chosen", "rejected", *_SCORES},
    "unpaired": {"prompt", "completion", "label"},
    "stepwise": {"prompt", "completions", "labels"},
}
"""Columns that make up the answers of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnswerTokens:
    """Tokens of a question and its answer."""

    tokens: NDArray[np.int32]
    """`[T]` the question's tokens, the answer's, and those of an environment between them."""
    at: Ints
    """`[n]` positions of the answer's tokens, ascending."""
    logp: NDArray[np.float32]
    """`[n]` nats under the policy that drew them; NaN where it is unknown."""
    labels: NDArray[np.floating]
    """`[n]` label of the step that ends at each token; NaN where none ends."""
    truncated: bool = False
    """A limit ended the answer."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Beginning and end of each run of the answer's tokens: of each of its turns."""
        cuts = np.flatnonzero(np.diff(self.at) > 1)
        begins, ends = np.append(0, cuts + 1), np.append(cuts, len(self.at) - 1)
        return [(int(self.at[a]), int(self.at[b]) + 1) for a, b in zip(begins, ends, strict=True)]


def row_answer(
    tokens: NDArray[np.integer], at: Ints, *, step_ends: Sequence[int] = (), step_labels: Sequence[float] = ()
) -> AnswerTokens:
    """The answer of a row `[T]` whose tokens `at` `[n]` are the answer's, and whose log-probabilities nobody knows.
    `step_ends` `[k]` are places among `at` of the last token of each step, and `step_labels` `[k]` the steps' labels.
    """
    labels = np.full(len(at), np.nan, np.float32)
    labels[np.asarray(step_ends, np.int64)] = step_labels
    logp = np.full(len(at), np.nan, np.float32)
    return AnswerTokens(tokens=tokens.astype(np.int32), at=at.astype(np.int64), logp=logp, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """An answer of an example, with its score."""

    content: PromptContent
    """Text or messages; of a stepwise row the first step."""
    score: float
    """1 and 0 for better and worse where a file has no numbers; NaN where the answer has no score."""
    steps: tuple[str, ...] = ()
    """Text of each step."""
    labels: tuple[float, ...] = ()
    """Label of each step, from 0 to 1."""
    tokens: AnswerTokens | None = None
    """Tokens as a policy drew them; None for text that is yet to be encoded."""

    def identity(self) -> list[object]:
        """Everything that makes the answer what it is, for a fingerprint."""
        drawn = [] if self.tokens is None else [self.tokens.tokens.tolist(), self.tokens.labels.tolist()]
        return [self.content, self.score, self.steps, self.labels, *drawn]


def _pair(columns: Mapping[str, object]) -> tuple[PromptContent, tuple[ScoredAnswer, ...]]:
    chosen, rejected = (checked_content(columns[name], name) for name in ("chosen", "rejected"))
    if type(chosen) is not type(rejected):
        raise BadRowError("`chosen` and `rejected` are not of one form (both text, or both messages)")
    if chosen == rejected:
        raise BadRowError("`chosen` equals `rejected`")
    own = columns.get("prompt")
    # As in TRL: a plain prompt beside conversations repeats their question; beside answers alone it is the question.
    repeated = isinstance(own, str) and isinstance(chosen, list) and chosen[0]["role"] != "assistant"
    if own is None or repeated:
        prompt, chosen, rejected = _common_prompt(chosen, rejected)
        turns = prompt if isinstance(own, str) and isinstance(prompt, list) else []
        if turns and not any(str(turn["content"]).strip() == str(own).strip() for turn in turns):
            raise BadRowError("`prompt` is none of the messages with which `chosen` and `rejected` begin")
    else:
        prompt = checked_content(own, "prompt")
    _check_is_answer(chosen, "chosen")
    _check_is_answer(rejected, "rejected")
    better, worse = 1.0, 0.0
    if any(name in columns for name in _SCORES):
        better, worse = (_number(columns.get(name), name) for name in _SCORES)
    if worse > better:
        raise BadRowError("`score_rejected` is above `score_chosen`")
    return prompt, (ScoredAnswer(content=chosen, score=better), ScoredAnswer(content=rejected, score=worse))


def _common_prompt(
    chosen: PromptContent, rejected: PromptContent
) -> tuple[PromptContent, PromptContent, PromptContent]:
    """Prompt and answers of a pair that has no `prompt`: the prompt is the common beginning. A space before the answers
    belongs to them."""
    same = next((n for n, pair in enumerate(zip(chosen, rejected, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        raise BadRowError("of `chosen` and `rejected` one is the beginning of the other; give the prompt as `prompt`")
    if isinstance(chosen, str) and same and chosen[same - 1] == " ":
        same -= 1
    if not same:
        raise BadRowError("`chosen` and `rejected` begin differently: their prompts differ, or belong into `prompt`")
    return chosen[:same], chosen[same:], rejected[same:]


def _check_is_answer(content: PromptContent, name: str) -> None:
    """Raises BadRowError for an empty answer, or messages that begin with the prompt's."""
    if isinstance(content, str):
        if not content.strip():
            raise BadRowError(f"`{name}` is empty after the prompt")
        return
    if content[0]["role"] != "assistant":
        raise BadRowError(
            f"`{name}` goes on with a message of {content[0]['role']!r} where the answer should be: the prompts "
            "differ, or the prompt stands in `prompt` and in the answer"
        )
    if not str(content[-1]["content"]).strip() and "tool_calls" not in content[-1]:
        raise BadRowError(f"`{name}` is empty after the prompt")


def _labelled_answer(columns: Mapping[str, object]) -> tuple[PromptContent, tuple[ScoredAnswer, ...]]:
    prompt, content = (checked_content(columns[name], name) for name in ("prompt", "completion"))
    if not isinstance(columns["label"], bool):  # of 0 and 1 nobody says which is good
        raise BadRowError(f"`label` is {columns['label']!r}, expected true or false")
    return prompt, (ScoredAnswer(content=content, score=float(bool(columns["label"]))),)


def _labelled_steps(columns: Mapping[str, object]) -> tuple[PromptContent, tuple[ScoredAnswer, ...]]:
    prompt = checked_content(columns["prompt"], "prompt")
    steps, labels = (_filled_list(columns[name], name) for name in ("completions", "labels"))
    if len(steps) != len(labels):
        raise BadRowError("`completions` and `labels` differ in number: every step needs one label")
    if any(not isinstance(step, str) or not step.strip() for step in steps):
        raise BadRowError("`completions` holds a step that is empty or not text")
    shares = tuple(_number(label, "labels") for label in labels)
    if any(not 0 <= share <= 1 for share in shares):
        raise BadRowError("`labels` holds a number outside 0 .. 1; a label is true, false, or a share")
    texts = tuple(map(str, steps))
    return prompt, (ScoredAnswer(content=texts[0], score=shares[-1], steps=texts, labels=shares),)


def _filled_list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise BadRowError(f"`{name}` is a {type(value).__name__}, expected a list")
    if not value:
        raise BadRowError(f"`{name}` is an empty list")
    return value


def _number(value: object, name: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRowError(f"`{name}` holds {value!r}, expected a number")
    return float(value)


SCORED_ROW_READERS: Final = {"preference": _pair, "unpaired": _labelled_answer, "stepwise": _labelled_steps}
"""Reader of the prompt and the answers of a row of each kind. Raises BadRowError."""
