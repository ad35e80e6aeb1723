"""The protocol between client and server, independent of the product, with the consequences of missing features."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import SamplingParams, ScoreRequest
from hone.engine.clients.http import HttpClient, Json, ServerError

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
MOST_SEED = 2**31
"""Largest seed that SGLang accepts."""


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
