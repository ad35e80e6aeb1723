"""Conversations of an environment with a policy: completion -> environment -> next request, until all have ended.

Belongs here: the order of requests. Does not: prompts, scores and columns (`world`).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message, TranscriptBuilder
from hone.core.generation import Completion, GenerationSession, Request


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReply:
    """An environment's reply to one answer."""

    messages: Sequence[Message] = ()
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """`[n]` all tokens between this answer and the next (`ChatContinuation` makes them of messages)."""
    reward: float = 0.0
    """Paid at the last token of the answer, and added to the score."""
    done: bool = False
    """The conversation ends here; no token is appended."""


class TextEnvironment(Protocol):
    """The other side of conversations. A reply is a function of the conversation, so that runs can be repeated."""

    def reply(self, conversation: Conversation) -> "Future[EnvironmentReply]":
        """Begin a reply to the latest answer and return at once; other conversations go on meanwhile."""
        ...


class ConversationLoop:
    """Event loop of some requests on a session; draws are keyed by request, sample and turn, never by order."""

    def __init__(
        self,
        session: GenerationSession,
        requests: Sequence[Request],
        decode: Callable[[NDArray[np.int32]], str],
        *,
        environment: TextEnvironment | None = None,
        context: int = 2**31 - 1,
        keep_s: float = 60.0,
    ) -> None:
        """`environment`: None ends every conversation after one answer. `context`: most tokens of a conversation; one
        that has no room for another turn is truncated. `keep_s`: seconds for which the session keeps what it computed
        of a conversation while the environment replies: a turn then costs its new tokens only."""
        if environment is not None:
            requests = [replace(one, keep_s=keep_s) for one in requests]
        self.groups = [
            [Conversation(one, sample, TranscriptBuilder(one.prompt)) for sample in range(one.samples)]
            for one in requests
        ]
        self._session, self._requests, self._decode = session, requests, decode
        self._environment, self._context = environment, context
        self._places = {request.id: place for place, request in enumerate(requests)}
        self._open = [request.samples for request in requests]
        self._unfinished = sum(self._open)
        self._replies: dict[Future[EnvironmentReply], Conversation] = {}

    def finished_groups(self) -> Iterator[int]:
        """Iterate over indices of requests as all their samples end. Closing the iterator cancels the rest."""
        self._session.submit(self._requests)
        try:
            while self._unfinished:
                completion = self._session.next_completion(self._places)
                if completion is None and not self._replies:
                    raise RuntimeError(f"the session lost answers to {self._unfinished} samples: were they cancelled?")
                if completion is None:
                    wait(self._replies, return_when=FIRST_COMPLETED)
                ended = [] if completion is None else [self._take(completion)]
                replied = [future for future in self._replies if future.done()]
                ended += [self._go_on(self._replies.pop(future), future.result()) for future in replied]
                yield from [
                    self._places[one.request.id] for one in ended if one is not None and self._has_finished(one)
                ]
        finally:
            if self._unfinished:
                self._session.cancel(self._places)

    def _take(self, completion: Completion) -> Conversation | None:
        """Append an answer; returns the conversation if it has ended."""
        conversation = self.groups[self._places[completion.request_id]][completion.sample_index]
        conversation.transcript.append_sampled(completion)
        conversation.messages.append({"role": "assistant", "content": completion.text(self._decode)})
        if self._environment is None or conversation.transcript.truncated:
            return conversation
        self._replies[self._environment.reply(conversation)] = conversation
        return None

    def _go_on(self, conversation: Conversation, reply: EnvironmentReply) -> Conversation | None:
        """Append a reply and ask for the next answer; returns the conversation if it has ended."""
        request, transcript = conversation.request, conversation.transcript
        conversation.messages.extend(reply.messages)
        conversation.rewards.append(reply.reward)
        room = self._context - len(transcript.tokens) - len(reply.tokens) - request.sampling.max_tokens
        if reply.done or room < 0:
            transcript.truncated = not reply.done
            return conversation
        transcript.append_environment(reply.tokens)
        turn = replace(
            request,
            prompt=transcript.tokens,
            samples=1,
            first_sample=conversation.sample,
            turn=transcript.turns,
            after=request.id,
        )
        self._session.submit([turn])
        return None

    def _has_finished(self, ended: Conversation) -> bool:
        """Count a conversation that ended; whether it was the last one of its request."""
        place = self._places[ended.request.id]
        self._open[place] -= 1
        self._unfinished -= 1
        if not self._open[place] and self._environment is not None:
            self._session.cancel([ended.request.id])  # its last turns need not be kept
        return not self._open[place]
