"""Validation of requests before any token is sampled."""

import math
from collections.abc import Sequence

from hone.core.errors import ConfigError, DataError, ErrorCollector
from hone.core.generation import Request, SamplingParams, ScoreRequest


def _check_sampling(sampling: SamplingParams) -> None:
    """Raise ConfigError with every invalid setting."""
    faults = ErrorCollector(ConfigError)
    if sampling.max_tokens < 1:
        faults.add(f"sampling.max_tokens must be at least 1, got {sampling.max_tokens}")
    if not (math.isfinite(sampling.temperature) and sampling.temperature > 0):
        hint = "; for the most likely token set greedy = true" if sampling.temperature == 0 else ""
        faults.add(f"sampling.temperature must be a finite number > 0, got {sampling.temperature}{hint}")
    if sampling.top_k < 0:
        faults.add(f"sampling.top_k must be 0 (off) or more, got {sampling.top_k}")
    if not 0 < sampling.top_p <= 1:
        faults.add(f"sampling.top_p must be in (0, 1], got {sampling.top_p}")
    if not 0 <= sampling.min_p <= 1:
        faults.add(f"sampling.min_p must be in [0, 1], got {sampling.min_p}")
    if sampling.top_logprobs < 0:
        faults.add(f"sampling.top_logprobs must be 0 (none) or more, got {sampling.top_logprobs}")
    if "" in sampling.stop:
        faults.add("sampling.stop contains an empty string, which would end every completion at once")
    faults.raise_if_any()


def check_requests(requests: Sequence[Request], *, context: int, vocab: int) -> None:
    """Raise DataError naming every invalid request: id, fault, fix.

    `context` and `vocab`: most positions of a sequence, and number of token ids. ConfigError for settings.
    """
    for sampling in dict.fromkeys(request.sampling for request in requests):
        _check_sampling(sampling)
    faults = ErrorCollector(DataError)
    seen: set[str] = set()
    for request in requests:
        name, prompt, most = f"request {request.id!r}", request.prompt, request.sampling.max_tokens
        if request.id in seen:
            faults.add(f"{name}: the id is given twice in one call; its samples would be equal")
        seen.add(request.id)
        if request.samples < 1:
            faults.add(f"{name}: samples must be at least 1, got {request.samples}")
        if not (math.isfinite(request.keep_s) and request.keep_s >= 0):
            faults.add(f"{name}: keep_s must be a finite number of seconds, 0 or more, got {request.keep_s}")
        if not len(prompt):
            faults.add(f"{name}: the prompt is empty; it needs at least one token")
            continue
        if len(prompt) + most > context:
            faults.add(
                f"{name}: a prompt of {len(prompt)} tokens and max_tokens {most} do not fit in {context} positions; "
                "shorten or drop the prompt, or lower max_tokens"
            )
        if prompt.min() < 0 or prompt.max() >= vocab:
            faults.add(f"{name}: token ids run from {prompt.min()} to {prompt.max()}; the model knows 0 to {vocab - 1}")
    faults.raise_if_any()


def check_score_requests(texts: Sequence[ScoreRequest], *, context: int, vocab: int) -> None:
    """Raise DataError naming every text that cannot be scored by its place; ConfigError for settings."""
    for sampling in dict.fromkeys(text.sampling for text in texts):
        _check_sampling(sampling)
    faults = ErrorCollector(DataError)
    for place, text in enumerate(texts):
        name, asked, message = f"text {place}", text.prompt, text.tokens
        if not len(asked) or not len(message):
            faults.add(f"{name}: a prompt of {len(asked)} tokens before {len(message)}; both need at least one token")
            continue
        if len(asked) + len(message) > context:
            faults.add(f"{name}: {len(asked)} + {len(message)} tokens do not fit in {context} positions; shorten it")
        low, high = min(asked.min(), message.min()), max(asked.max(), message.max())
        if low < 0 or high >= vocab:
            faults.add(f"{name}: token ids run from {low} to {high}; the model knows 0 to {vocab - 1}")
    faults.raise_if_any()
