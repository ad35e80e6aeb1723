"""Builds the embedded engine over a model: runner, limits and canary."""

from dataclasses import dataclass, replace
from typing import Final

import torch

from hone.core.generation import OnPublish
from hone.engine.canary import WeightCanary
from hone.engine.choose import KvCache, RunnerChoice, RunnerKind, choose_runner
from hone.engine.engine import EmbeddedEngine
from hone.engine.protocol import GenerationModel
from hone.engine.scheduler import CUDA_PASS_TOKENS, PASS_TOKENS, SchedulerLimits, default_limits
from hone.engine.session import TokenizerRules

FIXED_TOKENS: Final = 512
"""Tokens of a pass with batch-invariant results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGuarantees:
    """Guarantees that a training run needs of its engine."""

    batch_invariant: bool = False
    """Batch-invariant answers on CUDA too; every pass then costs as much as the largest."""
    on_publish: OnPublish | None = None
    """Treatment of unfinished answers when weights are published; the engine then has its own copy of the weights, so
    that the trainer may update in parallel. None: there are no unfinished answers."""
    kv_cache: KvCache = "auto"
    """Numbers of keys and values, of the compiled runner."""
    cache_bytes: int | None = None
    """Largest KV cache; None: room for the longest answer in every slot. Answers that do not fit wait, or are read
    again."""


NO_GUARANTEES: Final = EngineGuarantees()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSize:
    """Sizes of an engine, and the threads that it computes with."""

    slots: int
    sequence_tokens: int
    """Most tokens of a prompt and its answer; the model's positions are the bound all the same."""
    threads: int | None = None
    """Threads of the compiled runner; None: as many as torch uses."""


def open_engine(
    model: GenerationModel,
    text: TokenizerRules,
    *,
    size: EngineSize,
    seed: int,
    runner: RunnerKind = "auto",
    guarantees: EngineGuarantees = NO_GUARANTEES,
) -> EmbeddedEngine:
    """Make an engine over `model`. Raises ConfigError or ResourceError if the requested `runner` is unavailable."""
    fixed = max(FIXED_TOKENS, 2 * size.slots) if guarantees.batch_invariant else None
    apart = guarantees.on_publish is not None
    chosen = choose_runner(
        runner, model, vocab_used=text.vocab, threads=size.threads, fixed_tokens=fixed, copy_weights=apart,
        kv_cache=guarantees.kv_cache,
    )  # fmt: skip
    limits = default_limits(
        slots=size.slots,
        page_tokens=chosen.runner.page_tokens,
        sequence_tokens=min(size.sequence_tokens, model.config.max_positions),
        vocab=text.vocab,
        pass_tokens=CUDA_PASS_TOKENS if model.device.type == "cuda" and fixed is None else PASS_TOKENS,
    )
    if guarantees.cache_bytes is not None:
        number = chosen.cache_dtype or chosen.dtype or model.dtype
        limits = _within(limits, guarantees.cache_bytes, model, number)
    return EmbeddedEngine(
        chosen,
        text,
        limits=limits,
        seed=seed,
        on_publish=guarantees.on_publish or "recompute",
        canary=WeightCanary(model, vocab=text.vocab, dtype=_coarsest(chosen)),
    )


def _coarsest(chosen: RunnerChoice) -> torch.dtype | None:
    """Dtype of the fewest bits that the runner computes with; None: the weights' own."""
    lower = [one for one in (chosen.dtype, chosen.cache_dtype) if one is not None]
    return min(lower, key=lambda one: one.itemsize, default=None)


def _within(limits: SchedulerLimits, cache_bytes: int, model: GenerationModel, number: torch.dtype) -> SchedulerLimits:
    """Limits with no more pages than fit into `cache_bytes`, at least those of the longest sequence."""
    shape = model.config
    numbers = 2 * shape.layers * shape.kv_heads * shape.head_dim * limits.page_tokens
    page = numbers * number.itemsize
    return replace(limits, pages=max(limits.least_pages, min(limits.pages, cache_bytes // page)))
