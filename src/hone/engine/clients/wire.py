"""The protocol between client and server, independent of the product, with the consequences of missing features."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Completion, FinishReason, Request, SamplingParams, ScoreRequest
from hone.core.random import key
from hone.engine.clients.http import HttpClient, Json, ServerError
from hone.engine.session import StopRules, TokenizerRules

ServerFeature = Literal["tokens", "temperature", "score", "load", "labels", "spans", "abort", "freeze"]
FEATURE_DESCRIPTIONS: Final[Mapping[ServerFeature, tuple[str, str]]] = {
    "tokens": (
        "accepts and returns token ids with log-probabilities",
        "no policy can be trained on its answers: text would have to be tokenised again",
    ),
    "temperature": (
        "reports log-probabilities at the sampling temperature",
        "only temperature 1 is supported",
    ),
    "score": ("scores given tokens", "no canary: its weights are not compared with the trainer's"),
    "load": ("loads weights from a folder", "it can generate, but not for training"),
    "labels": (
        "labels each answer with its weights",
        "only the canary detects a server that restarts between two steps",
    ),
    "spans": ("labels each token with its weights", 'on_publish = "keep" is not supported'),
    "abort": ("aborts answers and returns their tokens so far", "unfinished answers start again at a publication"),
    "freeze": ("pauses answers and resumes them later", "`pause` waits for unfinished answers"),
}
"""(feature, consequence of its absence)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    """Features of a server; requested once."""

    server: str
    """Name and version of the server."""
    supported: frozenset[ServerFeature]
    context: int | None
    """Largest number of tokens of a prompt and its answer; None if unknown."""

    def missing(self, wanted: Iterable[ServerFeature]) -> list[str]:
        """Describe each missing feature of `wanted` in a sentence."""
        return [
            f"{self.server} lacks {name!r} ({FEATURE_DESCRIPTIONS[name][0]}): {FEATURE_DESCRIPTIONS[name][1]}"
            for name in wanted
            if name not in self.supported
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Request for one answer, or for the rest of one."""

    name: str
    """Name in messages."""
    prefix: NDArray[np.int32]
    """`[P]` the prompt, and the tokens of the answer so far."""
    max_tokens: int
    """Largest number of tokens of the rest."""
    sampling: SamplingParams
    seed: int
    """Seed in [0, 2^31). Every request has one: vLLM ignores seeds if another request of the batch has none."""
    eos: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateResponse:
    """A server's reply to a `GenerateRequest`."""

    tokens: NDArray[np.int32]
    """`[n]`."""
    logp: NDArray[np.float32]
    """`[n]` nats, of softmax(logits / temperature)."""
    weight_labels: tuple[tuple[int, str], ...] | None
    """(first token, label of the weights from that token on); None where unknown."""
    finish_reason: str
    """Reason as the server gives it: `stop`, `length`, `abort`."""


class ServerProtocol(Protocol):
    """One server's protocol. Every call blocks until the server has answered, and raises ServerError."""

    @property
    def link(self) -> HttpClient: ...

    @property
    def refusal(self) -> str:
        """Return the server's reason for missing support of token ids; empty if they are supported."""
        ...

    def probe(self) -> ServerFeatures:
        """Request the server's features; changes nothing there."""
        ...

    def write(self, ask: GenerateRequest) -> GenerateResponse: ...

    def score(self, text: ScoreRequest) -> NDArray[np.float32]:
        """Compute log-probabilities `[n]`, nats, at temperature 1."""
        ...

    def load(self, folder: Path, label: str) -> None:
        """Load the weights of a Hugging Face folder under the name `label`, and drop the caches of older ones."""
        ...

    def abort(self) -> None:
        """Abort every answer, return the partial ones, and start none until `resume`."""
        ...

    def freeze(self) -> None:
        """Keep every answer as it is until `resume`."""
        ...

    def resume(self) -> None: ...

    def alive(self) -> bool: ...


def list_field(reply: Json, key: str, place: str) -> Sequence[object]:
    """Return a list field of a reply. Raises ServerError that shows the value."""
    value = reply.get(key)
    if not isinstance(value, list):
        raise ServerError(f"{place}: the reply's {key!r} is {_shown(value)}; expected a list")
    return value


def json_object(value: object, what: str, place: str) -> Json:
    """Return a JSON object within a reply. Raises ServerError."""
    if not isinstance(value, dict):
        raise ServerError(f"{place}: {what} is {_shown(value)}; expected an object")
    return value


def token_id_array(values: Sequence[object], what: str, place: str) -> NDArray[np.int32]:
    """Convert token ids of a reply. Raises ServerError."""
    wrong = [value for value in values if type(value) is not int or not 0 <= value < 2**31]
    if wrong:
        raise ServerError(f"{place}: {what} hold {_shown(wrong[0])}, which is not a token id")
    return np.array(values, np.int32).reshape(len(values))


def logp_array(values: Sequence[object], what: str, place: str) -> NDArray[np.float32]:
    """Convert log-probabilities of a reply; none may be above 0 except for rounding. Raises ServerError."""
    kinds = [value for value in values if isinstance(value, bool) or not isinstance(value, int | float)]
    if kinds:
        raise ServerError(f"{place}: {what} hold {_shown(kinds[0])}, which is not a number")
    result = np.array(values, np.float32).reshape(len(values))
    bad = np.flatnonzero(~(result <= 1e-4))  # NaN as well
    if len(bad):
        raise ServerError(f"{place}: {what} hold {result[bad[0]]} at token {bad[0]}; a log-probability is at most 0")
    return result


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# -------------------------------------------------------------------------------------------------- partial completions


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
