"""Partial completions of a server: tokens so far, the next request, and validation of replies.

Pure bookkeeping. An answer interrupted by new weights or a server's restart is continued from its tokens so far; the
seed of each piece is a function of (run seed, round, request, sample, tokens so far), so that a repeated request gives
the same tokens on a reproducible server.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Completion, FinishReason, Request
from hone.core.random import key
from hone.engine.clients.http import ServerError
from hone.engine.clients.wire import GenerateRequest, GenerateResponse
from hone.engine.stops import StopRules, TokenizerRules

MOST_SEED = 2**31
"""Largest seed that SGLang accepts."""


@dataclass(slots=True, eq=False)
class PartialCompletion:
    """Sample `number` of `request` in `round`."""

    request: Request
    number: int
    round: int
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    logp: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    version: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def name(self) -> str:
        """Name of the answer in messages."""
        return f"request {self.request.id!r}, sample {self.number}"

    def next_request(self, seed: int, eos: tuple[int, ...]) -> GenerateRequest:
        """Request for the rest of the answer."""
        name, *turn = self.request.draw_key
        drawn = len(self.tokens)
        return GenerateRequest(
            name=self.name,
            prefix=np.concatenate([self.request.prompt, self.tokens]).astype(np.int32),
            max_tokens=self.request.sampling.max_tokens - drawn,
            sampling=self.request.sampling,
            seed=key(seed, "sample", self.round, name, self.number, drawn, *turn) % MOST_SEED,
            eos=eos,
        )

    def append_response(self, response: GenerateResponse, version: NDArray[np.int32]) -> None:
        """Append a reply that `check` accepted; `version` `[n]`."""
        self.tokens = np.concatenate([self.tokens, response.tokens])
        self.logp = np.concatenate([self.logp, response.logp])
        self.version = np.concatenate([self.version, version])

    def completion(self, finish: FinishReason, behind: int) -> Completion:
        """The completion of a finished answer."""
        logp = np.minimum(self.logp, 0.0)
        return Completion(
            request_id=self.request.id,
            sample_index=self.number,
            tokens=self.tokens,
            logp=logp,
            sampled_logp=np.zeros_like(logp) if self.request.sampling.greedy else logp,
            version=self.version,
            finish_reason=finish,
            trailing_characters=behind,
            turn=self.request.turn,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A running request."""

    partial: PartialCompletion
    request: GenerateRequest
    version: int
    """Version at the time of the request."""


class ResponseRules:
    """Stopping conditions by hone's own rules; the server's are only compared."""

    def __init__(self, text: TokenizerRules) -> None:
        self.text = text
        self._eos = frozenset(text.eos)
        self._rules = StopRules(text)

    def finish_of(self, writing: PartialCompletion) -> tuple[FinishReason, int] | None:
        """Reason for the end, and the characters after its stop string; None while the answer is unfinished."""
        if not len(writing.tokens):
            return None
        sampling = writing.request.sampling
        if int(writing.tokens[-1]) in self._eos:
            return "eos", 0
        if sampling.stop:
            behind = self._rules.characters_after_stop(sampling.stop, lambda _, count: writing.tokens[-count:], 0)
            if behind is not None:
                return "stop", behind
        return ("length", 0) if len(writing.tokens) >= sampling.max_tokens else None

    def check_response(self, ask: GenerateRequest, response: GenerateResponse, place: str) -> None:
        """Raise ServerError for an invalid reply, naming the request and the first fault."""
        count, most, vocab = len(response.tokens), ask.max_tokens, self.text.vocab
        message = f"{place}: {ask.name}"
        if len(response.logp) != count:
            raise ServerError(f"{message}: {count} tokens came with {len(response.logp)} log-probabilities")
        if count > most:
            raise ServerError(f"{message}: {count} tokens came, at most {most} were requested")
        if not count and response.finish_reason != "abort":
            raise ServerError(f"{message}: no token came, and the server gives the reason {response.finish_reason!r}")
        if count and int(response.tokens.max()) >= vocab:
            raise ServerError(
                f"{message}: it sampled token {int(response.tokens.max())}, and the tokenizer has 0 to {vocab - 1}; "
                "the served model has rows without a token, or is another model: give both the same vocabulary"
            )
        ends = [token in self._eos for token in response.tokens[:-1].tolist()]
        if any(ends):
            raise ServerError(
                f"{message}: it continued after token {int(response.tokens[ends.index(True)])}, which ends an answer"
            )
