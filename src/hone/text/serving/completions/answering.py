"""One request from its first to its last token: tickets of the engine, deadlines, limits and streams."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from hone.core.clock import Clock
from hone.core.generation import Completion, ScoreResult
from hone.text.serving.completions.api_errors import ApiError, error_of
from hone.text.serving.completions.asked import AskedAnswers
from hone.text.serving.completions.counters import ServingCounters
from hone.text.serving.completions.replies import DONE, PromptResults, ReplyWriter, StreamedChoice, error_event
from hone.text.serving.completions.service import (
    AnswerEvent,
    AnswerQueue,
    DrawnTokens,
    EngineFailure,
    EngineService,
    Ticket,
)


@dataclass(slots=True, eq=False, kw_only=True)
class _AnswersInProgress:
    """One client's request, as far as it is answered."""

    results: list[PromptResults]
    queue: AnswerQueue = field(default_factory=lambda: asyncio.Queue[tuple[Ticket, AnswerEvent]]())
    tickets: list[Ticket] = field(default_factory=list[Ticket])
    left: int = 0
    """Completions and scores that are still to come."""

    def take(self, ticket: Ticket, event: AnswerEvent) -> None:
        """Take up a result. Raises ApiError for a failure."""
        result = self.results[ticket.place]
        if isinstance(event, EngineFailure):
            raise error_of(event.error)
        if isinstance(event, Completion):
            result.completions[event.sample_index] = event
            self.left -= 1
        elif isinstance(event, ScoreResult):
            result.scored = event
            self.left -= 1


@dataclass(slots=True, eq=False, kw_only=True)
class AnswerDesk:
    """Runs requests on a service, under a deadline and a limit on answers in progress."""

    service: EngineService
    counters: ServingCounters
    clock: Clock
    deadline_s: float
    most_samples: int
    """Largest number of answers in progress; what exceeds it is refused with 429."""
    samples: int = 0
    """Answers in progress."""

    async def whole(self, asked: AskedAnswers) -> list[PromptResults]:
        """The results of all prompts. Raises ApiError; cancelling the task frees what the engine holds."""
        progress = _AnswersInProgress(results=[PromptResults(one) for one in asked.prompts])
        async with aclosing(self._batches(asked, progress)) as batches:
            async for _ in batches:
                pass
        return progress.results

    async def stream(
        self, asked: AskedAnswers, writer: ReplyWriter, answered: Callable[[Sequence[PromptResults]], None]
    ) -> AsyncGenerator[str]:
        """The events of a stream; `answered` is called with all results before the last one.

        A fault before the first event is an ApiError, a later one an event. Closing it frees what the engine holds.
        """
        began_s, head = self.clock.monotonic_s(), writer.chunk_head(self.service.engine.version)
        progress = _AnswersInProgress(results=[PromptResults(one) for one in asked.prompts])
        choices = [StreamedChoice(writer, number) for number in range(asked.samples * len(asked.prompts))]
        batches = self._batches(asked, progress)
        first = True
        try:
            async for batch in batches:
                pieces = _pieces(batch, choices, asked.samples)
                if first:
                    self.counters.first_token.add(self.clock.monotonic_s() - began_s)
                    pieces = [*(piece for one in choices if (piece := one.begin()) is not None), *pieces]
                    first = False
                if pieces:  # clients read the first choice of an event only
                    yield "".join(writer.chunk(head, [piece]) for piece in pieces)
        except ApiError as error:
            if first:
                raise
            yield error_event(error.body())
            return
        finally:
            await batches.aclose()
        answered(progress.results)
        if asked.usage:
            yield writer.chunk(head, [], usage=writer.usage(progress.results))
        yield DONE

    async def _batches(
        self, asked: AskedAnswers, progress: _AnswersInProgress
    ) -> AsyncGenerator[list[tuple[Ticket, AnswerEvent]]]:
        """Results of a request, taken up by `progress`, in batches of all that have come. Raises ApiError."""
        until = asyncio.get_running_loop().time() + self.deadline_s
        with self._answering(asked, progress):
            while progress.left:
                batch = [await self._next(progress, until)]
                while not progress.queue.empty():
                    batch.append(progress.queue.get_nowait())
                for ticket, event in batch:
                    progress.take(ticket, event)
                yield batch
        self._count(progress.results)

    async def _next(self, progress: _AnswersInProgress, until: float) -> tuple[Ticket, AnswerEvent]:
        try:
            async with asyncio.timeout_at(until):
                return await progress.queue.get()
        except TimeoutError:
            message = f"not answered within {self.deadline_s:g} s, the deadline of this server; ask for fewer tokens"
            raise ApiError(408, message, code="deadline") from None

    @contextmanager
    def _answering(self, asked: AskedAnswers, progress: _AnswersInProgress) -> Iterator[None]:
        """A request in progress; what has not ended is cancelled at the end."""
        queue, loop = progress.queue, asyncio.get_running_loop()
        for place, one in enumerate(asked.prompts):
            for work in filter(None, (one.request, one.scored)):
                streamed = asked.stream and work is one.request
                progress.tickets.append(Ticket(work=work, queue=queue, loop=loop, place=place, streamed=streamed))
        progress.left = wanted = sum(ticket.samples for ticket in progress.tickets)
        self._admit(wanted)
        self.samples += wanted
        try:
            for ticket in progress.tickets:
                self.service.submit(ticket)
            yield
        finally:
            self.samples -= wanted
            if progress.left:
                for ticket in progress.tickets:
                    self.service.cancel(ticket)

    def _admit(self, wanted: int) -> None:
        if self.samples and self.samples + wanted > self.most_samples:
            wait_s = max(1, round(self.counters.request.mean_s))
            raise ApiError(
                429,
                f"{self.samples} answers are in progress, of {self.most_samples} at most; retry in {wait_s} s",
                code="overloaded",
                headers={"Retry-After": str(wait_s)},
            )

    def _count(self, results: Sequence[PromptResults]) -> None:
        drawn = sum(len(one.tokens) for result in results for one in result.completions.values())
        self.counters.count_tokens(prompt=sum(len(result.asked.tokens) for result in results), drawn=drawn)


def _pieces(
    batch: Sequence[tuple[Ticket, AnswerEvent]], choices: Sequence[StreamedChoice], samples: int
) -> list[dict[str, Any]]:
    """Choices of the chunk that a batch makes; `samples` choices belong to each prompt."""
    drawn: dict[int, StreamedChoice] = {}
    ended: list[dict[str, Any]] = []
    for ticket, event in batch:
        first = ticket.place * samples
        for one in event.tokens if isinstance(event, DrawnTokens) else ():
            drawn[first + one.sample_index] = choice = choices[first + one.sample_index]
            choice.add(one)
        if isinstance(event, Completion):
            drawn.pop(first + event.sample_index, None)
            ended += choices[first + event.sample_index].finish(event)
    return [*(piece for one in drawn.values() if (piece := one.piece()) is not None), *ended]
