"""Choice of an engine's runner: the compiled one if it can be built, else the torch one."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Final, Literal, cast

import torch

from hone.core.errors import ConfigError, ResourceError
from hone.engine.native import runner as weights
from hone.engine.native.library import NumberKind, unavailable_reason
from hone.engine.native.runner import NativeRunner
from hone.engine.protocol import GenerationModel
from hone.engine.torch_runner import TorchRunner
from hone.engine.work import ModelRunner

RunnerKind = Literal["auto", "native", "native_bfloat16", "native_int8", "torch", "torch_compiled"]
"""`torch_compiled`: layers compiled by torch.compile, for GPUs; a token's result may then depend on its batch.
`native_bfloat16` packs the weights in bfloat16: faster where the processor multiplies it in tiles (AMX), with about the
difference of a bfloat16 trainer to float32. `native_int8` multiplies weights and activations in codes of 8 bits, with
equal bits on every processor from AVX2 on.
"""
KvCache = Literal["auto", "bfloat16", "int8"]
"""Numbers of the compiled runner's keys and values; `auto`: those of its products, and bfloat16 for `native_int8`."""

_DTYPES: Final = {"bfloat16": torch.bfloat16, "int8": torch.int8}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChoice:
    """A runner with its properties."""

    runner: ModelRunner
    own_weights: bool
    """True if it copies the weights on `publish`; otherwise it reads the trainer's, and sees an update at once."""
    dtype: torch.dtype | None = None
    """Dtype of its products; None: the weights' own."""
    cache_dtype: torch.dtype | None = None
    """Dtype of its keys and values; None: that of its products."""
    note: str = ""
    """Note for the user about the choice; empty if none."""


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
    if kind == "torch_compiled" and model.config.experts is not None:
        raise ConfigError('runner = "torch_compiled" has no mixtures of experts; set runner = "torch" or "auto"')
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
    if model.device.type != "cpu":
        return f"it runs on a CPU, and the model is on {model.device}"
    if model.dtype not in (torch.float32, torch.bfloat16):
        return f"it computes in float32 and bfloat16, and the model is {str(model.dtype).removeprefix('torch.')}"
    return None
