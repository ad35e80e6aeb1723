"""Memory of a run at the command line: what is asked about it, and its plan as rows or as JSON values."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hone.cli.calibration import described_calibration, known_calibration
from hone.cli.options import CommandCall, parse_number
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, ErrorCollector
from hone.planner.calibration import MachineCalibration, calibrated
from hone.planner.devices import DeviceSpec, cpu_device, find_device
from hone.planner.fixes import MemoryFix, nearest_fit, propose_fixes, search_fit
from hone.planner.run_memory import (
    RunDimensions,
    RunMemory,
    generation_time,
    largest_micro_batch,
    learning_time,
    most_concurrent,
    network_parts,
    on_device,
    other_rank,
    run_memory,
)
from hone.planner.training_step import saved_per_token
from hone.process.machine_memory import memory_limit_bytes
from hone.run.memory_plan import MemoryPlan, device_memory_bytes, readable_bytes

if TYPE_CHECKING:
    from hone.run.job import RunConfig
    from hone.text.tracked_step import TrackedStep

# -------------------------------------------------------------------------------------------------------------- request


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """Questions of `hone plan` about memory."""

    device: str = ""
    """Device of another machine, by name or file; empty: the run's own."""
    own_device: str = ""
    """`cpu` or `cuda`, given in place of `run.device`."""
    closed: bool = False
    """From the config alone."""
    longest_tokens: int | None = None
    model: str = ""
    """A model in place of the config's."""
    solve: bool = False
    exact: bool = False
    """The step's tensors are counted, too."""
    file: str = ""
    overrides: tuple[str, ...] = ()

    def command(self, settings: Sequence[str]) -> str:
        """The `hone train` of this command line with `settings`, which replace what was given for the same keys."""
        keys = {setting.partition("=")[0] for setting in settings}
        kept = [one for one in self.overrides if one.removeprefix("--").partition("=")[0] not in keys]
        model = [f"model.path={self.model}"] if self.model else []
        return shlex.join(["hone", "train", self.file, *kept, *model, *settings])


def memory_request(call: CommandCall) -> MemoryRequest:
    """The request of a command line. Raises ConfigError with all contradictions at once."""
    device = call.text("device")
    own = device.partition(":")[0] in ("", "cpu", "cuda")
    if call.command != "plan":
        return MemoryRequest(own_device=device)
    faults = ErrorCollector(ConfigError)
    longest = call.text("longest_text")
    if longest and not call.switch("memory"):
        faults.add(f"--longest-text {longest} is for --memory; without it the data are read, and say how long they are")
    if device and call.switch("calibrate"):
        faults.add(f"--calibrate measures the CPU of this machine; leave --device {device} out")
    model = call.text("model")
    if model and not call.switch("memory"):
        faults.add(f"--model {model} is for --memory; set model.path in the config to train it")
    faults.raise_if_any()
    return MemoryRequest(
        device="" if own else device,
        own_device=device if own else "",
        closed=call.switch("memory"),
        longest_tokens=int(parse_number(longest, "--longest-text", least=1)) if longest else None,
        model=model,
        solve=call.switch("solve"),
        exact=call.switch("exact"),
        file=call.text("file"),
        overrides=call.overrides,
    )


# ----------------------------------------------------------------------------------------------------------------- plan


_MOMENTS = {
    "logits": "the backward pass of the logits",
    "norm": "the backward pass of the last norm",
    "layer": "the backward pass of a layer",
    "embedding": "the gradients of the vocabulary",
    "layer end": "the end of a layer's backward pass",
    "layer sent": "a layer's gradients, added up over the ranks",
    "rest sent": "the vocabulary's gradients, added up over the ranks",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacedRun:
    """A planned run on the device that is asked about, or on its own."""

    run: RunDimensions
    memory: RunMemory
    spec: DeviceSpec | None
    """None: nothing is known of the run's device."""
    measured: MachineCalibration | None
    """Measured figures of this machine, where the plan is for its CPU."""


def _placed(plan: MemoryPlan, run: RunDimensions, request: MemoryRequest) -> _PlacedRun:
    """Raises ConfigError for an unknown device."""
    measured, size = None, None if request.device else device_memory_bytes(plan.device)
    if request.device:
        spec = _enough_devices(find_device(request.device, cpu_bytes=memory_limit_bytes() or 0), run, request.device)
    elif size is None:
        return _PlacedRun(run=run, memory=run_memory(run), spec=None, measured=None)
    elif plan.device == "cpu":
        measured = known_calibration()
        spec = cpu_device(size) if measured is None else calibrated(cpu_device(size), measured)
    else:
        spec = DeviceSpec(
            name=plan.device, memory_bytes=size, bfloat16_flops=0.0, float32_flops=0.0, bandwidth_bytes=0.0,
        )  # fmt: skip
    run = on_device(run, spec)
    return _PlacedRun(run=run, memory=run_memory(run), spec=spec, measured=measured)


def missing_bytes(plan: MemoryPlan | None, request: MemoryRequest) -> int:
    """Bytes that a run's planned peak is above the room of its device, or of the one that is asked about; 0 where it
    fits, or one of the two is not known."""
    placed = None if plan is None or plan.run is None else _placed(plan, plan.run, request)
    if placed is None or placed.spec is None:
        return 0
    return max(0, placed.memory.peak_bytes - placed.spec.usable_bytes)


def _enough_devices(spec: DeviceSpec, run: RunDimensions, asked: str) -> DeviceSpec:
    """The device, once for each rank if it is a GPU. Raises ConfigError where fewer were asked about."""
    ranks = run.ranks.count if spec.is_gpu else 1
    if 1 < spec.count < ranks:
        raise ConfigError(
            f"--device {asked} with run.ranks = {ranks}: a rank takes a GPU of its own, and these are {spec.count}; "
            f"ask about {spec.name}x{ranks}, or lower run.ranks"
        )
    return replace(spec, count=max(spec.count, ranks))


def plan_figures(plan: MemoryPlan, request: MemoryRequest, config: "Callable[[], RunConfig]") -> dict[str, Any]:
    """The plan as JSON values: bytes by component and phase, whether it fits, the fixes. Raises as `plan_rows`."""
    figures: dict[str, Any] = {"parameters": plan.parameters, "resident": dict(plan.parts)}
    if plan.run is None:
        return figures
    placed = _placed(plan, plan.run, request)
    run, memory, spec = placed.run, placed.memory, placed.spec
    figures |= {
        "micro_batch_tokens": run.own_step.tokens, "compute": run.step.compute, "components": dict(memory.components),
        "phases": dict(memory.phases), "peak_bytes": memory.peak_bytes, "peak_phase": memory.peak_phase,
        "ranks": run.ranks.count,
        "other_rank_bytes": run_memory(other_rank(run)).peak_bytes if run.ranks.count > 1 else 0,
    }  # fmt: skip
    if request.exact:
        step, what = _counted_step(run, config())
        figures |= {"exact": None, "why_not_exact": what} if step is None else {
            "exact": {"of": what, "resident_bytes": step.resident_bytes, "step_bytes": step.working_bytes}
        }  # fmt: skip
    if spec is None:
        return figures
    ladder = None if memory.peak_bytes <= spec.usable_bytes else propose_fixes(run, spec)
    if request.solve:
        search, nearest = search_fit(run, spec), nearest_fit(run, spec)
        solved = {"settings": list(search.settings), "peak_bytes": search.memory.peak_bytes}
        missing = {"device": nearest.device, "model": nearest.model} if search.missing_bytes else {}
        figures["solution"] = {**solved, "missing_bytes": search.missing_bytes, **missing}
    return figures | {
        "calibration": None if placed.measured is None else asdict(placed.measured),
        "device": {"name": spec.name, "count": spec.count, "usable_bytes": spec.usable_bytes},
        "fits": ladder is None,
        "largest_micro_batch_tokens": largest_micro_batch(run, spec),
        "most_concurrent": most_concurrent(run, spec),
        "fixes": [
            {"setting": one.setting, "peak_bytes": one.memory.peak_bytes, "time": one.time, "keeps": one.keeps}
            for one in (() if ladder is None else ladder.fixes)
        ],
        "enough": None if ladder is None else ladder.enough,
        "missing_bytes": 0 if ladder is None else ladder.missing_bytes,
    }


def plan_rows(plan: MemoryPlan, request: MemoryRequest, config: "Callable[[], RunConfig]") -> dict[str, str]:
    """Rows of a plan on the device that is asked about, or on the run's own; {} for a run that is not planned.
    `config` is asked for `--exact` alone. Raises ConfigError for an unknown device."""
    if plan.run is None:
        return {}
    placed = _placed(plan, plan.run, request)
    run, memory, spec = placed.run, placed.memory, placed.spec
    rows = {} if run is plan.run else {"memory": replace(plan, parts=network_parts(run)).rows()["memory"]}
    where = {
        "generate": "keys, values and logits",
        "save": "the copies that a checkpoint is written from",
        "measure": "an engine of its own, which answers prompts",
        "evaluate": "an engine of its own, which answers held-out prompts",
    }.get(memory.peak_phase, _MOMENTS[memory.step.moment])
    saved = saved_per_token(run.shape.part(run.own_step.tensor), run.step)
    device = ""
    if spec is not None:
        count = f"{spec.count} x " if spec.count > 1 else ""
        sizes = f"{readable_bytes(spec.memory_bytes)}, {readable_bytes(spec.usable_bytes)} usable"
        device = f", on {count}{spec.name} ({sizes})"
    rows |= {
        "memory in closed form": f"{run.own_step.tokens:,} tokens a micro-batch, {run.step.compute} products{device}",
        "components": " | ".join(f"{name} {readable_bytes(size)}" for name, size in memory.components.items()),
        "phases": " | ".join(f"{name} {readable_bytes(size)}" for name, size in memory.phases.items()),
        "peak": f"{readable_bytes(memory.peak_bytes)} in {memory.peak_phase} ({where}); most of it is {memory.largest};"
        f" a layer keeps {saved:,} bytes a token",
        **_rank_rows(run),
    }
    if request.exact:
        rows["exact step"] = _exact(run, memory, config())
    if spec is None:
        return rows
    if placed.measured is not None:
        rows["measured"] = described_calibration(placed.measured)
    fits = memory.peak_bytes <= spec.usable_bytes
    rows["fits"] = f"no: {readable_bytes(memory.peak_bytes - spec.usable_bytes)} too much"
    if fits:
        answers = "" if run.generation is None else f", up to {most_concurrent(run, spec):,} answers at a time"
        rows["fits"] = f"yes; micro-batches of up to {largest_micro_batch(run, spec):,} tokens{answers}"
    if request.solve:
        rows |= _solution_rows(run, spec, request, device=plan.device)
    elif not fits:
        rows |= {f"fix {number}": text for number, text in enumerate(_fix_rows(run, spec), start=1)}
    return rows | _times(run, spec)


def _rank_rows(run: RunDimensions) -> dict[str, str]:
    """Memory of the ranks but the driver."""
    ranks = run.ranks
    if ranks.count == 1:
        return {}
    other = run_memory(other_rank(run))
    place = "in the same memory, and counted above" if ranks.beside else "each in a memory of its own"
    share, peak = f"a share of {1 / ranks.count:.3g} of the weights", readable_bytes(other.peak_bytes)
    return {"other ranks": f"{ranks.count - 1} with {share} and {peak} in {other.peak_phase}, {place}"}


def _exact(run: RunDimensions, memory: RunMemory, config: "RunConfig") -> str:
    """The step as a tracker counts it, beside the closed form; or the reason why it cannot."""
    clock = SystemClock()
    begin = clock.monotonic_s()
    step, what = _counted_step(run, config)
    if step is None:
        return f"not counted: {what}; the closed form stands"
    return (
        f"{readable_bytes(step.working_bytes)} at the peak ({step.operation}) of {what}, beyond "
        f"{readable_bytes(step.resident_bytes)} that is there before and after; the closed form says "
        f"{readable_bytes(memory.step.peak)} ({memory.step.peak / step.working_bytes - 1:+.2%}); counted in "
        f"{clock.monotonic_s() - begin:.1f} s"
    )


def _counted_step(run: RunDimensions, config: "RunConfig") -> "tuple[TrackedStep | None, str]":
    """Memory of the recipe's own update, or of a step on log-probabilities alone; and what was counted, or why nothing
    was."""
    from hone.recipes.recipe_step import recipe_step  # noqa: PLC0415 - torch
    from hone.text.tracked_step import tracked_step, why_not_tracked  # noqa: PLC0415 - torch

    if reason := why_not_tracked(run):
        return None, reason
    own = recipe_step(config, run, clock=SystemClock())
    if own.tracked is not None:
        return own.tracked, f"an update of {config.recipe}"
    if run.trained_parameters is not None:
        return None, own.reason
    step = tracked_step(run.shape, run.step, clock=SystemClock())
    return step, f"a step on log-probabilities (not the recipe's own: {own.reason})"


def _fix_rows(run: RunDimensions, spec: DeviceSpec) -> Iterator[str]:
    ladder = propose_fixes(run, spec)
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
    return f"; {', and '.join(device + model) or 'take a smaller model'}"


def _solution_rows(run: RunDimensions, spec: DeviceSpec, request: MemoryRequest, *, device: str) -> dict[str, str]:
    """Rows of a search: the changes to make, the command, and what is only proposed."""
    search = search_fit(run, spec)
    rows = {f"change {number}": _described_fix(fix) for number, fix in enumerate(search.chosen, start=1)}
    peak = readable_bytes(search.memory.peak_bytes)
    if search.missing_bytes:
        rows["solution"] = (
            f"none: with every change that keeps the run the peak is {peak}, "
            f"{readable_bytes(search.missing_bytes)} too much{_nearest(run, spec)}"
        )
    elif not search.chosen:
        rows["solution"] = "nothing to change: it fits"
    else:
        settings = (*search.settings, *(["run.device=cuda"] if spec.is_gpu and device == "cpu" else []))
        rows["solution"] = f"peak {peak}: {request.command(settings)}"
    return rows | {
        f"only proposed {number}": _described_fix(fix) for number, fix in enumerate(search.proposed, start=1)
    }


def _times(run: RunDimensions, spec: DeviceSpec) -> dict[str, str]:
    """Least seconds of a step on a device whose rates are known."""
    answers = 0 if run.generation is None else run.generation.concurrent
    times = {
        f"least time, {run.step.tokens:,} tokens learnt": learning_time(run, spec, run.step.tokens),
        f"least time, {answers:,} answers": generation_time(run, spec, answers),
    }
    return {name: f"{time.seconds:.3g} s, set by {time.bound}" for name, time in times.items() if time is not None}
