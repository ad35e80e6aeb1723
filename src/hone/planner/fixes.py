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
from hone.planner.planned_decoder import PlannedDecoder, shape_from_hf
from hone.planner.run_memory import RunDimensions, RunMemory, run_memory
from hone.planner.run_settings import adapter_copies, adapter_sizes

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
class _FixLadder:
    """Fixes in order, and the first that is enough."""

    fixes: tuple[MemoryFix, ...]
    enough: int | None
    """Place of the first fix with which the run fits; None: none of them is enough."""
    missing_bytes: int
    """Bytes that are missing with all of them; 0 where one is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FitSearch:
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
class _NearestFit:
    """What comes closest to a run that does not fit whatever is done."""

    device: str
    """The smallest device of the table on which it fits; empty: none."""
    model: str
    """The largest published model with which the same run fits; empty: none."""


_Move = Callable[[RunDimensions, DeviceSpec], Iterator[MemoryFix]]


def propose_fixes(run: RunDimensions, device: DeviceSpec) -> _FixLadder:
    """Fixes of a run that does not fit, each on top of those before it that change nothing but memory and time.

    The order is that of their cost: smaller micro-batches down to the longest text, weights rounded again, activations
    computed again, fewer answers at a time; then what is only proposed.
    """
    fixes, enough = _climb(run, device)
    now = fixes[-1].run if fixes else run
    fixes += _proposals(now, device)
    least = min((fix.memory.peak_bytes for fix in fixes), default=run_memory(run).peak_bytes)
    missing = 0 if enough is not None else max(0, least - device.usable_bytes)
    return _FixLadder(fixes=tuple(fixes), enough=enough, missing_bytes=missing)


def search_fit(run: RunDimensions, device: DeviceSpec) -> _FitSearch:
    """The cheapest changes with which a run fits: greedy by cost, the memory computed anew after each, up to the first
    that is enough; then without those that the later ones made needless."""
    if fits(run, device):
        return _FitSearch(chosen=(), proposed=(), memory=run_memory(run), missing_bytes=0)
    fixes, enough = _climb(run, device)
    last = fixes[-1].run if fixes else run
    if enough is None:
        memory = run_memory(last)
        return _FitSearch(
            chosen=(), proposed=tuple(_proposals(last, device)), memory=memory,
            missing_bytes=memory.peak_bytes - device.usable_bytes,
        )  # fmt: skip
    needed = _without_needless(run, device, [_named(fix) for fix in fixes])
    proposed = tuple(_proposals(needed[-1].run, device))
    return _FitSearch(chosen=tuple(needed), proposed=proposed, memory=needed[-1].memory, missing_bytes=0)


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


def nearest_fit(run: RunDimensions, device: DeviceSpec) -> _NearestFit:
    """The smallest device for a run that does not fit, and the largest published model for the device, with every
    change that keeps the run."""
    by_memory = sorted(DEVICES.values(), key=lambda spec: spec.memory_bytes)
    devices = (spec.name for spec in by_memory if device.is_gpu and _can_fit(run, spec))
    shapes = {name: shape_from_hf(config) for name, config in KNOWN_MODELS.items()}
    smaller = [name for name, shape in shapes.items() if shape.parameters < run.shape.parameters]
    smaller.sort(key=lambda name: (shapes[name].family != run.shape.family, -shapes[name].parameters))

    def scaled(shape: PlannedDecoder) -> RunDimensions:
        """The run with a smaller model; what is held beside it shrinks with the parameters."""
        share = shape.parameters / run.shape.parameters
        copies = {held: int(size * share) for held, size in run.copies.items()}
        trained = None if run.trained_parameters is None else int(run.trained_parameters * share)
        return replace(run, shape=shape, copies=copies, trained_parameters=trained)

    models = (name for name in smaller if _can_fit(scaled(shapes[name]), device))
    return _NearestFit(device=next(devices, ""), model=next(models, ""))


def _can_fit(run: RunDimensions, device: DeviceSpec) -> bool:
    return fits(run, device) or _climb(run, device)[1] is not None


def _climb(run: RunDimensions, device: DeviceSpec) -> tuple[list[MemoryFix], int | None]:
    """Changes that keep the run, each on top of the others, up to the first that is enough; and its place. Those that
    do not help at first, because another phase has the peak, are tried again after the others."""
    fixes: list[MemoryFix] = []
    now, peak = run, run_memory(run).peak_bytes
    for move in 2 * _SAFE:
        for fix in move(now, device):
            if fix.memory.peak_bytes >= peak:
                continue
            fixes.append(fix)
            now, peak = fix.run, fix.memory.peak_bytes
            if peak <= device.usable_bytes:
                return fixes, len(fixes) - 1
    return fixes, None


def _named(fix: MemoryFix) -> str:
    """The key of a size, the whole setting of a choice."""
    key, _, value = fix.setting.partition("=")
    return key if value.isdigit() else fix.setting


def _without_needless(run: RunDimensions, device: DeviceSpec, names: Sequence[str]) -> list[MemoryFix]:
    """The changes of these names, without those that the others make needless; the dearest go first, and sizes are
    halved only as often as they must be, after the rest."""

    def climbed(kept: Sequence[str]) -> list[MemoryFix]:
        fixes: list[MemoryFix] = []
        now = run
        for move in sorted(_SAFE, key=lambda move: move in _HALVING):
            for fix in move(now, device):
                if _named(fix) in kept:
                    fixes.append(fix)
                    now = fix.run
        return fixes

    kept = list(names)
    for name in reversed(names):
        fewer = [one for one in kept if one != name]
        fixes = climbed(fewer)
        if fewer and fixes and fixes[-1].memory.peak_bytes <= device.usable_bytes:
            kept = fewer
    return climbed(kept)


def _fix(run: RunDimensions, setting: str, words: str, time: str, keeps: Keeps) -> MemoryFix:
    return MemoryFix(setting=setting, words=words, time=time, keeps=keeps, run=run, memory=run_memory(run))


def _smaller_batches(run: RunDimensions, device: DeviceSpec) -> Iterator[MemoryFix]:
    """Halve the micro-batch until the run fits, down to its longest text."""
    tokens, changed = run.step.tokens, run
    while not fits(changed, device) and tokens > run.step.least_tokens:
        tokens = max(run.step.least_tokens, tokens // 2)
        changed = replace(run, step=replace(run.step, tokens=tokens))
    if changed is not run:
        words = f"micro-batches of {tokens:,} tokens"
        yield _fix(changed, f"learner.micro_batch_tokens={tokens}", words, "0 to 2%", "rounding")


def _checkpointing(run: RunDimensions, _device: DeviceSpec) -> Iterator[MemoryFix]:
    if not run.step.checkpointing:
        changed = replace(run, step=replace(run.step, checkpointing=True, rounds_again=True))
        yield _fix(changed, "model.activations=recompute", "activations computed again", "+30%", "bits")


def _rounded_again(run: RunDimensions, _device: DeviceSpec) -> Iterator[MemoryFix]:
    if run.step.rounded_bytes:
        changed = replace(run, step=replace(run.step, rounds_again=True))
        words = "weights rounded again in the backward pass"
        yield _fix(changed, "model.activations=round_again", words, "1 to 2%", "bits")


def _offloaded(run: RunDimensions, device: DeviceSpec) -> Iterator[MemoryFix]:
    """Activations in the host's memory; in the place of those that are computed again, which are few already."""
    if device.is_gpu and not run.step.offload and not run.step.checkpointing:
        changed = replace(run, step=replace(run.step, offload=True, rounds_again=True))
        words = "activations in the host's memory"
        yield _fix(changed, "model.activations=offload", words, "copies over the bus", "bits")


def _sleeping(run: RunDimensions, _device: DeviceSpec) -> Iterator[MemoryFix]:
    generation = run.generation
    if generation is not None and generation.may_sleep and not generation.sleeps:
        changed = replace(run, generation=replace(generation, sleeps=True))
        words = "the engine's memory freed while the policy learns"
        yield _fix(changed, "rollout.sleep=true", words, "0 to 2%", "bits")


def _fewer_answers(run: RunDimensions, device: DeviceSpec) -> Iterator[MemoryFix]:
    """Halve the answers at a time until the run fits."""
    if run.generation is None:
        return
    count, changed = run.generation.concurrent, run
    while not fits(changed, device) and count > 1:
        count //= 2
        changed = replace(run, generation=replace(run.generation, concurrent=count))
    if changed is not run:
        words = f"{count} answer{'s' * (count > 1)} at a time"
        yield _fix(changed, f"rollout.max_concurrent={count}", words, "slower generation", "bits")


def _more_ranks(run: RunDimensions, device: DeviceSpec, *, most: int | None = None) -> Iterator[MemoryFix]:
    """The fewest ranks that are enough, or the most that can be, each on a GPU of its own: of the devices that there
    are, or `most`."""
    rows = max(run.step.tokens, run.step.step_tokens) // run.step.least_tokens
    counts = [count for count in _RANKS if count <= min(rows, most or device.count)]
    if run.ranks.count > 1 or not device.is_gpu or not counts:
        return
    changed = [replace(run, ranks=replace(run.ranks, count=count)) for count in counts]
    enough = next((one for one in changed if fits(one, device)), changed[-1])
    count = enough.ranks.count
    words = f"weights, gradients and moments divided among {count} ranks, on {count} such devices"
    yield _fix(enough, f"run.ranks={count}", words, "communication", "rounding")


_RANKS: Final = (2, 4, 8, 16, 32, 64)
_SAFE: Final[tuple[_Move, ...]] = (
    _smaller_batches, _rounded_again, _sleeping, _more_ranks, _checkpointing, _offloaded, _fewer_answers,
)  # fmt: skip
_HALVING: Final[tuple[_Move, ...]] = (_smaller_batches, _fewer_answers)
_ADAPTER_RANK: Final = 16


def _proposals(run: RunDimensions, device: DeviceSpec) -> list[MemoryFix]:
    """What is only proposed, each by itself on top of `run`, where it helps: changes of the run itself, and those that
    hone has no key for."""
    peak = run_memory(run).peak_bytes
    return [fix for fix in _others(run, device) if fix.memory.peak_bytes < peak]


def _others(run: RunDimensions, device: DeviceSpec) -> Iterator[MemoryFix]:
    generation = run.generation
    if run.step.compute == "bfloat16" and generation is not None and generation.cache == "float32":
        changed = replace(run, generation=replace(generation, cache="bfloat16", weights_bytes=2, layout="packed"))
        setting = 'rollout.runner="native_bfloat16"'
        yield _fix(changed, setting, "generation in bfloat16", "faster", "algorithm")
    if device.count == 1:
        yield from _more_ranks(run, device, most=_RANKS[-1])
    if run.moment_bytes > 1:
        words = "moments of 8 bits (bitsandbytes; hone has no key for it)"
        yield _fix(replace(run, moment_bytes=1), "", words, "about the same", "algorithm")
    if run.trained_parameters is None and run.step.weights == "float32":  # bfloat16 would round the adapter away
        trained, adapted = adapter_sizes(run.shape, _ADAPTER_RANK, "all")
        changed = replace(
            run,
            trained_parameters=trained,
            copies={**run.copies, **adapter_copies(trained, adapted, run.step.weights)},
            step=replace(run.step, trained_vocabulary=False),
        )
        words = f"an adapter of rank {_ADAPTER_RANK} in place of all weights"
        yield _fix(changed, f"model.lora.rank={_ADAPTER_RANK}", words, "about the same", "algorithm")
