"""What is asked of a token generator, and what it answers: the nouns between engines, text worlds and evaluation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Finish = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. The defaults sample from the policy itself."""

    max_tokens: int
    temperature: float = 1.0
    """The policy is softmax(logits / temperature), for the engine and for the trainer alike."""
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    greedy: bool = False
    stop: tuple[str, ...] = ()
    """The token that completes a stop string is the last one kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how many answers to it are wanted; its samples share the prompt's prefill."""

    id: str
    """Keys the random draws of its samples; unique among the requests of a run."""
    prompt: NDArray[np.int32]
    samples: int
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished answer of n tokens."""

    request: str
    sample: int
    tokens: NDArray[np.int32]
    """`[n]`, the end-of-sequence token included when it was drawn."""
    logp: NDArray[np.float32]
    """`[n]` nats, of the whole policy softmax(logits / temperature)."""
    sampled_logp: NDArray[np.float32]
    """`[n]` nats, of the truncated distribution (top-k, top-p) that was really drawn from."""
    version: NDArray[np.int32]
    """`[n]` version of the policy that drew each token."""
    finish: Finish


class Generator(Protocol):
    """An engine, or the client of one."""

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Completions in the order in which they finish."""
        ...
