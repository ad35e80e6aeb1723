"""The desk between agents and the engine: requests wait here until the thread that owns the engine takes them."""

import queue
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.agent_session import SessionReport
from hone.core.conversation import Message
from hone.core.generation import Completion
from hone.text.serving.completions.fields import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAnswer:
    """The answer to a request of an agent."""

    completion: Completion
    message: Message
    """The answer as the agent sees it."""
    prompt: NDArray[np.int32]
    """`[n]` all tokens before it."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AgentRequest:
    """A request for one answer, as an agent made it."""

    session: str
    messages: tuple[Message, ...]
    role: str = ""
    """Which of an agent's parts asks; empty where it has one."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that the agent offers, as OpenAI's protocol has them."""
    top_logprobs: int = 0
    answer: "Future[AgentAnswer]" = field(default_factory=lambda: Future[AgentAnswer]())
    """Cancelled once nobody waits for it any more."""


@dataclass(frozen=True, slots=True, eq=False)
class ReportedSession:
    """A report that waits to be taken."""

    report: SessionReport
    taken: "Future[None]" = field(default_factory=lambda: Future[None]())
    """Done once the report was taken; has a ApiError where its session is not under way."""


DeskEvent: TypeAlias = AgentRequest | ReportedSession


class CaptureDesk:
    """Hands requests and reports to the owner of the engine, in the order in which they came; for any thread."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[DeskEvent] = queue.SimpleQueue()
        self._closed = ""

    def put(self, event: DeskEvent) -> None:
        """Queue an event. After `close` it is refused at once."""
        if self._closed:
            refuse(event, ApiError(503, self._closed, code="training_ended"))
        else:
            self._events.put(event)

    def has_events(self) -> bool:
        return not self._events.empty()

    def take(self, wait_s: float) -> list[DeskEvent]:
        """All events that wait; waits at most `wait_s` seconds for the first one."""
        events: list[DeskEvent] = []
        try:
            events.append(self._events.get(timeout=wait_s) if wait_s > 0 else self._events.get_nowait())
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def close(self, reason: str) -> None:
        """Refuse everything that waits, and all that comes."""
        self._closed = reason
        for event in self.take(0):
            refuse(event, ApiError(503, reason, code="training_ended"))


def refuse(event: DeskEvent, error: ApiError) -> None:
    """Tell whoever waits for an event that it is refused."""
    waiting: Future[AgentAnswer] | Future[None] = event.answer if isinstance(event, AgentRequest) else event.taken
    if waiting.set_running_or_notify_cancel():
        waiting.set_exception(error)
