"""Changes of settings that lower the memory of a run, cheapest first.

A change says what it costs in time, and whether the result stays: `bits` (the same run to the bit), `rounding` (the
same run up to rounding) or `algorithm` (another run). Changes of the last kind are proposed, and never counted on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from hone.planner.devices import DeviceSpec
from hone.planner.run_memory import RunDimensions, RunMemory, run_memory

Keeps = Literal["bits", "rounding", "algorithm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFix:
    """A change of settings, on top of those before it."""

    setting: str
    """`key=value` as `hone train` takes it; empty where no key of hone does it yet."""
    words: str
    time: str
    """Cost in time: `0 to 2%`, `+30%`."""
    keeps: Keeps
    run: RunDimensions
    memory: RunMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class FixLadder:
    """Fixes in order, and the first that is enough."""

    fixes: tuple[MemoryFix, ...]
    enough: int | None
    """Place of the first fix with which the run fits; None: none of them is enough."""
    missing_bytes: int
    """Bytes that are missing with all of them; 0 where one is enough."""


_Change = tuple[str, str, str, Keeps, RunDimensions]


def propose_fixes(run: RunDimensions, device: DeviceSpec) -> FixLadder:
    """Fixes of a run that does not fit, each on top of those before it that change nothing but memory and time.

    The order is that of their cost: smaller micro-batches down to the longest text, activations computed again, an
    engine that sleeps, fewer answers at a time; then changes of the run itself.
    """
    fixes: list[MemoryFix] = []
    enough: int | None = None
    now = run
    for step in _SAFE:
        for setting, words, time, keeps, changed in step(now, device):
            memory = run_memory(changed)
            if memory.peak_bytes >= run_memory(now).peak_bytes:
                continue
            fixes.append(MemoryFix(setting=setting, words=words, time=time, keeps=keeps, run=changed, memory=memory))
            now = changed
            if enough is None and memory.peak_bytes <= device.usable_bytes:
                enough = len(fixes) - 1
        if enough is not None:
            break
    for setting, words, time, keeps, changed in _others(now):
        memory = run_memory(changed)
        if memory.peak_bytes < run_memory(now).peak_bytes:
            fixes.append(MemoryFix(setting=setting, words=words, time=time, keeps=keeps, run=changed, memory=memory))
    least = min((fix.memory.peak_bytes for fix in fixes), default=run_memory(run).peak_bytes)
    missing = 0 if enough is not None else max(0, least - device.usable_bytes)
    return FixLadder(fixes=tuple(fixes), enough=enough, missing_bytes=missing)


def _smaller_batches(run: RunDimensions, device: DeviceSpec) -> Iterator[_Change]:
    """Halve the micro-batch until the run fits, down to its longest text."""
    tokens, changed = run.step.tokens, run
    while run_memory(changed).peak_bytes > device.usable_bytes and tokens > run.step.text_tokens:
        tokens = max(run.step.text_tokens, tokens // 2)
        changed = replace(run, step=replace(run.step, tokens=tokens))
    if changed is not run:
        setting = f"learner.micro_batch_tokens={tokens}"
        yield setting, f"micro-batches of {tokens:,} tokens", "0 to 2%", "rounding", changed


def _checkpointing(run: RunDimensions, _device: DeviceSpec) -> Iterator[_Change]:
    if not run.step.checkpointing:
        changed = replace(run, step=replace(run.step, checkpointing=True))
        yield "model.activation_checkpointing=true", "activations computed again", "+30%", "bits", changed


def _fewer_answers(run: RunDimensions, device: DeviceSpec) -> Iterator[_Change]:
    """Halve the answers at a time until the run fits."""
    if run.generation is None:
        return
    count, changed = run.generation.concurrent, run
    while run_memory(changed).peak_bytes > device.usable_bytes and count > 1:
        count //= 2
        changed = replace(run, generation=replace(run.generation, concurrent=count))
    if changed is not run:
        yield f"rollout.max_concurrent={count}", f"{count} answers at a time", "slower generation", "bits", changed


_SAFE: tuple[Callable[[RunDimensions, DeviceSpec], Iterator[_Change]], ...] = (
    _smaller_batches, _checkpointing, _fewer_answers,
)  # fmt: skip
_ADAPTER_RANK = 16


def _others(run: RunDimensions) -> Iterator[_Change]:
    """Changes of the run itself, each by itself."""
    if run.step.compute == "bfloat16" and run.generation is not None and run.generation.cache == "float32":
        changed = replace(run, generation=replace(run.generation, cache="bfloat16", weights_bytes=2))
        yield 'rollout.runner="native_bfloat16"', "generation in bfloat16", "faster", "algorithm", changed
    if run.trained_parameters is None:
        shape = run.shape
        ends = 2 * (shape.hidden + shape.query_width) + 2 * (shape.hidden + shape.key_width)
        ends += 3 * (shape.hidden + shape.intermediate)
        trained = shape.layers * _ADAPTER_RANK * ends
        changed = replace(run, trained_parameters=trained, step=replace(run.step, trained_vocabulary=False))
        words = f"an adapter of rank {_ADAPTER_RANK} in place of all weights"
        yield f"model.lora.rank={_ADAPTER_RANK}", words, "about the same", "algorithm", changed
