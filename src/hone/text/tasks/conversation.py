"""Conversations of an environment with a policy: completion -> environment -> next request, until all have ended.

Belongs here: the order of requests, and the nudge, an environment that asks for a second answer. Does not: prompts,
scores and columns (`world`).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock
from hone.core.conversation import Message, TranscriptBuilder
from hone.core.dialogue import DialogueOutcome, StopReason
from hone.core.generation import Completion, GenerationSession, Request


class AnswerEffort(NamedTuple):
    """What a conversation took."""

    seconds: float
    """From its request to its end."""
    world_seconds: float
    """Those of them in which it waited for its environment."""
    tool_calls: int | None
    """Calls of tools; None where none are looked for."""


@dataclass(slots=True, eq=False)
class Conversation:
    """One sample of a request while it is being written."""

    request: Request
    sample: int
    transcript: TranscriptBuilder
    messages: list[Message] = field(default_factory=list[Message])
    """Messages after the prompt."""
    rewards: list[float] = field(default_factory=list[float])
    """The environment's reward for each turn that it answered."""
    opening: str | Sequence[Message] | None = None
    """Prompt that the environment gave; None: the request's own."""
    earlier: list[TranscriptBuilder] = field(default_factory=list[TranscriptBuilder])
    """Rows before the present one: the chat template rewrote the history, and the conversation went on in a new row."""
    stop: StopReason | None = None
    """Reason why it ended; None while it goes on."""
    outcome: DialogueOutcome | None = None
    """Result for the score, of a dialogue that ended."""
    tool_calls: int | None = None
    """Calls of tools, once it has ended; None where none are looked for."""
    asked_s: float = 0.0
    """Time of its request."""
    handed_s: float = 0.0
    """Time at which its environment was last asked."""
    world_seconds: float = 0.0
    seconds: float = 0.0
    """From the request to the end, once it has ended; `world_seconds` of them waited for the environment."""

    @property
    def rows(self) -> list[TranscriptBuilder]:
        """Token rows of the conversation, in their order."""
        return [*self.earlier, self.transcript]

    @property
    def turns(self) -> int:
        """Answers of the policy so far."""
        return sum(row.turns for row in self.rows)

    @property
    def effort(self) -> AnswerEffort:
        """What it took, once it has ended."""
        return AnswerEffort(self.seconds, self.world_seconds, self.tool_calls)

    def end(self, stop: StopReason) -> "Conversation":
        """Mark it as ended; only `done` is the environment's own end, all others cut it."""
        self.stop, self.transcript.truncated = stop, stop != "done"
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReply:
    """An environment's reply to one answer, or its beginning of a conversation."""

    messages: Sequence[Message] = ()
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """`[n]` all tokens between this answer and the next (`Tokenizer.continue_chat` makes them of messages)."""
    reward: float = 0.0
    """Paid at the last token of the answer, and added to the score."""
    done: bool = False
    """The conversation ends here. `tokens` are then what the environment said last, where that is kept."""
    stop: StopReason = "done"
    """Reason of the end."""
    prompt: NDArray[np.int32] | None = None
    """`[n]` prompt of a new row, which the next answer continues: that of the beginning, or a rewritten history. None:
    the present row goes on with `tokens`."""


class TextEnvironment(Protocol):
    """The other side of conversations. A reply is a function of the conversation, so that runs can be repeated."""

    def begin(self, conversation: Conversation) -> "Future[EnvironmentReply] | None":
        """Begin a conversation whose prompt the environment gives; None, for all or for none of them: the prompt is the
        request's own."""
        ...

    def reply(self, conversation: Conversation) -> "Future[EnvironmentReply]":
        """Begin a reply to the latest answer and return at once; other conversations go on meanwhile."""
        ...

    def end(self, conversation: Conversation) -> None:
        """Take note that a conversation ended, or was dropped (`stop` is None)."""
        ...


@dataclass(slots=True)
class SlotUse:
    """Use of an engine's slots by conversations, in slot-seconds."""

    total: float = 0.0
    waiting: float = 0.0
    """Slots without an answer while conversations waited for their environment."""
    idle_s: float = 0.0
    """Seconds in which nothing was generated, because all conversations waited for their environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLimits:
    """Limits of conversations on a session."""

    context: int = 2**31 - 1
    """Most tokens of a conversation; one that has no room for another turn is truncated."""
    keep_s: float = 60.0
    """Seconds for which the session keeps what it computed of a conversation while the environment replies: a turn then
    costs its new tokens only."""
    slots: int = 2**31 - 1
    """Answers that the session writes at the same time. Where the environment begins the conversations, twice as many
    are open at most."""


NO_LIMITS: Final = ConversationLimits()


class ConversationLoop:
    """Event loop of some requests on a session; draws are keyed by request, sample and turn, never by order."""

    def __init__(
        self,
        session: GenerationSession,
        requests: Sequence[Request],
        decode: Callable[[NDArray[np.int32]], str],
        *,
        environment: TextEnvironment | None = None,
        limits: ConversationLimits = NO_LIMITS,
        clock: Clock | None = None,
    ) -> None:
        """`environment`: None ends every conversation after one answer."""
        if environment is not None:
            requests = [replace(one, keep_s=limits.keep_s) for one in requests]
        self.groups = [
            [Conversation(one, sample, TranscriptBuilder(one.prompt)) for sample in range(one.samples)]
            for one in requests
        ]
        self.slot_use = SlotUse()
        self._session, self._requests, self._decode = session, requests, decode
        self._environment, self._limits, self._clock = environment, limits, clock or SystemClock()
        self._places = {request.id: place for place, request in enumerate(requests)}
        self._open = [request.samples for request in requests]
        self._unfinished = sum(self._open)
        self._waiting = deque[Conversation]()
        self._replies: dict[Future[EnvironmentReply], Conversation] = {}

    def finished_groups(self) -> Iterator[int]:
        """Iterate over indices of requests as all their samples end. Closing the iterator cancels the rest."""
        try:
            self._begin()
            since = self._clock.monotonic_s()
            while self._unfinished:
                completion = self._session.next_completion(self._places, wake=self._has_reply)
                if completion is None and not self._replies:
                    raise RuntimeError(f"the session lost answers to {self._unfinished} samples: were they cancelled?")
                if completion is None:
                    self._wait_for_reply()
                since = self._measure(since)
                ended = [] if completion is None else [self._take(completion)]
                replied = [future for future in self._replies if future.done()]
                ended += [self._go_on(self._replies.pop(future), future.result()) for future in replied]
                yield from [
                    self._places[one.request.id] for one in ended if one is not None and self._has_finished(one)
                ]
        finally:
            if self._unfinished:
                self._cancel()

    def _begin(self) -> None:
        """Submit the requests; where the environment gives the prompts, ask it to begin as many as may be open."""
        conversations = [one for group in self.groups for one in group]
        now_s, begun = self._clock.monotonic_s(), None
        for one in conversations:
            one.asked_s = one.handed_s = now_s
        if self._environment is not None and conversations:
            begun = self._environment.begin(conversations[0])
        if begun is None:
            self._session.submit(self._requests)
            return
        self._replies[begun] = conversations[0]
        self._waiting.extend(conversations[1:])
        for _ in range(2 * self._limits.slots - 1):
            if not self._begin_next():
                return

    def _begin_next(self) -> bool:
        """Ask the environment to begin the next conversation; False if all have begun."""
        if not self._waiting:
            return False
        assert self._environment is not None
        conversation = self._waiting.popleft()
        conversation.asked_s = conversation.handed_s = self._clock.monotonic_s()
        begun = self._environment.begin(conversation)
        assert begun is not None, "the environment began others"
        self._replies[begun] = conversation
        return True

    def _wait_for_reply(self) -> None:
        began = self._clock.monotonic_s()
        wait(self._replies, return_when=FIRST_COMPLETED)
        self.slot_use.idle_s += self._clock.monotonic_s() - began

    def _has_reply(self) -> bool:
        return any(future.done() for future in self._replies)

    def _measure(self, since: float) -> float:
        """Count the slots that stood empty since a time for want of replies; returns the time now."""
        now = self._clock.monotonic_s()
        if self._environment is not None:
            written = self._unfinished - len(self._waiting) - len(self._replies)
            empty = min(len(self._replies), max(0, self._limits.slots - written))
            self.slot_use.total += (now - since) * min(self._limits.slots, self._unfinished)
            self.slot_use.waiting += (now - since) * empty
        return now

    def _take(self, completion: Completion) -> Conversation | None:
        """Append an answer; returns the conversation if it has ended."""
        conversation = self.groups[self._places[completion.request_id]][completion.sample_index]
        conversation.transcript.append_sampled(completion)
        conversation.messages.append({"role": "assistant", "content": completion.text(self._decode)})
        if conversation.transcript.truncated:
            return conversation.end("max_tokens")
        if self._environment is None:
            return conversation.end("done")
        conversation.handed_s = self._clock.monotonic_s()
        self._replies[self._environment.reply(conversation)] = conversation
        return None

    def _go_on(self, conversation: Conversation, reply: EnvironmentReply) -> Conversation | None:
        """Append a reply and ask for the next answer; returns the conversation if it has ended."""
        transcript = conversation.transcript
        conversation.world_seconds += self._clock.monotonic_s() - conversation.handed_s
        conversation.messages.extend(reply.messages)
        if conversation.turns:
            conversation.rewards.append(reply.reward)
        if reply.done:
            if len(reply.tokens) and len(transcript.tokens) + len(reply.tokens) <= self._limits.context:
                transcript.append_environment(reply.tokens)
            return conversation.end(reply.stop)
        size = len(transcript.tokens) + len(reply.tokens) if reply.prompt is None else len(reply.prompt)
        if size + conversation.request.sampling.max_tokens > self._limits.context:
            return conversation.end("context")
        if reply.prompt is None:
            transcript.append_environment(reply.tokens)
        else:
            conversation.earlier += [transcript] if transcript.turns else []
            conversation.transcript = TranscriptBuilder(reply.prompt)
        turn = replace(
            conversation.request,
            prompt=conversation.transcript.tokens,
            samples=1,
            first_sample=conversation.sample,
            turn=conversation.turns,
            after=conversation.request.id if reply.prompt is None else None,
        )
        self._session.submit([turn])
        return None

    def _has_finished(self, ended: Conversation) -> bool:
        """Count a conversation that ended; whether it was the last one of its request."""
        place = self._places[ended.request.id]
        ended.seconds = self._clock.monotonic_s() - ended.asked_s
        self._open[place] -= 1
        self._unfinished -= 1
        if self._environment is not None:
            self._environment.end(ended)
            if not self._open[place]:
                self._session.cancel([ended.request.id])  # its last turns need not be kept
        self._begin_next()
        return not self._open[place]

    def _cancel(self) -> None:
        self._session.cancel(self._places)
        if self._environment is not None:
            for one in (one for group in self.groups for one in group if one.stop is None):
                self._environment.end(one)


# ---------------------------------------------------------------------------------------------------------------- nudge


@dataclass
class NudgeEnvironment:
    """Implements `TextEnvironment`: two answers to each prompt, with a nudge between them."""

    nudge: str
    tokens: Callable[[Conversation], NDArray[np.int32]]
    """Conversation of one answer -> all tokens between it and the next one."""

    def begin(self, conversation: Conversation) -> None:
        """None: the prompts are the requests' own."""
        del conversation

    def end(self, conversation: Conversation) -> None:
        """Nothing was opened for it."""
        del conversation

    def reply(self, conversation: Conversation) -> "Future[EnvironmentReply]":
        ready: Future[EnvironmentReply] = Future()
        if conversation.transcript.turns > 1:
            ready.set_result(EnvironmentReply(done=True))
            return ready
        nudge: Message = {"role": "user", "content": self.nudge}
        ready.set_result(EnvironmentReply(messages=[nudge], tokens=self.tokens(conversation)))
        return ready
