"""Builds the embedded engine over a model: runner, limits and canary."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Final, cast

import torch

from hone.core.errors import ConfigError, ResourceError
from hone.core.generation import OnPublish
from hone.engine.canary import WeightCanary
from hone.engine.engine import EmbeddedEngine
from hone.engine.native import runner as weights
from hone.engine.native.library import NumberKind, unavailable_reason
from hone.engine.native.runner import NativeRunner
from hone.engine.protocol import GenerationModel, KvCache, RunnerChoice, RunnerKind
from hone.engine.scheduler import CUDA_PASS_TOKENS, PASS_TOKENS, SchedulerLimits, default_limits
from hone.engine.session import TokenizerRules
from hone.engine.text_runner import WholeTextRunner
from hone.engine.torch_runner import TorchRunner
from hone.process.machine_memory import memory_limit_bytes

# --------------------------------------------------------------------------------------------------- choice of a runner


_DTYPES: Final = {"bfloat16": torch.bfloat16, "int8": torch.int8}


def choose_runner(
    kind: RunnerKind,
    model: GenerationModel,
    *,
    vocab_used: int,
    threads: int | None = None,
    fixed_tokens: int | None = None,
    copy_weights: bool = False,
    kv_cache: KvCache = "auto",
) -> RunnerChoice:
    """Runner by name; `auto` is native where it can be built, else torch with a note that gives the reason.

    `threads` of the compiled runner; None: as many as torch uses. `fixed_tokens`: on CUDA every pass is padded to so
    many; a CPU needs no padding to be exact. `relative_distance`: torch reads a copy of the model, which changes on
    `publish` only: for a learner that updates during generation. Raises ConfigError where `native` cannot run this
    model, ResourceError where it cannot be built.
    """
    unfit = _unfit(model)
    if kv_cache != "auto" and not kind.startswith("native"):
        raise ConfigError(
            f'kv_cache = "{kv_cache}" is for the compiled runner; set runner = "native", "native_bfloat16" or '
            f'"native_int8", not "{kind}"'
        )
    reason = unfit or (None if kind.startswith("torch") else unavailable_reason())
    if kind.startswith("native") and reason is not None:
        error = ConfigError if unfit else ResourceError
        raise error(f'runner = "{kind}": {reason}; set runner = "torch" or "auto"')
    if model.config.by_texts:
        if kind == "torch_compiled":
            raise ConfigError(f'runner = "torch_compiled": it does not compute {model.config.uncompiled}')
        source = model if copy_weights else None
        whole = WholeTextRunner(deepcopy(model) if copy_weights else model, vocab_used=vocab_used, source_model=source)
        note = f"generation reads each text again for every token: hone does not compute {model.config.uncompiled}"
        return RunnerChoice(runner=whole, own_weights=copy_weights, dtype=whole.dtype, note=note)
    if kind == "torch_compiled" and model.config.experts is not None:
        raise ConfigError('runner = "torch_compiled" has no mixtures of experts; set runner = "torch" or "auto"')
    if kind == "torch_compiled" and model.config.state_numbers:
        raise ConfigError(f'runner = "torch_compiled": it does not compute {model.config.uncompiled}; set "torch"')
    if kind == "torch_compiled" and model.code_bits:
        raise ConfigError('runner = "torch_compiled" has no weights in codes; set runner = "auto"')
    if kind == "torch_compiled" and model.exactness == "bitwise":
        raise ConfigError('model.exactness = "bitwise" takes runner = "torch": a compiler adds up in ways of its own')
    if kind.startswith("torch") or reason is not None:
        on_cpu = model.device.type == "cpu"
        runner = TorchRunner(
            deepcopy(model) if copy_weights else model,
            vocab_used=vocab_used,
            fixed_tokens=None if on_cpu else fixed_tokens,
            source_model=model if copy_weights else None,
            compiled=kind == "torch_compiled",
        )
        message = f"generation uses torch, not the compiled runner: {reason}" if kind == "auto" and not unfit else ""
        return RunnerChoice(runner=runner, own_weights=copy_weights, dtype=runner.dtype, note=message)
    return _native_choice(kind, model, vocab_used=vocab_used, threads=threads, kv_cache=kv_cache)


def _native_choice(
    kind: RunnerKind, model: GenerationModel, *, vocab_used: int, threads: int | None, kv_cache: KvCache
) -> RunnerChoice:
    """The compiled runner, in the numbers that `kind` and the model ask for."""
    readable = cast(weights.DecoderWeights, model)  # what its layers are called is checked when they are read
    low = kind == "native_bfloat16" or model.dtype == torch.bfloat16
    number: NumberKind = "int8" if kind == "native_int8" else "bfloat16" if low else "float32"
    native = NativeRunner(
        readable,
        vocab_used=vocab_used,
        threads=threads or torch.get_num_threads(),
        dtype=number,
        cache=None if kv_cache == "auto" else kv_cache,
    )
    cache = "bfloat16" if kv_cache == "auto" and number == "int8" else kv_cache
    return RunnerChoice(
        runner=native,
        own_weights=True,
        dtype=_DTYPES.get(number),
        cache_dtype=_DTYPES.get(cache),
    )


def _unfit(model: GenerationModel) -> str | None:
    """Return the reason why compiled code cannot run this model, if any."""
    if model.exactness == "bitwise":
        return 'model.exactness = "bitwise" takes the torch runner, whose arithmetic the trainer shares'
    if model.code_bits and model.config.head_dim % 32:
        return f"it reads codes of heads with a multiple of 32 features, and the model's have {model.config.head_dim}"
    if model.device.type != "cpu":
        return f"it runs on a CPU, and the model is on {model.device}"
    if model.config.uncompiled is not None:
        return f"it does not compute {model.config.uncompiled}"
    if model.dtype not in (torch.float32, torch.bfloat16):
        return f"it computes in float32 and bfloat16, and the model is {str(model.dtype).removeprefix('torch.')}"
    return None


# ---------------------------------------------------------------------------------------------------------- open engine


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
    """Largest KV cache on a GPU; None: room for the longest answer in every slot. On a CPU it is half of the memory:
    answers that do not fit wait, or are read again."""


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
    longest = min(size.sequence_tokens, model.config.max_positions)
    model.fix_rope_length(longest)
    fixed = max(FIXED_TOKENS, 2 * size.slots) if guarantees.batch_invariant else None
    apart = guarantees.on_publish is not None
    chosen = choose_runner(
        runner, model, vocab_used=text.vocab, threads=size.threads, fixed_tokens=fixed, copy_weights=apart,
        kv_cache=guarantees.kv_cache,
    )  # fmt: skip
    limits = default_limits(
        slots=size.slots,
        page_tokens=chosen.runner.page_tokens,
        sequence_tokens=longest,
        vocab=text.vocab,
        pass_tokens=CUDA_PASS_TOKENS if model.device.type == "cuda" and fixed is None else PASS_TOKENS,
    )
    room = (memory_limit_bytes() or 0) // 2 if model.device.type == "cpu" else guarantees.cache_bytes
    if room:
        limits = _within(limits, room, model, chosen.cache_dtype or chosen.dtype or model.dtype)
    lower = [dtype for dtype in (chosen.dtype, chosen.cache_dtype) if dtype is not None]
    coarsest = min(lower, key=lambda dtype: dtype.itemsize, default=None)
    return EmbeddedEngine(
        chosen,
        text,
        limits=limits,
        seed=seed,
        on_publish=guarantees.on_publish or "recompute",
        canary=WeightCanary(model, vocab=text.vocab, dtype=coarsest),
    )


def _within(limits: SchedulerLimits, cache_bytes: int, model: GenerationModel, number: torch.dtype) -> SchedulerLimits:
    """Limits with no more pages than fit into `cache_bytes`, at least those of the longest sequence."""
    shape = model.config
    numbers = 2 * shape.cached_layers * shape.kv_heads * shape.head_dim * limits.page_tokens
    page = numbers * number.itemsize + 4 * shape.state_numbers
    return replace(limits, pages=max(limits.least_pages, min(limits.pages, cache_bytes // page)))
