"""The memory plan of a text run for display: components, phases, what fits, and the fixes as settings to copy."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hone.cli.calibration import described_calibration, known_calibration
from hone.cli.memory_request import MemoryRequest
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError
from hone.planner.calibration import MachineCalibration, calibrated
from hone.planner.devices import DeviceSpec, cpu_device, find_device
from hone.planner.fixes import FitSearch, FixLadder, MemoryFix, nearest_fit, propose_fixes, search_fit
from hone.planner.run_memory import (
    RunDimensions,
    RunMemory,
    largest_micro_batch,
    most_concurrent,
    on_device,
    other_rank,
    resident_parts,
    run_memory,
)
from hone.planner.run_time import generation_time, learning_time
from hone.planner.training_step import saved_per_token
from hone.process.machine_memory import memory_limit_bytes
from hone.run.memory_plan import MemoryPlan, device_memory_bytes, readable_bytes

if TYPE_CHECKING:
    from hone.run.job import RunConfig
    from hone.text.tracked_step import TrackedStep

_MOMENTS = {
    "logits": "the backward pass of the logits",
    "norm": "the backward pass of the last norm",
    "layer": "the backward pass of a layer",
    "embedding": "the gradients of the vocabulary",
    "layer end": "the end of a layer's backward pass",
    "layer sent": "a layer's gradients, added up over the ranks",
    "rest sent": "the vocabulary's gradients, added up over the ranks",
}


def plan_rows(plan: MemoryPlan, request: MemoryRequest, config: "Callable[[], RunConfig]") -> dict[str, str]:
    """Rows of a plan on the device that is asked about, or on the run's own; {} for a run that is not planned.
    `config` is asked for `--exact` alone. Raises ConfigError for an unknown device."""
    if plan.run is None:
        return {}
    spec, run = _device(plan, request.device), plan.run
    run = run if spec is None else on_device(run, spec)
    memory = run_memory(run)
    rows = {} if run is plan.run else {"memory": _networks(run)}
    rows |= {
        "memory in closed form": f"{run.own_step.tokens:,} tokens a micro-batch, {run.step.compute} products"
        + ("" if spec is None else f", on {_described(spec)}"),
        "components": " | ".join(f"{name} {readable_bytes(size)}" for name, size in memory.components.items()),
        "phases": " | ".join(f"{name} {readable_bytes(size)}" for name, size in memory.phases.items()),
        "peak": _peak(run, memory),
        **_rank_rows(run),
    }
    if request.exact:
        rows["exact step"] = _exact(run, memory, config())
    if spec is None:
        return rows
    if (measured := _used_calibration(plan, request)) is not None:
        rows["measured"] = described_calibration(measured)
    rows["fits"] = _fits(run, memory, spec)
    if request.solve:
        rows |= _solution_rows(run, spec, request, device=plan.device)
    else:
        rows |= {f"fix {number}": text for number, text in enumerate(_fix_rows(run, memory, spec), start=1)}
    return rows | _times(run, spec)


def plan_figures(plan: MemoryPlan, request: MemoryRequest, config: "Callable[[], RunConfig]") -> dict[str, Any]:
    """The plan as JSON values: bytes by component and phase, whether it fits, the fixes. Raises as `plan_rows`."""
    found: dict[str, Any] = {"parameters": plan.parameters, "resident": dict(plan.parts)}
    if plan.run is None:
        return found
    spec = _device(plan, request.device)
    run = plan.run if spec is None else on_device(plan.run, spec)
    memory = run_memory(run)
    found |= {
        "micro_batch_tokens": run.own_step.tokens, "compute": run.step.compute, "components": dict(memory.components),
        "phases": dict(memory.phases), "peak_bytes": memory.peak_bytes, "peak_phase": memory.peak_phase,
        "ranks": run.ranks.count,
        "other_rank_bytes": run_memory(other_rank(run)).peak_bytes if run.ranks.count > 1 else 0,
    }  # fmt: skip
    if request.exact:
        found |= _exact_figures(run, config())
    if spec is None:
        return found
    ladder = None if memory.peak_bytes <= spec.usable_bytes else propose_fixes(run, spec)
    fixes = () if ladder is None else ladder.fixes
    if request.solve:
        found |= _solution_figures(run, spec)
    measured = _used_calibration(plan, request)
    return found | {
        "calibration": None if measured is None else asdict(measured),
        "device": {"name": spec.name, "count": spec.count, "usable_bytes": spec.usable_bytes},
        "fits": ladder is None,
        "largest_micro_batch_tokens": largest_micro_batch(run, spec),
        "most_concurrent": most_concurrent(run, spec),
        "fixes": [
            {"setting": one.setting, "peak_bytes": one.memory.peak_bytes, "time": one.time, "keeps": one.keeps}
            for one in fixes
        ],
        "enough": None if ladder is None else ladder.enough,
        "missing_bytes": 0 if ladder is None else ladder.missing_bytes,
    }


def _exact(run: RunDimensions, memory: RunMemory, config: "RunConfig") -> str:
    """The step as a tracker counts it, beside the closed form; or the reason why it cannot."""
    clock = SystemClock()
    begin = clock.monotonic_s()
    found, what = _counted_step(run, config)
    if found is None:
        return f"not counted: {what}; the closed form stands"
    off = memory.step.peak / found.working_bytes - 1
    return (
        f"{readable_bytes(found.working_bytes)} at the peak ({found.operation}) of {what}, beyond "
        f"{readable_bytes(found.resident_bytes)} that is there before and after; the closed form says "
        f"{readable_bytes(memory.step.peak)} ({off:+.2%}); counted in {clock.monotonic_s() - begin:.1f} s"
    )


def _exact_figures(run: RunDimensions, config: "RunConfig") -> dict[str, Any]:
    found, what = _counted_step(run, config)
    if found is None:
        return {"exact": None, "why_not_exact": what}
    return {"exact": {"of": what, "resident_bytes": found.resident_bytes, "step_bytes": found.working_bytes}}


def _counted_step(run: RunDimensions, config: "RunConfig") -> "tuple[TrackedStep | None, str]":
    """Memory of the recipe's own update, or of a step on log-probabilities alone; and what was counted, or why nothing
    was."""
    from hone.recipes.recipe_step import recipe_step  # noqa: PLC0415 - torch
    from hone.text.tracked_step import tracked_step, why_not_tracked  # noqa: PLC0415 - torch

    if reason := why_not_tracked(run):
        return None, reason
    own = recipe_step(config, run, clock=SystemClock())
    if own.found is not None:
        return own.found, f"an update of {config.recipe}"
    if run.trained_parameters is not None:
        return None, own.reason
    found = tracked_step(run.shape, run.step, clock=SystemClock())
    return found, f"a step on log-probabilities (not the recipe's own: {own.reason})"


def _solution_figures(run: RunDimensions, spec: DeviceSpec) -> dict[str, Any]:
    search, nearest = search_fit(run, spec), nearest_fit(run, spec)
    solved = {"settings": list(search.settings), "peak_bytes": search.memory.peak_bytes}
    missing = {"missing_bytes": search.missing_bytes, "device": nearest.device, "model": nearest.model}
    return {"solution": solved | (missing if search.missing_bytes else {"missing_bytes": 0})}


def _device(plan: MemoryPlan, device: str) -> DeviceSpec | None:
    if device:
        return _enough_devices(find_device(device, cpu_bytes=memory_limit_bytes() or 0), plan, device)
    size = device_memory_bytes(plan.device)
    if size is None:
        return None
    if plan.device == "cpu":
        measured = known_calibration()
        return cpu_device(size) if measured is None else calibrated(cpu_device(size), measured)
    return DeviceSpec(
        name=plan.device, memory_bytes=size, bfloat16_flops=0.0, float32_flops=0.0, bandwidth_bytes=0.0,
    )  # fmt: skip


def _enough_devices(spec: DeviceSpec, plan: MemoryPlan, asked: str) -> DeviceSpec:
    """The device, once for each rank if it is a GPU. Raises ConfigError where fewer were asked about."""
    ranks = 1 if plan.run is None or not spec.is_gpu else plan.run.ranks.count
    if 1 < spec.count < ranks:
        raise ConfigError(
            f"--device {asked} with run.ranks = {ranks}: a rank takes a GPU of its own, and these are {spec.count}; "
            f"ask about {spec.name}x{ranks}, or lower run.ranks"
        )
    return replace(spec, count=max(spec.count, ranks))


def _used_calibration(plan: MemoryPlan, request: MemoryRequest) -> MachineCalibration | None:
    """The measured figures of this machine, where the plan is for its CPU."""
    return known_calibration() if plan.device == "cpu" and not request.device else None


def _described(spec: DeviceSpec) -> str:
    count = f"{spec.count} x " if spec.count > 1 else ""
    return f"{count}{spec.name} ({readable_bytes(spec.memory_bytes)}, {readable_bytes(spec.usable_bytes)} usable)"


def _peak(run: RunDimensions, memory: RunMemory) -> str:
    where = _MOMENTS[memory.step.moment] if memory.peak_phase == "learn" else "keys, values and logits"
    saved = saved_per_token(run.shape.part(run.own_step.tensor), run.step)
    return (
        f"{readable_bytes(memory.peak_bytes)} in {memory.peak_phase} ({where}); most of it is {memory.largest}; "
        f"a layer keeps {saved:,} bytes a token"
    )


def _networks(run: RunDimensions) -> str:
    """The memory of a run's networks, as `MemoryPlan.rows` has it for the run's own device."""
    engine = (
        {} if run.generation is None else {"engine's weights": run_memory(run).components.get("engine's weights", 0)}
    )
    parts = {name: size for name, size in {**resident_parts(run), **engine}.items() if size}
    named = ", ".join(f"{name} {readable_bytes(size)}" for name, size in parts.items())
    return f"{readable_bytes(sum(parts.values()))}: {named}"


def _rank_rows(run: RunDimensions) -> dict[str, str]:
    """Memory of the ranks but the driver."""
    ranks = run.ranks
    if ranks.count == 1:
        return {}
    other = run_memory(other_rank(run))
    place = "in the same memory, and counted above" if ranks.beside else "each in a memory of its own"
    share, peak = f"a share of {1 / ranks.count:.3g} of the weights", readable_bytes(other.peak_bytes)
    return {"other ranks": f"{ranks.count - 1} with {share} and {peak} in {other.peak_phase}, {place}"}


def _fits(run: RunDimensions, memory: RunMemory, spec: DeviceSpec) -> str:
    if memory.peak_bytes > spec.usable_bytes:
        return f"no: {readable_bytes(memory.peak_bytes - spec.usable_bytes)} too much"
    text = f"yes; micro-batches of up to {largest_micro_batch(run, spec):,} tokens"
    return text if run.generation is None else f"{text}, up to {most_concurrent(run, spec):,} answers at a time"


def _fix_rows(run: RunDimensions, memory: RunMemory, spec: DeviceSpec) -> Iterator[str]:
    if memory.peak_bytes <= spec.usable_bytes:
        return
    ladder: FixLadder = propose_fixes(run, spec)
    for place, fix in enumerate(ladder.fixes):
        yield _described_fix(fix) + ("  <- enough" if place == ladder.enough else "")
    if ladder.missing_bytes:
        yield f"none of these is enough: {readable_bytes(ladder.missing_bytes)} are missing{_nearest(run, spec)}"


def _described_fix(fix: MemoryFix) -> str:
    kept = {"bits": "same bits", "rounding": "equal up to rounding", "algorithm": "another run"}[fix.keeps]
    name = f"{fix.setting}: " if fix.setting else ""
    return f"{name}{fix.words}, peak {readable_bytes(fix.memory.peak_bytes)}, time {fix.time}, {kept}"


def _nearest(run: RunDimensions, spec: DeviceSpec) -> str:
    """What comes closest to a run that does not fit: a larger device, a smaller model."""
    nearest = nearest_fit(run, spec)
    device = [f"the smallest device that holds it is {nearest.device}"] if nearest.device else []
    model = [f"the largest published model that fits here is {nearest.model}"] if nearest.model else []
    found = device + model
    return f"; {', and '.join(found)}" if found else "; take a smaller model"


def _solution_rows(run: RunDimensions, spec: DeviceSpec, request: MemoryRequest, *, device: str) -> dict[str, str]:
    """Rows of a search: the changes to make, the command, and what is only proposed."""
    found: FitSearch = search_fit(run, spec)
    rows = {f"change {number}": _described_fix(fix) for number, fix in enumerate(found.chosen, start=1)}
    if found.missing_bytes:
        rows["solution"] = (
            f"none: with every change that keeps the run the peak is {readable_bytes(found.memory.peak_bytes)}, "
            f"{readable_bytes(found.missing_bytes)} too much{_nearest(run, spec)}"
        )
    elif not found.chosen:
        rows["solution"] = "nothing to change: it fits"
    else:
        settings = (*found.settings, *(["run.device=cuda"] if spec.is_gpu and device == "cpu" else []))
        rows["solution"] = f"peak {readable_bytes(found.memory.peak_bytes)}: {request.command(settings)}"
    proposed = {f"only proposed {number}": _described_fix(fix) for number, fix in enumerate(found.proposed, start=1)}
    return rows | proposed


def _times(run: RunDimensions, spec: DeviceSpec) -> dict[str, str]:
    """Least seconds of a step on a device whose rates are known."""
    answers = 0 if run.generation is None else run.generation.concurrent
    found = {
        f"least time, {run.step.tokens:,} tokens learnt": learning_time(run, spec, run.step.tokens),
        f"least time, {answers:,} answers": generation_time(run, spec, answers),
    }
    return {name: f"{time.seconds:.3g} s, set by {time.bound}" for name, time in found.items() if time is not None}
