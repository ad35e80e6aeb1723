"""What is asked of the engine and what comes back.

Belongs here: requests, their faults, completions. All faults are found before any token is drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ConfigError, DataError, Faults

RequestId: TypeAlias = int | str
Finish: TypeAlias = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Order: temperature, then `top_k`, then `top_p` of what is left.

    Raises ConfigError with every fault at once.
    """

    max_tokens: int
    """Most tokens of a completion, EOS included."""
    temperature: float = 1.0
    """Logits are divided by it; > 0. Log-probabilities are of the policy at this temperature."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Keep the fewest likeliest tokens whose probability reaches p (Holtzman et al., 2020); 1: all."""
    greedy: bool = False
    """Take the likeliest token; `temperature` still scales the recorded log-probability."""
    stop: tuple[str, ...] = ()
    """A completion ends with the token that completes one of these texts. The tokens are kept whole: text behind the
    stop string, if its last token carries some, stays in the tokens and is for the caller to cut from the text."""

    def __post_init__(self) -> None:
        faults = Faults(ConfigError)
        if self.max_tokens < 1:
            faults.add(f"sampling.max_tokens must be at least 1, got {self.max_tokens}")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            hint = "; for the likeliest token set greedy = true" if self.temperature == 0 else ""
            faults.add(f"sampling.temperature must be a finite number > 0, got {self.temperature}{hint}")
        if self.top_k < 0:
            faults.add(f"sampling.top_k must be 0 (off) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            faults.add(f"sampling.top_p must be in (0, 1], got {self.top_p}")
        if "" in self.stop:
            faults.add("sampling.stop contains an empty string, which would end every completion at once")
        faults.raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`samples` completions of one prompt; they share its prefill."""

    id: RequestId
    """The prompt's id: with the run's seed, the round and the sample number it fixes every draw."""
    prompt: NDArray[np.int32]
    """`[P]` token ids, P >= 1."""
    samples: int = 1
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What one sample of a request became."""

    request: RequestId
    sample: int
    tokens: NDArray[np.int32]
    """`[n]`, EOS included when it was drawn."""
    logp: NDArray[np.float32]
    """`[n]` log-probability of each token under the untruncated policy `softmax(logits / temperature)`, nats."""
    sampled_logp: NDArray[np.float32]
    """`[n]` the same under the distribution that was drawn from: after top-k and top-p; 0 when greedy."""
    version: NDArray[np.int32]
    """`[n]` the policy version that drew each token."""
    finish: Finish


def check_requests(requests: Sequence[Request], *, context: int, vocab: int) -> None:
    """Raise DataError naming every request that cannot be run: id, what is wrong, what to change.

    `context` and `vocab`: most positions of a sequence, and token ids that exist.
    """
    faults = Faults(DataError)
    seen: set[RequestId] = set()
    for request in requests:
        name, prompt = f"request {request.id!r}", request.prompt
        if request.id in seen:
            faults.add(f"{name}: the id is given twice in one call; its samples would be drawn alike")
        seen.add(request.id)
        if request.samples < 1:
            faults.add(f"{name}: samples must be at least 1, got {request.samples}")
        if not len(prompt):
            faults.add(f"{name}: the prompt is empty; it needs at least one token")
            continue
        if len(prompt) + request.sampling.max_tokens > context:
            faults.add(
                f"{name}: a prompt of {len(prompt)} tokens and max_tokens {request.sampling.max_tokens} do not fit in "
                f"{context} positions; shorten or drop the prompt, or lower max_tokens"
            )
        if prompt.min() < 0 or prompt.max() >= vocab:
            faults.add(f"{name}: token ids run from {prompt.min()} to {prompt.max()}; the model knows 0 to {vocab - 1}")
    faults.raise_if_any()
