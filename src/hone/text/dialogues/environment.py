"""Dialogues with worlds and tools: the environment side of `ConversationLoop`, with all limits and reasons of an end.

Belongs here: from an answer's tokens to the world and back to tokens, and what each dialogue counts. Does not: the
order of dialogues (`text.tasks.conversation`), where worlds run (`hosts`).
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import fsum
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock
from hone.core.conversation import Message
from hone.core.dialogue import STOP_REASONS, DialogueOutcome, PolicyTurn, StopReason, ToolSchema, WorldTurn
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.core.random import key
from hone.text.dialogues.hosted import WorldFaultError, WorldHost
from hone.text.tasks.conversation import Conversation, EnvironmentReply
from hone.text.tasks.world import Prompt
from hone.text.tools.formats import ToolFormat

# ---------------------------------------------------------------------------------------------------------------- tally

REPEATED: Final = 10
"""Equal calls in one dialogue that are one repetition too many."""
UNCALLED_SHARE: Final = 0.05
"""Share of dialogues with a call below which the log says so."""
_WINDOW: Final = 200


@dataclass(slots=True)
class _DialogueRecord:
    """One dialogue while it goes on."""

    number: int
    """Its name at the host."""
    content: str | Sequence[Message]
    """Prompt: text, or messages."""
    tokens: "DialogueTokens"
    paid: dict[int, float | None] = field(default_factory=dict[int, "float | None"])
    """Reward of each turn that the world answered."""
    facts: dict[str, float] = field(default_factory=dict[str, float])
    calls: Counter[str] = field(default_factory=Counter[str])
    """Number of each call, by name and arguments."""
    invalid: int = 0
    """Turns with a call that could not be read."""
    invalid_in_a_row: int = 0
    status: ScoreStatus = ScoreStatus.SCORED
    reason: str = ""
    waits_s: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class _DialogueTally:
    """Counts since the last `pop`."""

    stops: Counter[str] = field(default_factory=Counter[str])
    turns: list[int] = field(default_factory=list[int])
    forked: int = 0
    called: int = 0
    invalid: int = 0
    repeats: int = 0
    waits_s: list[float] = field(default_factory=list[float])
    facts: dict[str, list[float]] = field(default_factory=dict[str, "list[float]"])
    seen: int = 0
    """Dialogues since the last word on calls."""
    seen_called: int = 0

    def add(self, conversation: Conversation, record: _DialogueRecord) -> None:
        self.stops[str(conversation.stop)] += 1
        self.turns.append(conversation.turns)
        self.forked += len(conversation.rows) > 1
        called = bool(record.calls)
        self.called += called
        self.invalid += record.invalid > 0
        self.repeats += any(count >= REPEATED for count in record.calls.values())
        self.waits_s += record.waits_s
        for name, value in record.facts.items():
            self.facts.setdefault(name, []).append(value)
        self.seen, self.seen_called = self.seen + 1, self.seen_called + called

    def pop(self, *, late: int, tools: bool) -> dict[str, float]:
        """Metrics as shares and means over the dialogues; then forget them. `late`: answers after an end; `tools`:
        calls are looked for."""
        ended = len(self.turns)
        if not ended:
            return {}
        metrics = {f"stops/{reason}": self.stops[reason] / ended for reason in STOP_REASONS}
        metrics |= {"turns/mean": sum(self.turns) / ended, "turns/forked": self.forked / ended}
        if tools:
            metrics |= {
                "tools/called": self.called / ended,
                "tools/invalid": self.invalid / ended,
                "tools/repeats": self.repeats / ended,
            }
        metrics |= {f"world/{name}": fsum(values) / len(values) for name, values in sorted(self.facts.items())}
        if self.waits_s:
            metrics |= {
                "world/wait_s": fsum(self.waits_s) / len(self.waits_s),
                "world/p95_s": float(np.quantile(self.waits_s, 0.95)),
            }
        metrics["world/late"] = float(late)
        self.stops, self.turns, self.waits_s, self.facts = Counter(), [], [], {}
        self.forked = self.called = self.invalid = self.repeats = 0
        return metrics

    def uncalled_note(self) -> str:
        """A word on tools that are hardly ever called, over each window of dialogues; else empty."""
        if self.seen < _WINDOW:
            return ""
        share, self.seen, self.seen_called = self.seen_called / self.seen, 0, 0
        if share >= UNCALLED_SHARE:
            return ""
        return (
            f"tools were called in {share:.1%} of the last dialogues: does the prompt say how, and does "
            "task.tools.format fit the chat template?"
        )


# -------------------------------------------------------------------------------------------------------------- results
def cut_result(
    text: str,
    most_tokens: int,
    *,
    encode: Callable[[str], NDArray[np.int32]],
    decode: Callable[[Sequence[int] | NDArray[np.integer]], str],
) -> str:
    """A text of at most `most_tokens` tokens: both ends with a notice between them, or the text itself if it fits.

    The notice counts against the limit; if that leaves no room for the ends, the result is the beginning of the notice.
    Joined pieces may encode to other tokens than they did apart, so the ends are shortened until the whole fits.
    """
    # A token is at least one byte, and at most as many characters as the longest of a vocabulary: a text of many
    # megabytes is never encoded as a whole.
    text, lost = _within(text, 64 * max(1, most_tokens))
    tokens = encode(text)
    if len(tokens) <= most_tokens and not lost:
        return text
    for ends in range(most_tokens, 0, -max(1, most_tokens // 64)):
        head, tail = decode(tokens[: ends - ends // 2]), decode(tokens[len(tokens) - ends // 2 :]) if ends > 1 else ""
        cut = f"{head}{_notice(len(tokens) - ends, lost)}{tail}"
        if len(encode(cut)) <= most_tokens:
            return cut
    notice = encode(_notice(len(tokens), lost).strip())
    return decode(notice[:most_tokens])


def _notice(tokens: int, characters: int) -> str:
    also = f" and {characters} characters" if characters else ""
    return f"\n[... {tokens} tokens{also} left out ...]\n"


def _within(text: str, characters: int) -> tuple[str, int]:
    """A text of at most so many characters, from both of its ends, and the number of those lost."""
    if len(text) <= characters:
        return text, 0
    half = characters // 2
    return text[:half] + text[len(text) - half :], len(text) - 2 * half


# ---------------------------------------------------------------------------------------------------------- environment

_SEEDS: Final = 2**31
_MAX_TRACEBACKS: Final = 20

Tokens: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """Tokens from an answer to the next one."""

    tokens: Tokens
    """`[n]` all that stands between the two."""
    prompt: Tokens | None = None
    """`[n]` the rewritten conversation, where the chat template does not let the present row go on."""


class DialogueTokens(Protocol):
    """Text of a dialogue as tokens, by the policy's tokenizer. Text of a world is plain text: it cannot name special
    tokens. All methods raise DataError for text that has no tokens, and messages that the chat template refuses."""

    def for_prompt(self, prompt: Prompt) -> "DialogueTokens":
        """The same for the dialogues of a row, whose chat template may be told more."""
        ...

    def prompt(self, messages: Sequence[Message]) -> Tokens:
        """`[n]` a conversation up to the beginning of the first answer."""
        ...

    def bridge(self, history: Sequence[Message], said: str, answer: Tokens, new: Sequence[Message]) -> Bridge:
        """What stands between a sampled answer (`said`, with its tokens `[k]`) to `history` and the next one."""
        ...

    def encode(self, text: str) -> Tokens:
        """`[n]` plain text."""
        ...

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Text of tokens."""
        ...


INVALID_IN_A_ROW: Final = 3
"""Turns in a row with a call that cannot be read after which a dialogue is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueRules:
    """Limits of a dialogue, and the form of its calls."""

    turns: int
    context: int
    """Most tokens of a dialogue."""
    message_tokens: int
    """Longest message of a world, and longest result of a tool."""
    format: ToolFormat | None = None
    """Form of calls; None: calls are not looked for."""
    schemas: tuple[ToolSchema, ...] = ()
    """Tools whose calls are answered."""
    begins: bool = True
    """Worlds have to be begun; False for tools that are plain functions."""
    pays: bool = True
    """The world gives rewards."""
    keeps_last_words: bool = False
    """What the world says at the end of a dialogue is kept in its tokens, for a model of the world to learn."""
    one_seed: bool = False
    """Samples of one row have the same world: those that are branches of one dialogue."""


class DialogueEnvironment:
    """Implements `TextEnvironment` for worlds and tools. A dialogue is named by its request and sample."""

    def __init__(
        self,
        host: WorldHost,
        rules: DialogueRules,
        tokens: DialogueTokens,
        prompts: Sequence[Prompt],
        *,
        seed: int,
        clock: Clock | None = None,
    ) -> None:
        self._host, self._rules, self._tokens, self._seed = host, rules, tokens, seed
        self._clock = clock or SystemClock()
        self._prompts = {prompt.id: prompt for prompt in prompts}
        self._open: dict[tuple[str, int], _DialogueRecord] = {}
        self._tracebacks: dict[str, str] = {}
        self._notes: list[str] = []
        self.tally = _DialogueTally()

    def begin(self, conversation: Conversation) -> "Future[EnvironmentReply] | None":
        """Begin the world's dialogue. None for tools that are plain functions: prompts are the dataset's."""
        if not self._rules.begins:
            return None
        record, prompt = self._record(conversation), self._prompt(conversation)
        columns = {**prompt.columns, "prompt": prompt.content}
        sample = 0 if self._rules.one_seed else conversation.sample
        seed = key(self._seed, "world", conversation.request.id, sample) % _SEEDS
        asked = self._host.begin(record.number, columns, seed)
        return self._when_answered(asked, record, lambda turn: self._opened(conversation, record, prompt, turn))

    def reply(self, conversation: Conversation) -> "Future[EnvironmentReply]":
        """Answer the latest turn by tools or world."""
        record = self._record(conversation)
        # The latest answer as the world sees it; its calls are counted
        answer, text = conversation.transcript.answers[-1], str(conversation.messages[-1]["content"])
        parsed = None if self._rules.format is None else self._rules.format.parse(text, self._rules.schemas)
        calls, fault = ((), None) if parsed is None else (parsed.calls, parsed.fault)
        record.calls.update(f"{call.name} {json.dumps(dict(call.arguments), sort_keys=True)}" for call in calls)
        record.invalid += fault is not None
        record.invalid_in_a_row = 0 if fault is None else record.invalid_in_a_row + 1
        turn = PolicyTurn(
            text=text,
            calls=calls,
            fault=fault,
            finish_reason=answer.finish_reason,
            turn=conversation.turns - 1,
            turns_left=max(0, self._rules.turns - conversation.turns),
            tokens_left=max(0, self._rules.context - len(conversation.transcript.tokens)),
        )
        if record.invalid_in_a_row >= INVALID_IN_A_ROW:
            return _ready(EnvironmentReply(done=True, stop="invalid_calls"))
        if not self._rules.begins and not turn.calls and turn.fault is None:
            return _ready(EnvironmentReply(done=True))  # nobody but tools, and none was called
        asked = self._host.answer(record.number, turn)
        return self._when_answered(asked, record, lambda reply: self._heard(conversation, record, reply))

    def end(self, conversation: Conversation) -> None:
        """Close the dialogue's world, and count the dialogue if it ended."""
        name = (conversation.request.id, conversation.sample)
        if name in self._open:
            self._host.end(self._open[name].number)
        if conversation.stop is not None:
            record = self._record(conversation)  # a first answer that a limit cut was never replied to, and counts
            status, reason = record.status, record.reason
            last = record.paid.get(max(record.paid, default=-1), 0.0)
            if status is ScoreStatus.SCORED and last is None:
                status, reason = ScoreStatus.UNSCORABLE, "the world gave no reward at the end"
            rewards = [record.paid.get(turn) or 0.0 for turn in range(conversation.turns)] if self._rules.pays else []
            conversation.outcome = DialogueOutcome(
                stop=conversation.stop, rewards=tuple(rewards), status=status, reason=reason
            )
            if self._rules.format is not None:
                conversation.tool_calls = record.calls.total()
            self.tally.add(conversation, record)
        self._open.pop(name, None)

    def notes(self) -> list[str]:
        """Notes for the user since the last call: each distinct error of a world once, and tools that nobody calls."""
        notes, self._notes = self._notes, []
        called = self.tally.uncalled_note() if self._rules.schemas else ""
        return [*notes, *([called] if called else [])]

    def pop_metrics(self) -> dict[str, float]:
        """Metrics of the dialogues that ended since the last call."""
        return self.tally.pop(late=self._host.late_answers(), tools=self._rules.format is not None)

    # --------------------------------------------------------------------------------------------- inside

    def _record(self, conversation: Conversation) -> _DialogueRecord:
        name = (conversation.request.id, conversation.sample)
        if name not in self._open:
            prompt = self._prompt(conversation)
            self._open[name] = _DialogueRecord(self._host.number(), prompt.turns, self._tokens.for_prompt(prompt))
        return self._open[name]

    def _prompt(self, conversation: Conversation) -> Prompt:
        return self._prompts[conversation.request.id.rpartition("#")[0]]

    def _when_answered(
        self, asked: "Future[WorldTurn]", record: _DialogueRecord, go_on: Callable[[WorldTurn], EnvironmentReply]
    ) -> "Future[EnvironmentReply]":
        """The reply to what a world answers; a fault of the world, or text without tokens, ends the dialogue."""
        replied: Future[EnvironmentReply] = Future()
        began = self._clock.monotonic_s()

        def settle(answered: "Future[WorldTurn]") -> None:
            record.waits_s.append(self._clock.monotonic_s() - began)
            try:
                replied.set_result(go_on(answered.result()))
            except WorldFaultError as fault:
                replied.set_result(self._failed(record, fault))
            except DataError as error:
                replied.set_result(self._failed(record, WorldFaultError(f"its text cannot be used: {error}")))
            except BaseException as error:  # noqa: BLE001 - raised where the reply is taken
                replied.set_exception(error)

        asked.add_done_callback(settle)
        return replied

    def _failed(self, record: _DialogueRecord, fault: WorldFaultError) -> EnvironmentReply:
        record.status, record.reason = fault.status, fault.reason
        error = fault.traceback or fault.reason
        if error not in self._tracebacks and len(self._tracebacks) < _MAX_TRACEBACKS:
            self._tracebacks[error] = fault.reason
            self._notes.append(
                f"a world failed; equal errors are not shown again: {fault.reason}\n{fault.traceback}".strip()
            )
        stop: StopReason = "deadline" if fault.status is ScoreStatus.TIMEOUT else "world_died"
        return EnvironmentReply(done=True, stop=stop)

    def _opened(
        self, conversation: Conversation, record: _DialogueRecord, prompt: Prompt, turn: WorldTurn
    ) -> EnvironmentReply:
        """The prompt of a dialogue: the messages that the world begins with, else that of the row."""
        record.facts.update(turn.facts)
        if turn.done:
            raise WorldFaultError("begin ended the dialogue (done) before the first turn")
        tokens = prompt.tokens
        if turn.messages:
            record.content = conversation.opening = tuple(turn.messages)
            tokens = record.tokens.prompt(turn.messages)
        if not len(tokens):
            raise WorldFaultError("begin gave no messages, and the row has no prompt")
        return EnvironmentReply(prompt=tokens)

    def _heard(self, conversation: Conversation, record: _DialogueRecord, turn: WorldTurn) -> EnvironmentReply:
        """The reply of what the world said to the latest turn."""
        record.paid[conversation.turns - 1] = turn.reward
        record.facts.update(turn.facts)
        messages = [self._cut(message) for message in turn.messages]
        if turn.done or conversation.turns >= self._rules.turns:
            keeps = self._rules.keeps_last_words and bool(messages)
            last = self._between(conversation, record, messages) if keeps else EnvironmentReply()
            tokens = last.tokens if last.prompt is None else last.tokens[:0]
            return EnvironmentReply(messages=messages, tokens=tokens, done=True, stop="done" if turn.done else "turns")
        if not messages:
            raise WorldFaultError("answer gave neither a message nor done: nothing follows the policy's turn")
        return self._between(conversation, record, messages)

    def _between(
        self, conversation: Conversation, record: _DialogueRecord, messages: Sequence[Message]
    ) -> EnvironmentReply:
        """The reply of messages, with all tokens between the latest turn and the next one."""
        answer = conversation.transcript.answers[-1].tokens
        if isinstance(record.content, str):
            plain = record.tokens.encode("".join(str(message["content"]) for message in messages))
            return EnvironmentReply(messages=messages, tokens=plain)
        *before, last = conversation.messages
        bridge = record.tokens.bridge([*record.content, *before], str(last["content"]), answer, messages)
        return EnvironmentReply(messages=messages, tokens=bridge.tokens, prompt=bridge.prompt)

    def _cut(self, message: Message) -> Message:
        """The message, cut in the middle where it is too long."""
        text = str(message["content"])
        cut = cut_result(text, self._rules.message_tokens, encode=self._tokens.encode, decode=self._tokens.decode)
        return message if cut == text else {**message, "content": cut}


def _ready(reply: EnvironmentReply) -> "Future[EnvironmentReply]":
    future: Future[EnvironmentReply] = Future()
    future.set_result(reply)
    return future
