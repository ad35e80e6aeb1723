"""One answer on its way through a server: what was drawn so far, what to ask next, and whether a reply can be right.

Pure bookkeeping. An answer that is broken off, by a new version of the weights or by a server that went away, is asked
for again from where it stands; the seed of each piece is a function of (run seed, round, request, sample, tokens so
far), so that the same piece asked twice is drawn alike by a server that keeps its promises.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Completion, Finish, Request
from hone.core.random import key
from hone.engine.clients.http import ServerError
from hone.engine.clients.wire import Ask, Told
from hone.engine.stops import StopRules, TextRules

MOST_SEED = 2**31
"""SGLang takes no larger one."""


@dataclass(slots=True, eq=False)
class Writing:
    """Sample `number` of `request` in `round`."""

    request: Request
    number: int
    round: int
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    logp: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    version: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def name(self) -> str:
        return f"request {self.request.id!r}, sample {self.number}"

    def ask(self, seed: int, eos: tuple[int, ...]) -> Ask:
        """What is still to be written."""
        drawn = len(self.tokens)
        return Ask(
            name=self.name,
            text=np.concatenate([self.request.prompt, self.tokens]).astype(np.int32),
            max_tokens=self.request.sampling.max_tokens - drawn,
            sampling=self.request.sampling,
            seed=key(seed, "sample", self.round, self.request.id, self.number, drawn) % MOST_SEED,
            eos=eos,
        )

    def add(self, told: Told, version: NDArray[np.int32]) -> None:
        """Take up a reply that `check` found nothing wrong with; `version` `[n]`."""
        self.tokens = np.concatenate([self.tokens, told.tokens])
        self.logp = np.concatenate([self.logp, told.logp])
        self.version = np.concatenate([self.version, version])

    def completion(self, finish: Finish, behind: int) -> Completion:
        logp = np.minimum(self.logp, 0.0)
        return Completion(
            request=self.request.id,
            sample=self.number,
            tokens=self.tokens,
            logp=logp,
            sampled_logp=np.zeros_like(logp) if self.request.sampling.greedy else logp,
            version=self.version,
            finish=finish,
            behind=behind,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """A piece that was asked for and has not come."""

    writing: Writing
    ask: Ask
    version: int
    """Published when it was asked for."""


class Ends:
    """When an answer ended, by hone's own rules; what a server says about it is only compared."""

    def __init__(self, text: TextRules) -> None:
        self.text = text
        self._eos = frozenset(text.eos)
        self._rules = StopRules(text)

    def of(self, writing: Writing) -> tuple[Finish, int] | None:
        """How it ended, and the characters behind its stop string; None while it has not."""
        if not len(writing.tokens):
            return None
        sampling = writing.request.sampling
        if int(writing.tokens[-1]) in self._eos:
            return "eos", 0
        if sampling.stop:
            behind = self._rules.behind(sampling.stop, lambda _, count: writing.tokens[-count:], 0)
            if behind is not None:
                return "stop", behind
        return ("length", 0) if len(writing.tokens) >= sampling.max_tokens else None

    def check(self, ask: Ask, told: Told, place: str) -> None:
        """Raise ServerError, naming the request and the first thing about a reply that cannot be right."""
        count, most, vocab = len(told.tokens), ask.max_tokens, self.text.vocab
        said = f"{place}: {ask.name}"
        if len(told.logp) != count:
            raise ServerError(f"{said}: {count} tokens came with {len(told.logp)} log-probabilities")
        if count > most:
            raise ServerError(f"{said}: {count} tokens came where at most {most} were asked for")
        if not count and told.ended != "abort":
            raise ServerError(f"{said}: no token came, and the server says it ended by {told.ended!r}")
        if count and int(told.tokens.max()) >= vocab:
            raise ServerError(
                f"{said}: it drew token {int(told.tokens.max())}, and the tokenizer knows 0 to {vocab - 1}; the "
                "served model has rows of no token, or is another model: give both the same vocabulary"
            )
        ends = [token in self._eos for token in told.tokens[:-1].tolist()]
        if any(ends):
            raise ServerError(
                f"{said}: it went on after token {int(told.tokens[ends.index(True)])}, which ends an answer"
            )
