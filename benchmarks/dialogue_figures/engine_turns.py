"""Turns on the engine: 64 dialogues of 8 turns in 32 slots, with a tool that takes 0 to 500 ms for each reply.

A turn is 51 sampled tokens on average, as chance ends it, a reply 16 tokens; the model has 4 million parameters. Time
is processor time, and a moment in which the engine has nothing to do passes at once: other programs change little. A
slot is busy unless it is empty for want of a reply; when fewer dialogues than slots are left, these slots alone count.
Speed is beside single answers of the same tokens: as many are sampled for each dialogue, and as many are read, all of
them in the prompt. The faster of two runs counts on both sides.
"""

import heapq
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import numpy as np
from demonstrations import Bar

from hone.core.generation import Request, SamplingParams, generate
from hone.core.random import generator
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import choose_runner
from hone.engine.scheduler import default_limits
from hone.engine.session import TokenizerRules
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.text.tasks import conversation
from hone.text.tasks.conversation import Conversation, ConversationLimits, ConversationLoop, EnvironmentReply

TITLE = "Turns on the engine, tools of 0 to 500 ms"
SEEDS = (100, 101, 102, 103, 104)
BARS = (
    Bar(figure="slots busy", at_least=0.85),
    Bar(figure="tokens a second, of single answers of the same tokens", at_least=0.80),
    Bar(figure="tokens read, of those that are new", at_most=1.0),
)
VOCAB, SLOTS, PROMPT, LONGEST_TURN, HEARD, SLOWEST_S = 512, 32, 64, 256, 16, 0.5
ENDS = tuple(range(10))
"""Tokens that end a turn."""


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Busy slots, speed and tokens read, with kept turns; and what the same turns cost without them."""
    dialogues, turns = (8, 3) if quick else (64, 8)
    model, talk = new_model(_shape(), seed=seed), partial(_talk, dialogues=dialogues, turns=turns, seed=seed)
    anew = talk(model, keep_s=0.0)
    both = [(talk(model), _single_answers_s(model, anew, turns, seed=seed)) for _ in range(2)]
    kept = min((one for one, _ in both), key=lambda one: one.work_s)
    assert [one.tolist() for one in kept.texts] == [one.tolist() for one in anew.texts], "keeping changes no token"
    # The last token of an answer was not read when it was drawn.
    new = dialogues * PROMPT + sum(count - 1 for count in kept.turns) * (HEARD + 1)
    return {
        "slots busy": kept.busy,
        "tokens a second, of single answers of the same tokens": min(single for _, single in both) / kept.work_s,
        "tokens read, of those that are new": kept.read / new,
        "tokens read, of those that are new, nothing kept": anew.read / new,
        "sampled tokens a second": sum(kept.sampled) / kept.work_s,
        "turns of a dialogue": sum(kept.turns) / dialogues,
    }


@dataclass
class WorkClock:
    """Processor time of this program, and the times that were skipped because there was nothing to do."""

    skipped_s: float = 0.0
    alarms: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    def now_s(self) -> float:
        return self.monotonic_s()

    def monotonic_s(self) -> float:
        """Seconds; calls the alarms whose time has come."""
        now = time.process_time() + self.skipped_s
        while self.alarms and self.alarms[0][0] <= now:
            heapq.heappop(self.alarms)[2]()
        return now

    def call_at(self, due_s: float, action: Callable[[], None]) -> None:
        """Set an alarm."""
        heapq.heappush(self.alarms, (due_s, len(self.alarms), action))

    def skip(self, *_futures: object, return_when: str) -> None:
        """Go on to the next alarm, in place of waiting for it."""
        del return_when
        self.skipped_s += max(0.0, self.alarms[0][0] - self.monotonic_s()) if self.alarms else 0.0
        self.monotonic_s()


@dataclass
class SlowTool:
    """Replies with the `tokens` `[dialogues, turns, n]` after `delays_s` `[dialogues, turns]`."""

    clock: WorkClock
    tokens: np.ndarray
    delays_s: np.ndarray

    def begin(self, conversation: Conversation) -> None:
        """Dialogues begin with the prompt of their request."""

    def reply(self, conversation: Conversation) -> Future[EnvironmentReply]:
        """The reply, once its time has come; none after the last turn."""
        name, turn = int(conversation.request.id), conversation.transcript.turns - 1
        future: Future[EnvironmentReply] = Future()
        if turn + 1 == self.delays_s.shape[1]:
            future.set_result(EnvironmentReply(done=True))
            return future
        found = EnvironmentReply(tokens=self.tokens[name, turn])
        due = self.clock.monotonic_s() + float(self.delays_s[name, turn])
        self.clock.call_at(due, partial(future.set_result, found))
        return future

    def end(self, conversation: Conversation) -> None:
        """Nothing is left of a dialogue."""


@dataclass(frozen=True, kw_only=True)
class Talk:
    """What all dialogues took."""

    busy: float
    work_s: float
    read: int
    texts: list[np.ndarray]
    turns: list[int]
    sampled: list[int]


def _talk(model: Decoder, *, dialogues: int, turns: int, seed: int, keep_s: float = 60.0) -> Talk:
    clock = WorkClock()
    engine = _engine(model, turns, clock, ends=ENDS)
    random = generator(seed, "tool")
    replies = random.integers(len(ENDS), VOCAB, (dialogues, turns, HEARD)).astype(np.int32)
    tool = SlowTool(clock, replies, random.uniform(0.0, SLOWEST_S, (dialogues, turns)))
    limits = ConversationLimits(slots=SLOTS, keep_s=keep_s)
    requests = _requests([LONGEST_TURN] * dialogues, [PROMPT] * dialogues, seed)
    loop = ConversationLoop(engine, requests, _no_text, environment=tool, limits=limits, clock=clock)
    engine.reset_stats()
    began = time.process_time()
    with patch.object(conversation, "wait", clock.skip):
        for _ in loop.finished_groups():
            pass
    use, found = loop.slot_use, [one.transcript for group in loop.groups for one in group]
    return Talk(
        busy=1 - use.waiting / use.total,
        work_s=time.process_time() - began,
        read=engine.stats.prefill_tokens,
        texts=[one.tokens for one in found],
        turns=[one.turns for one in found],
        sampled=[sum(len(answer.tokens) for answer in one.answers) for one in found],
    )


def _no_text(tokens: np.ndarray) -> str:
    """Text of tokens, which nobody reads here."""
    del tokens
    return ""


def _single_answers_s(model: Decoder, talk: Talk, turns: int, *, seed: int) -> float:
    """Processor seconds of single answers with the tokens of all dialogues."""
    engine = _engine(model, turns, WorkClock(), ends=())
    read = [PROMPT + (count - 1) * HEARD for count in talk.turns]
    began = time.process_time()
    drawn = sum(len(one.tokens) for one in generate(engine, _requests(talk.sampled, read, seed)))
    assert drawn == sum(talk.sampled)
    return time.process_time() - began


def _requests(sampled: list[int], read: list[int], seed: int) -> list[Request]:
    return [
        Request(
            id=f"{place}",
            prompt=generator(seed, "prompt", place).integers(len(ENDS), VOCAB, tokens).astype(np.int32),
            samples=1,
            sampling=SamplingParams(max_tokens=count),
        )
        for place, (count, tokens) in enumerate(zip(sampled, read, strict=True))
    ]


def _engine(model: Decoder, turns: int, clock: WorkClock, *, ends: tuple[int, ...]) -> EmbeddedEngine:
    chosen = choose_runner("auto", model, vocab_used=VOCAB, threads=1)
    longest = PROMPT + turns * (LONGEST_TURN + HEARD)
    limits = default_limits(slots=SLOTS, page_tokens=chosen.runner.page_tokens, sequence_tokens=longest, vocab=VOCAB)
    engine = EmbeddedEngine(chosen, TokenizerRules(eos=ends, vocab=VOCAB), limits=limits, seed=0, clock=clock)
    engine.publish(1)
    return engine


def _shape() -> ModelConfig:
    return ModelConfig(
        family="qwen3", vocab_size=VOCAB, hidden_size=256, intermediate_size=768, layers=4, heads=8, kv_heads=4,
        head_dim=32, max_positions=4096,
    )  # fmt: skip
