"""Inputs and outputs of a runner's pass over the model: arrays that compiled code reads in place.

A pass mixes prompts and single tokens: T tokens of B sequences. Within a layer the keys and values of all T tokens are
written before attention, so a prompt's tokens see each other causally. A token's result depends only on its own
sequence (tokens up to its position) and the weights: never on T, B, page numbers, or the split of a prompt into passes.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Routing

DRAW = -1
"""Value of `SamplerInput.given` that requests sampling. Any other number is a token to score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerInput:
    """Settings of R next tokens. Several may use the same hidden state: the samples of a group."""

    token_index: NDArray[np.int32]
    """`[R]` which of the pass's T tokens comes before."""
    forced_token: NDArray[np.int32]
    """`[R]` DRAW, or the token to be scored; both use the same arithmetic."""
    uniform: NDArray[np.float64]
    """`[R]` in [0, 1); the draw is the first token id at which the cumulative probability exceeds it."""
    temperature: NDArray[np.float32]
    """`[R]`, above 0: the policy is softmax(logits / temperature)."""
    top_k: NDArray[np.int32]
    """`[R]` 0: off. Ties go to the smaller id, everywhere."""
    top_p: NDArray[np.float32]
    """`[R]` top-p, 1: off. After top-k: the most likely tokens until their probabilities reach it."""
    min_p: NDArray[np.float32]
    """`[R]` min-p, 0: off. After top-p: tokens at least this share of the most likely one's probability."""
    greedy: NDArray[np.bool_]
    """`[R]` the likeliest token that is allowed instead of a draw; its `sampled_logp` is 0."""
    top_logprobs: NDArray[np.int32] | None = None
    """`[R]` how many of the likeliest tokens are reported; None: none in this pass."""
    allowed: NDArray[np.uint8] | None = None
    """`[R, ceil(vocab / 8)]` bits, little-endian: tokens that a grammar allows; all bits are set where there is none.
    None: no row of this pass has a grammar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """T tokens of a pass. Tokens of one sequence are in the order of their positions."""

    tokens: NDArray[np.int32]
    """`[T]`."""
    positions: NDArray[np.int32]
    """`[T]` each in its own sequence; everything before it is in the pages, or earlier in this pass."""
    sequence: NDArray[np.int32]
    """`[T]` row of `pages`."""
    pages: NDArray[np.int32]
    """`[B, most]` the sequence's pages in order: position p is in page `pages[b, p // page_tokens]`."""
    draws: SamplerInput
    adapters: tuple[str, ...] | None = None
    """`[B]` name of each sequence's adapter, empty for none; None: no sequence of this pass has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """The answers to `ForwardBatch.draws`. NaN in `logp` where the logits were not finite."""

    token: NDArray[np.int32]
    """`[R]` drawn or given."""
    logp: NDArray[np.float32]
    """`[R]` nats, of the whole policy softmax(logits / temperature)."""
    sampled_logp: NDArray[np.float32]
    """`[R]` nats, after grammar, top-k, top-p and min-p; -inf for a given token that they removed."""
    sampling_mask_bits: NDArray[np.uint8] | None
    """`[R, ceil(vocab / 8)]` bits, little-endian: the tokens that were left; None where no draw truncates."""
    routing: Routing | None = None
    """`[T, L, k]` experts that the pass's T tokens went to; None for a dense model."""
    top_tokens: NDArray[np.int32] | None = None
    """`[R, K]` the likeliest tokens, K the largest of `SamplerInput.top_logprobs`; a row that asked for fewer, or for
    more than there are, has undefined ones behind them. Ties from the smaller id. None where no row asked."""
    top_logp: NDArray[np.float32] | None = None
    """`[R, K]` nats, of the whole policy; of a drawn token it equals `logp` to the bit."""


class ModelRunner(Protocol):
    """Runs a model over a paged KV cache. It owns the pages' memory, and not their allocation."""

    @property
    def name(self) -> str:
        """Readable name: `native float32 (avx512)`, `torch bfloat16 (cuda)`."""
        ...

    @property
    def exact(self) -> bool:
        """True if results are bitwise independent of batch mates; False where that is not known."""
        ...

    @property
    def page_tokens(self) -> int: ...

    def reserve(self, pages: int) -> None:
        """Allocate this many pages. Old contents are lost."""
        ...

    def publish(self) -> None:
        """Read the model's current weights."""
        ...

    def release(self) -> None:
        """Free pages, and weights of its own that are not read elsewhere; `publish` and `reserve` come before the next
        pass."""
        ...

    def run(self, work: ForwardBatch) -> SamplerOutput: ...

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy pages `[k]` over others `[k]`: a prompt's unfinished last page for each sample."""
        ...
