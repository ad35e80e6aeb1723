"""Answers heard while they are being written.

Belongs here: from drawn tokens to text that only grows. Does not: how it is shown.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Completion, Request
from hone.engine.engine import Engine
from hone.engine.observe import DrawnToken

Decode: TypeAlias = Callable[[NDArray[np.int32]], str]
HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class Hearer(Protocol):
    """Who hears answers grow. What was heard is never taken back."""

    def asked(self, prompts: Sequence[str]) -> None:
        """Answer number k, of those to come, is to `prompts[k]`; a prompt may stand there more than once."""
        ...

    def heard(self, answer: int, text: str) -> None:
        """Answer number `answer` goes on with `text`."""
        ...

    def ended(self, answer: int, text: str) -> None:
        """Answer number `answer` ends with `text`."""
        ...


@dataclass(slots=True)
class Growing:
    """The text of one answer. Its last token is held back: a stop string may end within it, or it is drawn anew."""

    decode: Decode
    shown: str = ""
    tokens: list[int] = field(default_factory=list[int])
    _from: int = 0
    """Tokens from here to `_known` are what the next ones are decoded after: a character may take several."""
    _known: int = 0

    def add(self, place: int, token: int) -> str:
        """Token number `place` is `token`; returns what can be shown now."""
        self.tokens[place:] = [token]
        end = len(self.tokens) - 1
        before = self._text(self._known)
        now = self._text(end)
        if now.endswith(HALF_A_CHARACTER) or not now.startswith(before):
            return ""
        self._from, self._known = self._known, end
        piece = now[len(before) :]
        self.shown += piece
        return piece

    def rest(self, whole: str) -> str:
        """What is missing of the finished answer; all of it, on a line of its own, where its beginning changed."""
        return whole[len(self.shown) :] if whole.startswith(self.shown) else f"\n{whole}"

    def _text(self, end: int) -> str:
        return self.decode(np.array(self.tokens[self._from : end], np.int32))


@dataclass
class Aloud:
    """An engine as an actor that is heard; implements `core.generation.Generator`."""

    engine: Engine
    decode: Decode
    hearer: Hearer

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Answers are numbered in the order of `requests` and of their samples."""
        names = [(request.id, sample) for request in requests for sample in range(request.samples)]
        numbers = {name: number for number, name in enumerate(names)}
        texts = [Growing(self.decode) for _ in names]

        def observe(tokens: Sequence[DrawnToken]) -> None:
            for one in tokens:
                number = numbers[one.request, one.sample]
                if piece := texts[number].add(one.place, one.token):
                    self.hearer.heard(number, piece)

        self.engine.observer = observe
        try:
            for completion in self.engine.generate(requests):
                number = numbers[completion.request, completion.sample]
                self.hearer.ended(number, texts[number].rest(completion.text(self.decode)))
                yield completion
        finally:
            self.engine.observer = None
