"""What a runner is asked in one pass over the model, and what it answers: arrays that compiled code reads in place.

A pass mixes prompts and single tokens: T tokens of B sequences. Within a layer the keys and values of all T tokens are
written before any of them attends, so a prompt's tokens see each other causally. A token's result depends on its own
sequence (tokens up to its position) and the weights alone: never on T, B, page numbers, or how a prompt was cut into
passes.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

DRAW = -1
"""In `SamplerInput.given`: draw a token. Any other number is a token to be scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerInput:
    """R next tokens that are wanted. Several may ask the same hidden state: the samples of a group."""

    token_index: NDArray[np.int32]
    """`[R]` which of the pass's T tokens comes before."""
    forced_token: NDArray[np.int32]
    """`[R]` DRAW, or the token whose log-probability is wanted; both take the same arithmetic."""
    uniform: NDArray[np.float64]
    """`[R]` in [0, 1); the draw is the first token id at which the cumulative probability exceeds it."""
    temperature: NDArray[np.float32]
    """`[R]`, above 0: the policy is softmax(logits / temperature)."""
    top_k: NDArray[np.int32]
    """`[R]` 0: off. Ties go to the smaller id, everywhere."""
    top_p: NDArray[np.float32]
    """`[R]` 1: off. Of what top-k left: the likeliest tokens until their probabilities reach it."""
    min_p: NDArray[np.float32]
    """`[R]` 0: off. Of what is left: tokens at least this share of the likeliest one's probability."""
    greedy: NDArray[np.bool_]
    """`[R]` the likeliest token instead of a draw; its `sampled_logp` is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """T tokens to be run. Tokens of one sequence stand in the order of their positions."""

    tokens: NDArray[np.int32]
    """`[T]`."""
    positions: NDArray[np.int32]
    """`[T]` each in its own sequence; everything before it is in the pages, or earlier in this pass."""
    sequence: NDArray[np.int32]
    """`[T]` row of `pages`."""
    pages: NDArray[np.int32]
    """`[B, most]` the sequence's pages in order: position p lies in page `pages[b, p // page_tokens]`."""
    draws: SamplerInput


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """The answers to `ForwardBatch.draws`. NaN in `logp` where the logits were not finite."""

    token: NDArray[np.int32]
    """`[R]` drawn or given."""
    logp: NDArray[np.float32]
    """`[R]` nats, of the whole policy softmax(logits / temperature)."""
    sampled_logp: NDArray[np.float32]
    """`[R]` nats, of what top-k, top-p and min-p left; -inf for a given token that they cut off."""
    sampling_mask_bits: NDArray[np.uint8] | None
    """`[R, ceil(vocab / 8)]` bits, little-endian: the tokens that were left; None where no draw truncates."""


class ModelRunner(Protocol):
    """Runs a model over paged keys and values. It owns the pages' memory and nothing of the bookkeeping."""

    @property
    def name(self) -> str:
        """For people: `native float32 (avx512)`, `torch bfloat16 (cuda)`."""
        ...

    @property
    def exact(self) -> bool:
        """Whether results are bitwise independent of batch mates; False where that is not known."""
        ...

    @property
    def page_tokens(self) -> int: ...

    def reserve(self, pages: int) -> None:
        """Make room for this many pages. What was in them is lost."""
        ...

    def publish(self) -> None:
        """Take up the model's weights as they are now."""
        ...

    def run(self, work: ForwardBatch) -> SamplerOutput: ...

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy pages `[k]` over others `[k]`: a prompt's unfinished last page for each sample."""
        ...
