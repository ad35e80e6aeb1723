"""Streaming of answers during generation.

Belongs here: from sampled tokens to text that only grows. Does not: its display.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Completion, Request
from hone.engine.engine import DrawnToken, EmbeddedEngine

Decode: TypeAlias = Callable[[NDArray[np.int32]], str]
INCOMPLETE_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class StreamListener(Protocol):
    """Receiver of streamed text. Text is never retracted."""

    def on_prompts(self, prompts: Sequence[str]) -> None:
        """Begin: answer k belongs to `prompts[k]`; prompts may repeat."""
        ...

    def on_text(self, answer: int, text: str) -> None:
        """Receive more text of answer number `answer`."""
        ...

    def on_end(self, answer: int, text: str) -> None:
        """Receive the last text of answer number `answer`."""
        ...


@dataclass(slots=True)
class IncrementalDetokenizer:
    """Text of one answer. Its last token is held back: a stop string may end in it, or it may be sampled again."""

    decode: Decode
    emitted: str = ""
    tokens: list[int] = field(default_factory=list[int])
    _prefix_start: int = 0
    """Start of the context for decoding the next tokens, up to `_known`: a character may consist of several."""
    _prefix_end: int = 0

    def add(self, place: int, token: int) -> str:
        """Set token number `place` to `token`; returns the new text."""
        self.tokens[place:] = [token]
        end = len(self.tokens) - 1
        before = self._text(self._prefix_end)
        now = self._text(end)
        if now.endswith(INCOMPLETE_CHARACTER) or not now.startswith(before):
            return ""
        self._prefix_start, self._prefix_end = self._prefix_end, end
        piece = now[len(before) :]
        self.emitted += piece
        return piece

    def finish(self, whole: str) -> str:
        """Rest of the finished answer; the whole answer on a new line if its beginning changed."""
        return whole[len(self.emitted) :] if whole.startswith(self.emitted) else f"\n{whole}"

    def _text(self, end: int) -> str:
        return self.decode(np.array(self.tokens[self._prefix_start : end], np.int32))


@dataclass
class StreamingEngine:
    """Engine with streaming to a listener; implements `core.generation.GenerationSession`."""

    engine: EmbeddedEngine
    decode: Decode
    listener: StreamListener
    _texts: dict[tuple[str, int], tuple[int, IncrementalDetokenizer]] = field(
        default_factory=dict[tuple[str, int], tuple[int, IncrementalDetokenizer]]
    )

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        """Queue requests, and report their tokens from now on."""
        self.engine.submit(requests, round=round)
        for request in requests:
            for sample in range(request.first_sample, request.first_sample + request.samples):
                number = self._texts.get((request.id, sample), (len(self._texts), None))[0]
                self._texts[request.id, sample] = number, IncrementalDetokenizer(self.decode)
        self.engine.observer = self._observe

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        """The engine's next completion, reported as ended."""
        try:
            completion = self.engine.next_completion(request_ids, wake=wake)
        finally:
            if not self.engine.has_requests():
                self.engine.observer = None
        if completion is None:
            return None
        number, text = self._texts[completion.request_id, completion.sample_index]
        self.listener.on_end(number, text.finish(completion.text(self.decode)))
        return completion

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        """Drop these requests, and report nothing more of them."""
        self.engine.cancel(request_ids)
        if not self.engine.has_requests():
            self.engine.observer = None

    def reset_stats(self) -> None:
        self.engine.reset_stats()

    def _observe(self, tokens: Sequence[DrawnToken]) -> None:
        for one in tokens:
            number, text = self._texts[one.request_id, one.sample_index]
            if piece := text.add(one.position, one.token):
                self.listener.on_text(number, piece)
