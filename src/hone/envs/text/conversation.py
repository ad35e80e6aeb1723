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
    ) -> None:
        """`environment`: None ends every conversation after one answer. `context`: most tokens of a conversation; one
        that has no room for another turn is truncated."""
        self.groups = [
            [Conversation(one, sample, TranscriptBuilder(one.prompt)) for sample in range(one.samples)]
            for one in requests
        ]
        self._session, self._requests, self._decode = session, requests, decode
        self._environment, self._context = environment, context
        self._places = {request.id: place for place, request in enumerate(requests)}
        self._open = [request.samples for request in requests]
        self._replies: dict[Future[EnvironmentReply], Conversation] = {}

    def finished_groups(self) -> Iterator[int]:
        """Iterate over indices of requests as all their samples end. Closing the iterator cancels the rest."""
        self._session.submit(self._requests)
        try:
            while any(self._open):
                completion = self._session.next_completion(self._places)
                if completion is not None:
                    yield from self._take(completion)
                elif self._replies:
                    wait(self._replies, return_when=FIRST_COMPLETED)
                else:
                    raise RuntimeError(f"the session lost answers to {sum(self._open)} samples: were they cancelled?")
                for future in [one for one in self._replies if one.done()]:
                    yield from self._go_on(self._replies.pop(future), future.result())
        finally:
            if any(self._open):
                self._session.cancel(self._places)

    def _take(self, completion: Completion) -> Iterator[int]:
        conversation = self.groups[self._places[completion.request_id]][completion.sample_index]
        conversation.transcript.append_sampled(completion)
        conversation.messages.append({"role": "assistant", "content": completion.text(self._decode)})
        if self._environment is None or conversation.transcript.truncated:
            yield from self._end(conversation)
        else:
            self._replies[self._environment.reply(conversation)] = conversation

    def _go_on(self, conversation: Conversation, reply: EnvironmentReply) -> Iterator[int]:
        request, transcript = conversation.request, conversation.transcript
        conversation.messages.extend(reply.messages)
        conversation.rewards.append(reply.reward)
        room = self._context - len(transcript.tokens) - len(reply.tokens) - request.sampling.max_tokens
        if reply.done or room < 0:
            transcript.truncated = not reply.done
            yield from self._end(conversation)
            return
        transcript.append_environment(reply.tokens)
        turn = replace(
            request, prompt=transcript.tokens, samples=1, first_sample=conversation.sample, turn=transcript.turns
        )
        self._session.submit([turn])

    def _end(self, conversation: Conversation) -> Iterator[int]:
        place = self._places[conversation.request.id]
        self._open[place] -= 1
        if not self._open[place]:
            yield place
