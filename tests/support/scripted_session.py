"""A session over a small table policy, in numpy: real sampling, random order of finishing, no network.

Texts are words of one character each. Draws are keyed as an engine keys them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Completion, Request
from hone.core.random import permutation, uniforms

WORDS = "ab;$"
"""Tokens 0 to 3: two letters, the end of a step, the end of the answer."""
END = WORDS.index("$")


def decode(tokens: Sequence[int] | NDArray[np.int32]) -> str:
    """Text of tokens, without the end of the answer."""
    return "".join(WORDS[token] for token in np.asarray(tokens).tolist() if token != END)


@dataclass
class ScriptedSession:
    """Implements `GenerationSession`; the next token depends on the last one, by the rows of `table` `[5, 4]` (the last
    row: after the prompt)."""

    table: NDArray[np.float64]
    seed: int = 0
    order: int = 0
    """Completions are handed out in a random order, another one for each number."""
    queue: list[tuple[Request, int, int]] = field(default_factory=list[tuple[Request, int, int]])
    calls: list[list[Request]] = field(default_factory=list[list[Request]])
    resets: int = 0

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        names = [request.id for request in requests]
        assert len(set(names)) == len(names), "an engine takes an id once in a call"
        self.calls.append(list(requests))
        waiting = {(one.id, sample) for one, sample, _ in self.queue}
        for request in requests:
            for sample in range(request.first_sample, request.first_sample + request.samples):
                assert (request.id, sample) not in waiting
                self.queue.append((request, sample, round))
        order = permutation(self.order, "order", len(self.calls), count=len(self.queue)).tolist()
        self.queue = [self.queue[place] for place in order]

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        for place in reversed(range(len(self.queue))):
            if request_ids is None or self.queue[place][0].id in request_ids:
                return self._draw(*self.queue.pop(place))
        return None

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        self.queue = [one for one in self.queue if request_ids is not None and one[0].id not in request_ids]

    def reset_stats(self) -> None:
        self.resets += 1

    def _draw(self, request: Request, sample: int, number: int) -> Completion:
        key = (request.id, "turn", request.turn) if request.turn else (request.id,)
        draws = uniforms(self.seed, "sample", number, *key, sample, count=request.sampling.max_tokens)
        last = int(request.prompt[-1]) if request.prompt[-1] < len(WORDS) else len(WORDS)
        tokens: list[int] = []
        logp: list[float] = []
        reason = "length"
        for draw in draws.tolist():
            chances = self.table[last]
            last = min(int(np.searchsorted(np.cumsum(chances), draw, side="right")), len(WORDS) - 1)
            tokens.append(last)
            logp.append(float(np.log(chances[last])))
            if last == END or decode(tokens).endswith(request.sampling.stop or ("?",)):
                reason = "eos" if last == END else "stop"
                break
        return Completion(
            request_id=request.id,
            sample_index=sample,
            tokens=np.array(tokens, np.int32),
            logp=np.array(logp, np.float32),
            sampled_logp=np.array(logp, np.float32),
            version=np.zeros(len(tokens), np.int32),
            finish_reason=reason,  # pyright: ignore[reportArgumentType]
            turn=request.turn,
        )
