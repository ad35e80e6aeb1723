"""Trained tokens of a conversation: one function says which, for imitation, preferences, scorers and evaluation alike.

A turn of the assistant is trained from where the engine's prompt ends to the engine's first stop token. What the
template writes behind that is context of later turns and never trained. The prompt is encoded as the engine encodes it,
and the answer apart from it, so that no token of a row stands across the border between them.

Turns of one conversation stand in one row as long as the template only appends. Where it rewrites the history (drops
earlier reasoning, ends the last answer in another token), each turn has a row of its own behind the prompt that the
engine would be given.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.config import Config
from hone.core.conversation import RenderedChat
from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.models.language.chat_template import REASONING, template_message
from hone.models.language.tokenizers import Tokenizer
from hone.text.tasks.chat_rows import asked_row, asks_in_chat
from hone.text.tasks.dataset import Example, ExampleDataset
from hone.text.tasks.scored_rows import AnswerTokens, ChatMessage, PromptContent, row_answer
from hone.text.tasks.task import TaskConfig

TrainOn: TypeAlias = Literal["all", "last", "generation"]


class DataConfig(Config):
    """Use of the rows of the data."""

    train_on: TrainOn = "all"
    """Turns of the assistant that are learnt: `all` of a row's, the `last`, or what the chat template marks by
    `{% generation %}`. The turns of a column `prompt` are never learnt, nor is a message with `weight = 0`."""


@dataclass(slots=True, eq=False)
class _OpenRow:
    """A row while it is being written."""

    text: str
    """Text up to its last end token."""
    pieces: list[NDArray[np.int32]]
    at: list[Ints] = field(default_factory=list[Ints])
    end: int | None = None
    """Last end token; None where the template does not write it."""

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """One turn of the assistant behind its prompt."""

    tokens: NDArray[np.int32]
    """`[n]` up to its end token."""
    trained: NDArray[np.bool_]
    """`[n]` tokens that `{% generation %}` covers; all where it is not asked for."""
    text: str | None
    """The conversation as text, up to the end token that the template wrote; None where later turns cannot go on."""


_THINKING: Final = re.compile(
    r"\s|<[^<>\s]*(?:think|thought|channel|reason|response|start_text)[^<>\s]*>(?:thought|final|analysis)?"
    r"|\[/?(?:THINK|RESPONSE)\]|Here are my reasoning steps:",
    re.IGNORECASE,
)
"""Whitespace, and marks that open or close a block of reasoning."""
_THINKING_END: Final = re.compile(f"(?:{_THINKING.pattern})+\\Z", re.IGNORECASE)
_MARK: Final = re.compile(r"<[^<>\s]*(?:think|thought|channel|reason)[^<>\s]*>|\[/?THINK\]", re.IGNORECASE)
"""A mark that opens or closes a block of reasoning."""
_CLOSING: Final = re.compile(r"</|<channel\|>|END_|\[/", re.IGNORECASE)
_CLOSED: Final = re.compile(
    r"^(?:\s|</[^<>\s]*think[^<>\s]*>|<channel\|>|<\|END_THINKING\|>|\[/THINK\])+", re.IGNORECASE
)
_INLINE: Final = re.compile(r"<think>(.*?)</think>", re.DOTALL)


@dataclass
class TurnEncoder:
    """Encodes conversations of one tokenizer, and collects what its chat template does to them."""

    tokenizer: Tokenizer
    train_on: TrainOn = "all"
    notes: dict[str, int] = field(default_factory=dict[str, int])
    """Remarks on the template, with the number of rows that each holds for."""

    def rows(self, prompt: PromptContent, completion: PromptContent) -> list[AnswerTokens]:
        """Rows of an example, in the order of their turns: `completion` holds the trained turns, or one as text.

        Raises DataError for a template that does not take the messages, drops a part of a trained turn, writes the
        prompt differently once an answer follows, or leaves open where an answer ends.
        """
        if isinstance(prompt, str) and isinstance(completion, str):
            asked, written = self.tokenizer.encode(prompt), self.tokenizer.encode(completion)
            row = np.concatenate([asked, written, [self.tokenizer.eos_id]])
            return [row_answer(row, np.arange(len(asked), len(row), dtype=np.int64))]
        begun: list[ChatMessage] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        answer: list[ChatMessage] = (
            [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        )
        turns = [*begun, *answer]
        if wrong := [turn["weight"] for turn in turns if turn.get("weight", 1) not in (0, 1)]:
            raise DataError(f"a message has weight = {wrong[0]!r}; it is 1 (learnt) or 0 (only seen)")
        spoken = [place for place in range(len(begun), len(turns)) if turns[place]["role"] == "assistant"]
        learnt = [place for place in spoken if turns[place].get("weight", 1)]
        if not learnt:
            raise DataError("the row has no turn of the assistant to learn")
        if self.train_on == "last":
            learnt = learnt[-1:]
        notes: set[str] = set()
        finished = list(self._rows(turns, len(begun), set(learnt), notes))
        for note in notes:
            self.notes[note] = self.notes.get(note, 0) + 1
        return [row for row in finished if len(row.at)]

    def answer_row(self, prompt: PromptContent, answer: PromptContent, *, whole: bool = False) -> AnswerTokens:
        """The row of an answer that is scored: its last turn, in one row with the turns before it where the template
        only appends. With `whole`, all its turns are needed. Raises DataError as `rows`."""
        rows = self.rows(prompt, answer)
        if whole and len(rows) > 1:
            raise DataError(
                f"the chat template rewrites the history: the {len(rows)} turns of an answer are no single text, and "
                "their tokens are compared as one; move the earlier turns into the prompt, or set "
                'data.train_on = "last"'
            )
        return rows[-1]

    def remarks(self, rows: int) -> list[str]:
        """What the template does to the rows, in words."""
        return [f"chat template: {note} (in {count} of {rows} rows)" for note, count in self.notes.items()]

    def _rows(
        self, turns: Sequence[ChatMessage], first: int, learnt: set[int], notes: set[str]
    ) -> Iterator[AnswerTokens]:
        row: _OpenRow | None = None
        for place in (n for n in range(first, len(turns)) if turns[n]["role"] == "assistant"):
            if place > max(learnt):
                break
            asked = self.tokenizer.chat(turns[:place])
            if row is not None and self._goes_on(row, asked):
                tokens = self.tokenizer.encode_chat(asked, len(row.text))[0]
                row.pieces.append(tokens if row.end is None else tokens[1:])
            else:
                if row is not None:
                    notes.add(
                        "rewrites the history, so each turn is learnt behind the prompt that a rollout would have"
                    )
                    yield _finish(row)
                row = _OpenRow(asked.text, [self.tokenizer.encode_chat(asked)[0]])
            answer = self._answer(turns, place, asked, notes, trained=place in learnt)
            if place in learnt:
                row.at.append(np.flatnonzero(answer.trained) + row.size)
            row.pieces.append(answer.tokens)
            if answer.text is None:
                yield _finish(row)
                row = None
            else:
                row.text, row.end = answer.text, int(answer.tokens[-1])
        if row is not None:
            yield _finish(row)

    def _goes_on(self, row: _OpenRow, asked: RenderedChat) -> bool:
        """True if the template wrote the row's text before the next prompt too, its end token included."""
        if not asked.text.startswith(row.text):
            return False
        tokens, _ = self.tokenizer.encode_chat(asked, len(row.text))
        return row.end is None or (len(tokens) > 0 and int(tokens[0]) == row.end)

    def _answer(
        self, turns: Sequence[ChatMessage], place: int, asked: RenderedChat, notes: set[str], *, trained: bool
    ) -> _Answer:
        """The turn at a place as tokens. Raises DataError as `rows`."""
        by_marks, turn = self.train_on == "generation", self._written(turns[place])
        whole = self.tokenizer.chat(turns[: place + 1], add_generation_prompt=False, marks_generation=by_marks)
        start, exact = len(asked.text), whole.text.startswith(asked.text)
        if not exact:
            start = self._border(asked.text, whole.text, turn, notes)
        if trained:
            _require_parts(turn, whole.text[start:], notes)
        tokens, begins = self._apart(asked, whole, start, exact=exact)
        stops = np.flatnonzero(np.isin(tokens, self.tokenizer.eos_ids))
        if len(stops):
            last = int(stops[0])
            behind = whole.text[int(begins[last]) :]
            parts = _parts(turn) if trained else {}
            if late := [name for name, text in parts.items() if len(text.strip()) > 3 and text.strip() in behind]:
                raise DataError(
                    f"the chat template writes {self._name(int(tokens[last]))}, which ends texts, before "
                    f"{', '.join(late)} of an assistant's message: a policy would be stopped there; take the token "
                    "out of eos_token_id in generation_config.json"
                )
            if behind != behind.rstrip():
                notes.add(f"text behind the end token {self._name(int(tokens[last]))} is context and never learnt")
            tokens, begins = tokens[: last + 1], begins[: last + 1]
            text = whole.text[: int(begins[last])] if exact else None
        else:
            end, written = self._missing_end(turns, place)
            why = "as the next turn writes it" if written else "which the template never writes"
            notes.add(f"writes no end token after the last answer; {self._name(end)} is appended, {why}")
            if not written:  # whitespace of the template's is no part of the answer
                content = str(turn.get("content") or "")
                kept = max(len(whole.text.rstrip()), whole.text.rfind(content, start) + len(content))
                tokens, begins = tokens[begins < kept], begins[begins < kept]
            tokens, begins = np.append(tokens, np.int32(end)), np.append(begins, len(whole.text))
            text = whole.text if exact and written else None
        covered = np.ones(len(tokens), np.bool_)
        if by_marks:
            covered = np.zeros(len(begins), np.bool_)
            for begin, end in whole.generation:
                covered |= (begins >= begin) & (begins < end)
            covered[-1] |= bool(len(covered) > 1 and covered[-2])
            if trained and not covered.any():
                raise DataError(
                    'data.train_on = "generation": the chat template marks nothing of this turn by {% generation %}; '
                    'use a template that has the mark, or data.train_on = "all"'
                )
        return _Answer(tokens=tokens.astype(np.int32), trained=covered, text=text)

    def _border(self, asked: str, whole: str, turn: Mapping[str, object], notes: set[str]) -> int:
        """Place in `whole` at which the answer begins, where `whole` does not begin with the prompt. Raises DataError
        unless the two differ by a block of reasoning alone that one of them opens or closes."""
        same = next(
            (n for n, (a, b) in enumerate(zip(asked, whole, strict=False)) if a != b), min(len(asked), len(whole))
        )
        opened = max(asked.rfind("<", 0, same + 1), asked.rfind("[", 0, same + 1))
        if opened > max(asked.rfind(">", 0, same), asked.rfind("]", 0, same)):
            same = opened  # from a mark's beginning, as tokens diverge
        texts = [text for text in _parts(turn).values() if text]
        places = [place for text in texts if (place := whole.find(text.strip(), same)) >= 0]
        if _THINKING.sub("", asked[same:]) or _THINKING.sub("", whole[same : min(places, default=same)]):
            raise DataError(
                "the chat template writes the prompt differently once an answer follows, so the answer's tokens cannot "
                f"be told apart: it renders {asked[-60:]!r} as the prompt's end, and {whole[same : same + 60]!r} in "
                "its place; use a template that only appends"
            )
        begin = min(places, default=same)
        marks = _MARK.findall(asked)
        closed = not marks or _CLOSING.search(marks[-1]) is not None
        if closed:  # what closes the block again is not the policy's to write
            same += len(whole[same:begin]) - len(_CLOSED.sub("", whole[same:begin], count=1))
        ends = list(_THINKING_END.finditer(asked))
        shown = ends[-1][0] if ends else ""
        opened = "" if closed or _CLOSING.search(whole[same:begin]) else ", which is learnt inside the open block"
        notes.add(f"the prompt ends in {shown!r}, and a row has {whole[same:begin]!r} before the answer{opened}")
        return same

    def _apart(
        self, asked: RenderedChat, whole: RenderedChat, start: int, *, exact: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Tokens of `whole` from `start` on, and their places in its text: none stands across the border. Where the
        encoding of both keeps the prompt's tokens, they are the same as there."""
        tokens, begins = self.tokenizer.encode_chat(whole, start)
        if not exact:
            return tokens, begins
        tail = max(0, start - _TAIL)
        before = self.tokenizer.encode_chat(asked, tail)[0]
        both, places = self.tokenizer.encode_chat(whole, tail)
        joined = len(both) > len(before) and np.array_equal(both[: len(before)], before)
        if joined and int(places[len(before)]) >= start:
            return both[len(before) :], places[len(before) :]
        return tokens, begins

    def _missing_end(self, turns: Sequence[ChatMessage], place: int) -> tuple[int, bool]:
        """The end token of a turn after which the template writes none, and whether it writes it once another turn
        follows. Raises DataError where nothing says which it is."""
        tokenizer = self.tokenizer
        follows = turns[place + 1] if place + 1 < len(turns) else {"role": "user", "content": "a"}
        here = tokenizer.chat(turns[: place + 1], add_generation_prompt=False)
        try:
            later = tokenizer.chat([*turns[: place + 1], follows], add_generation_prompt=False)
        except DataError:
            later = here
        if later.text.startswith(here.text) and len(later.text) > len(here.text):
            ids = tokenizer.encode_chat(later, len(here.text))[0]
            if len(ids) and int(ids[0]) in tokenizer.eos_ids:
                return int(ids[0]), True
        if "eos_token" in tokenizer.special or len(tokenizer.eos_ids) == 1:
            return tokenizer.eos_id, False
        names = ", ".join(map(self._name, tokenizer.eos_ids))
        raise DataError(
            f"the chat template writes no end token after an answer, and {names} all end texts: nothing says which "
            "one a turn ends in; name it as eos_token in tokenizer_config.json"
        )

    def _written(self, turn: ChatMessage) -> Mapping[str, object]:
        """A turn of the assistant as the template is given it: calls may be text in its content."""
        prepare = self.tokenizer.prepare
        return turn if prepare is None else prepare([template_message(turn)])[-1]

    def _name(self, token: int) -> str:
        return f"{self.tokenizer.backend.id_to_token(token)!r} ({token})"


_TAIL: Final = 64
"""Characters of the prompt that are encoded again with the answer, to see whether they keep their tokens."""


def _finish(row: _OpenRow) -> AnswerTokens:
    """The row up to its last trained token."""
    at, tokens = np.concatenate([np.zeros(0, np.int64), *row.at]), np.concatenate(row.pieces)
    return row_answer(tokens[: int(at[-1]) + 1] if len(at) else tokens, at)


# --------------------------------------------------------------------------------------- templates and rows, for people

_TESTED_ROWS: Final = 8
"""First rows of a dataset on which its chat template is tested."""


def template_findings(tokenizer: Tokenizer, examples: ExampleDataset, task: TaskConfig) -> list[str]:
    """What the chat template does to the first conversations of a dataset, in words: ends that the folder does not
    name, a date in the prompt, a beginning that is written twice, and the row of an answer to prompts that have none.

    Rows that the template does not take are passed over: they are faults of the data, told where all rows are laid out.
    """
    in_chat = asks_in_chat(task, tokenizer)
    chats = [example for example in examples.rows if in_chat or example.is_conversation][:_TESTED_ROWS]
    if not chats:
        return []
    findings: list[str] = []
    if tokenizer.added_stop is not None:
        name = tokenizer.backend.id_to_token(tokenizer.added_stop)
        findings.append(
            f"chat template: turns end in {name!r} ({tokenizer.added_stop}), which the model's folder does not name as "
            "an end: hone stops there"
        )
    probe = TurnEncoder(tokenizer)
    begin = tokenizer.backend.token_to_id(tokenizer.special.get("bos_token", ""))
    seen: set[str] = set()

    def look(example: Example) -> None:
        row = asked_row(task, example.prompt, example.columns, tokenizer)
        turns: list[ChatMessage] = row.content if isinstance(row.content, list) else []
        if not turns:
            return
        asked = row.tokenizer.chat(turns)
        if asked.dated:
            seen.add("the prompt holds the date of the day, so that runs of two days differ")
        ids = tokenizer.encode_chat(asked)[0]
        if begin is not None and len(ids) > 1 and ids[0] == ids[1] == begin:
            seen.add(f"{tokenizer.special['bos_token']!r} is written twice at the beginning")
        if example.completion is None and not example.answers:
            with contextlib.suppress(DataError):  # an answer that cannot be learnt can be drawn all the same
                replace(probe, tokenizer=row.tokenizer).rows(turns, "44")

    for example in chats:
        with contextlib.suppress(DataError):
            look(example)
    return [*findings, *(f"chat template: {one}" for one in sorted(seen)), *probe.remarks(len(chats))]


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens of a row that stand together."""

    kind: Literal["context", "trained", "end"]
    tokens: int
    text: str
    """Special tokens by their names."""


def token_spans(row: AnswerTokens, tokenizer: Tokenizer) -> list[TokenSpan]:
    """A row, cut into context, trained tokens and the token that ends each trained turn."""
    kinds = np.zeros(len(row.tokens), np.int64)
    kinds[row.at] = 1
    kinds[row.at[np.isin(row.tokens[row.at], tokenizer.eos_ids)]] = 2
    borders = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    names: tuple[Literal["context", "trained", "end"], ...] = ("context", "trained", "end")
    return [
        TokenSpan(names[kinds[begin]], end - begin, tokenizer.decode(row.tokens[begin:end], special=True))
        for begin, end in pairwise(borders)
    ]


# ---------------------------------------------------------------------------------------------------- parts of a turn


def _parts(turn: Mapping[str, object]) -> dict[str, str]:
    """Texts of a turn by what they are: content, the reasoning inside and before it, names and arguments of calls."""
    message = template_message(turn)
    content = str(message.get("content", ""))
    parts: dict[str, str] = {}
    inline = _INLINE.search(content)
    if inline is not None:
        parts["the reasoning in content"] = inline[1]
        content = content[inline.end() :]
    parts["content"] = content
    parts |= {name: str(turn[name]) for name in REASONING if turn.get(name)}
    calls = message.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else [], start=1):
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        if isinstance(function, Mapping) and function.get("name"):
            parts[f"tool_calls (the name of call {number})"] = str(function["name"])
            arguments = function.get("arguments")
            words = [text for text in _strings(arguments) if text.strip()]
            if words:
                parts[f"tool_calls (the arguments of call {number})"] = words[0]
    return parts


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _require_parts(turn: Mapping[str, object], written: str, notes: set[str]) -> None:
    """Raise DataError for a trained turn of which the template drops a part."""
    lost: list[str] = []
    for name, text in _parts(turn).items():
        bare = text.strip()  # edges may be cut, and quotes escaped
        forms = (bare, json.dumps(bare, ensure_ascii=False)[1:-1], json.dumps(bare)[1:-1])
        lost += [name] if bare and not any(form in written for form in forms) else []
    if lost:
        raise DataError(
            f"the chat template drops {', '.join(lost)} of an assistant's message, so that it cannot be learnt: it "
            f"writes {written[:80]!r}; leave the part out of the row, or use a template that writes it"
        )
    content = template_message(turn).get("content")
    if isinstance(content, str) and content != content.strip() and content not in written:
        notes.add("cuts the whitespace around an assistant's content, which a policy may write")
