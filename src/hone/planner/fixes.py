"""Changes of settings that lower the memory of a run, cheapest first.

A change says what it costs in time, and whether the result stays: `bits` (the same run to the bit), `rounding` (the
same run up to rounding) or `algorithm` (another run). Those of the last kind, and those that hone has no key for, are
proposed, and never counted on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from hone.planner.devices import DEVICES, DeviceSpec
from hone.planner.known_models import KNOWN_MODELS
from hone.planner.planned_adapter import adapter_copies, adapter_sizes
from hone.planner.planned_decoder import shape_from_hf
from hone.planner.run_memory import RunDimensions, RunMemory, run_memory

Keeps = Literal["bits", "rounding", "algorithm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFix:
    """A change of settings, on top of those before it."""

    setting: str
    """`key=value` as `hone train` takes it; empty where no key of hone does it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSearch:
    """The cheapest changes with which a run fits, and what else there is."""

    chosen: tuple[MemoryFix, ...]
    """Changes to make; none of them can be left out. Empty where the run fits as it is, or never."""
    proposed: tuple[MemoryFix, ...]
    """Changes that make another run of it or need what hone has not; each on top of the best that can be done."""
    memory: RunMemory
    """Memory with the chosen changes, or with every change that keeps the run where it never fits."""
    missing_bytes: int
    """Bytes that are missing then; 0: it fits."""

    @property
    def settings(self) -> tuple[str, ...]:
        """The chosen changes as `key=value`."""
        return tuple(fix.setting for fix in self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestFit:
    """What comes closest to a run that does not fit whatever is done."""

    device: str
    """The smallest device of the table on which it fits; empty: none."""
    model: str
    """The largest published model with which the same run fits; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    setting: str
    words: str
    time: str
    keeps: Keeps
    run: RunDimensions


_Move = Callable[[RunDimensions, DeviceSpec], Iterator[_Change]]


def propose_fixes(run: RunDimensions, device: DeviceSpec) -> FixLadder:
    """Fixes of a run that does not fit, each on top of those before it that change nothing but memory and time.

    The order is that of their cost: smaller micro-batches down to the longest text, weights rounded again, activations
    computed again, fewer answers at a time; then what is only proposed.
    """
    fixes, enough = _climb(run, device)
    now = fixes[-1].run if fixes else run
    fixes += _proposals(now, device)
    least = min((fix.memory.peak_bytes for fix in fixes), default=run_memory(run).peak_bytes)
    missing = 0 if enough is not None else max(0, least - device.usable_bytes)
    return FixLadder(fixes=tuple(fixes), enough=enough, missing_bytes=missing)


def search_fit(run: RunDimensions, device: DeviceSpec) -> FitSearch:
    """The cheapest changes with which a run fits: greedy by cost, the memory computed anew after each, up to the first
    that is enough; then without those that the later ones made needless."""
    if fits(run, device):
        return FitSearch(chosen=(), proposed=(), memory=run_memory(run), missing_bytes=0)
    fixes, enough = _climb(run, device)
    last = fixes[-1].run if fixes else run
    if enough is None:
        memory = run_memory(last)
        return FitSearch(
            chosen=(), proposed=tuple(_proposals(last, device)), memory=memory,
            missing_bytes=memory.peak_bytes - device.usable_bytes,
        )  # fmt: skip
    needed = _without_needless(run, device, [fix.setting.partition("=")[0] for fix in fixes])
    return FitSearch(
        chosen=tuple(needed),
        proposed=tuple(_proposals(needed[-1].run, device)),
        memory=needed[-1].memory,
        missing_bytes=0,
    )


def first_changes(run: RunDimensions, count: int) -> tuple[MemoryFix, ...]:
    """The cheapest changes that keep the run and take a quarter off its peak, at most `count`: for a run whose memory
    ran out, on a device of which nothing is known but that."""
    wanted = run_memory(run).peak_bytes * 3 // 4
    device = DeviceSpec(
        name="", memory_bytes=wanted, bfloat16_flops=0.0, float32_flops=0.0, bandwidth_bytes=0.0, usable=1.0,
        is_gpu=run.step.path == "fused",
    )  # fmt: skip
    return tuple(_climb(run, device)[0][:count])


def fits(run: RunDimensions, device: DeviceSpec) -> bool:
    """Whether the peak of a run is within what a device has for tensors."""
    return run_memory(run).peak_bytes <= device.usable_bytes


def nearest_fit(run: RunDimensions, device: DeviceSpec) -> NearestFit:
    """The smallest device for a run that does not fit, and the largest published model for the device, with every
    change that keeps the run."""
    by_memory = sorted(DEVICES.values(), key=lambda spec: spec.memory_bytes)
    devices = (spec.name for spec in by_memory if device.is_gpu and _can_fit(run, spec))
    shapes = {name: shape_from_hf(config) for name, config in KNOWN_MODELS.items()}
    smaller = [name for name, shape in shapes.items() if shape.parameters < run.shape.parameters]
    smaller.sort(key=lambda name: (shapes[name].family != run.shape.family, -shapes[name].parameters))
    scaled = (name for name in smaller if _can_fit(_with_shape(run, name), device))
    return NearestFit(device=next(devices, ""), model=next(scaled, ""))


def _with_shape(run: RunDimensions, name: str) -> RunDimensions:
    """The run with a published model; what is held beside it shrinks with the parameters."""
    shape = shape_from_hf(KNOWN_MODELS[name])
    share = shape.parameters / run.shape.parameters
    copies = {held: int(size * share) for held, size in run.copies.items()}
    trained = None if run.trained_parameters is None else int(run.trained_parameters * share)
    return replace(run, shape=shape, copies=copies, trained_parameters=trained)


def _can_fit(run: RunDimensions, device: DeviceSpec) -> bool:
    return fits(run, device) or _climb(run, device)[1] is not None


def _climb(run: RunDimensions, device: DeviceSpec) -> tuple[list[MemoryFix], int | None]:
    """Changes that keep the run, each on top of the others, up to the first that is enough; and its place. Those that
    do not help at first, because another phase has the peak, are tried again after the others."""
    fixes: list[MemoryFix] = []
    now = run
    for move in 2 * _SAFE:
        for change in move(now, device):
            fix = _evaluated(change)
            if fix.memory.peak_bytes >= run_memory(now).peak_bytes:
                continue
            fixes.append(fix)
            now = change.run
            if fix.memory.peak_bytes <= device.usable_bytes:
                return fixes, len(fixes) - 1
    return fixes, None


def _without_needless(run: RunDimensions, device: DeviceSpec, keys: Sequence[str]) -> list[MemoryFix]:
    """The changes of these keys, without those that the others make needless; the dearest go first, and sizes are
    halved only as often as they must be, after the rest."""

    def climbed(kept: Sequence[str]) -> list[MemoryFix]:
        fixes: list[MemoryFix] = []
        now = run
        switches_first = sorted(_SAFE, key=lambda move: move in _HALVING)
        for move in switches_first:
            for change in move(now, device):
                if change.setting.partition("=")[0] in kept:
                    fixes.append(_evaluated(change))
                    now = change.run
        return fixes

    kept = list(keys)
    for key in reversed(keys):
        fewer = [one for one in kept if one != key]
        found = climbed(fewer)
        if fewer and found and found[-1].memory.peak_bytes <= device.usable_bytes:
            kept = fewer
    return climbed(kept)


def _evaluated(change: _Change) -> MemoryFix:
    return MemoryFix(
        setting=change.setting, words=change.words, time=change.time, keeps=change.keeps, run=change.run,
        memory=run_memory(change.run),
    )  # fmt: skip


def _smaller_batches(run: RunDimensions, device: DeviceSpec) -> Iterator[_Change]:
    """Halve the micro-batch until the run fits, down to its longest text."""
    tokens, changed = run.step.tokens, run
    while not fits(changed, device) and tokens > run.step.least_tokens:
        tokens = max(run.step.least_tokens, tokens // 2)
        changed = replace(run, step=replace(run.step, tokens=tokens))
    if changed is not run:
        words = f"micro-batches of {tokens:,} tokens"
        yield _Change(
            setting=f"learner.micro_batch_tokens={tokens}", words=words, time="0 to 2%", keeps="rounding", run=changed
        )


def _checkpointing(run: RunDimensions, _device: DeviceSpec) -> Iterator[_Change]:
    if not run.step.checkpointing:
        changed = replace(run, step=replace(run.step, checkpointing=True))
        setting, words = "model.activation_checkpointing=true", "activations computed again"
        yield _Change(setting=setting, words=words, time="+30%", keeps="bits", run=changed)


def _rounded_again(run: RunDimensions, _device: DeviceSpec) -> Iterator[_Change]:
    if run.step.compute != run.step.weights and not run.step.rounds_again:
        changed = replace(run, step=replace(run.step, rounds_again=True))
        setting, words = "model.round_weights_again=true", "weights rounded again in the backward pass"
        yield _Change(setting=setting, words=words, time="1 to 2%", keeps="bits", run=changed)


def _offloaded(run: RunDimensions, device: DeviceSpec) -> Iterator[_Change]:
    """Activations in the host's memory; in the place of those that are computed again, which are few already."""
    if device.is_gpu and not run.step.offload and not run.step.checkpointing:
        changed = replace(run, step=replace(run.step, offload=True))
        setting, words = "model.activation_offload=true", "activations in the host's memory"
        yield _Change(setting=setting, words=words, time="copies over the bus", keeps="bits", run=changed)


def _sleeping(run: RunDimensions, _device: DeviceSpec) -> Iterator[_Change]:
    generation = run.generation
    if generation is not None and generation.may_sleep and not generation.sleeps:
        changed = replace(run, generation=replace(generation, sleeps=True))
        words = "the engine's memory freed while the policy learns"
        yield _Change(setting="rollout.sleep=true", words=words, time="0 to 2%", keeps="bits", run=changed)


def _fewer_answers(run: RunDimensions, device: DeviceSpec) -> Iterator[_Change]:
    """Halve the answers at a time until the run fits."""
    if run.generation is None:
        return
    count, changed = run.generation.concurrent, run
    while not fits(changed, device) and count > 1:
        count //= 2
        changed = replace(run, generation=replace(run.generation, concurrent=count))
    if changed is not run:
        setting, words = f"rollout.max_concurrent={count}", f"{count} answer{'s' * (count > 1)} at a time"
        yield _Change(setting=setting, words=words, time="slower generation", keeps="bits", run=changed)


def _more_ranks(run: RunDimensions, device: DeviceSpec) -> Iterator[_Change]:
    """Ranks on the devices that there are."""
    yield from _ranks(run, device, [count for count in _possible_ranks(run) if count <= device.count])


def _possible_ranks(run: RunDimensions) -> list[int]:
    """Numbers of ranks among which the weights can be cut: those with as many rows of a step."""
    rows = max(run.step.tokens, run.step.step_tokens) // run.step.least_tokens
    return [count for count in _RANKS if count <= rows] if run.ranks.count == 1 else []


def _ranks(run: RunDimensions, device: DeviceSpec, counts: Sequence[int]) -> Iterator[_Change]:
    """The fewest ranks that are enough, or the most that can be, each on a GPU of its own."""
    if not device.is_gpu or not counts:
        return
    changed = [replace(run, ranks=replace(run.ranks, count=count)) for count in counts]
    found = next((one for one in changed if fits(one, device)), changed[-1])
    count = found.ranks.count
    words = f"weights, gradients and moments divided among {count} ranks, on {count} such devices"
    yield _Change(setting=f"run.ranks={count}", words=words, time="communication", keeps="rounding", run=found)


_RANKS: Final = (2, 4, 8, 16, 32, 64)
_SAFE: Final[tuple[_Move, ...]] = (
    _smaller_batches, _rounded_again, _sleeping, _more_ranks, _checkpointing, _offloaded, _fewer_answers,
)  # fmt: skip
_HALVING: Final[tuple[_Move, ...]] = (_smaller_batches, _fewer_answers)
_ADAPTER_RANK: Final = 16


def _proposals(run: RunDimensions, device: DeviceSpec) -> list[MemoryFix]:
    """What is only proposed, each by itself on top of `run`, where it helps."""
    peak = run_memory(run).peak_bytes
    return [fix for fix in map(_evaluated, _others(run, device)) if fix.memory.peak_bytes < peak]


def _others(run: RunDimensions, device: DeviceSpec) -> Iterator[_Change]:
    """Changes of the run itself, and those that hone has no key for."""
    generation = run.generation
    if run.step.compute == "bfloat16" and generation is not None and generation.cache == "float32":
        changed = replace(run, generation=replace(generation, cache="bfloat16", weights_bytes=2, layout="packed"))
        setting, words = 'rollout.runner="native_bfloat16"', "generation in bfloat16"
        yield _Change(setting=setting, words=words, time="faster", keeps="algorithm", run=changed)
    if device.count == 1:
        yield from _ranks(run, device, _possible_ranks(run))
    if run.moment_bytes > 1:
        words = "moments of 8 bits (bitsandbytes; hone has no key for it)"
        changed = replace(run, moment_bytes=1)
        yield _Change(setting="", words=words, time="about the same", keeps="algorithm", run=changed)
    if run.trained_parameters is None and run.step.weights == "float32":  # bfloat16 would round the adapter away
        trained, adapted = adapter_sizes(run.shape, _ADAPTER_RANK, "all")
        changed = replace(
            run,
            trained_parameters=trained,
            copies={**run.copies, **adapter_copies(trained, adapted, run.step.weights)},
            step=replace(run.step, trained_vocabulary=False),
        )
        words = f"an adapter of rank {_ADAPTER_RANK} in place of all weights"
        yield _Change(
            setting=f"model.lora.rank={_ADAPTER_RANK}",
            words=words,
            time="about the same",
            keeps="algorithm",
            run=changed,
        )
