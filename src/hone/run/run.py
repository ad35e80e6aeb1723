"""One run from config to finished folder: build, lock, restore, train, save, report.

Belongs here: the life of a run. Does not: what a step is (`loop.py`), what is written when (`reporter.py`).
"""

import contextlib
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hone import __version__
from hone.core.clock import Clock, SystemClock
from hone.core.config import ConfigSetting
from hone.core.errors import (
    ConfigError,
    DataError,
    DivergedError,
    HoneError,
    InterruptedRun,
    LostRankError,
    LostResourceError,
    ResourceError,
    UserCodeError,
)
from hone.core.out_of_memory import memory_errors
from hone.core.state import State, integer, substate
from hone.core.strict_json import Json
from hone.native.build import keep_freed_memory
from hone.run.alarms import AlarmWatch
from hone.run.callbacks import (
    NO_CALLBACKS,
    HangupSafeDisplay,
    ProgressDisplay,
    RunCallbacks,
    StoppedByCallback,
    StopRequest,
    load_callbacks,
    stop_on_signals,
)
from hone.run.job import RunConfig, TrainingJob
from hone.run.loop import train
from hone.run.machine import MachineReader, MemoryWatch
from hone.run.memory_plan import MemoryPlan, planned_words
from hone.run.report.run_page import write_report
from hone.run.report.timeline import step_timeline
from hone.run.report.timing_section import bottleneck_line
from hone.run.reporter import RunReporter, Stopwatch, timed
from hone.run.resume import (
    NO_CONSENT,
    ResumeConsent,
    allowed_changes,
    code_fingerprints,
    ranks_note,
    refuse_fewer_steps,
    steps_note,
)
from hone.run.store.checkpoints import CheckpointFolder, step_name
from hone.run.store.durable import CHAOS_VARIABLE, EVENTS
from hone.run.store.evaluations import best_step, read_evaluations, step_scores
from hone.run.store.folder import RunFolder, check_run, create_run, resume_run
from hone.run.store.histograms import HISTOGRAMS, HistogramLog
from hone.run.store.manifest import RunMetadata, config_hash
from hone.run.store.metrics import MetricColumns, MetricsWriter, open_metrics, read_metrics, tail_metrics
from hone.run.store.records import (
    CERTIFICATE,
    MEMORY,
    SPEED,
    GradientCertificate,
    MatmulRate,
    memory_line,
    read_certificate,
    speed_line,
    update_flops_per_s,
    write_certificate,
)
from hone.run.store.rollouts import remove_after

if TYPE_CHECKING:
    from hone.run.trackers import EndState
    from hone.run.tracking import RunTracking

# -------------------------------------------------------------------------------------------------------------- summary


def closing_lines(folder: RunFolder, measure_matmuls: Callable[[Clock], MatmulRate] | None, clock: Clock) -> list[str]:
    """Lines for a person. Where work was counted, the machine's matmul rate is measured (0.1 s) and kept with the run.

    A finished run does not fail for want of them: what went wrong is logged.
    """
    try:
        metrics = read_metrics(folder.metrics_path)
        timeline = step_timeline(metrics)
        lines = [] if timeline is None else [bottleneck_line(timeline, folder.config())]
        if (line := _mismatch_line(metrics)) is not None:
            lines.append(line)
        if measure_matmuls is not None and update_flops_per_s(metrics) is not None:
            rate = measure_matmuls(clock)
            SPEED.write(folder.path, rate)
            lines.append(f"{speed_line(metrics, rate)}.")
    except HoneError as fault:
        folder.log(f"no figures of speed: {fault}", level="WARNING")
        return []
    return lines


def evaluation_lines(folder: RunFolder) -> list[str]:
    """Warnings of a run's last evaluation; and a line that names the best and its checkpoint beside the last one, if
    there are two.

    Of equal scores the latest is the best, as `run.keep_best` keeps it. A damaged file is logged.
    """
    try:
        evaluations, _ = read_evaluations(folder.path)
    except HoneError as fault:
        folder.log(f"no best evaluation: {fault}", level="WARNING")
        return []
    warnings = [f"warning: {line}" for line in (evaluations[-1].warnings if evaluations else ())]
    scores = step_scores(evaluations)
    if len(scores) < 2:
        return warnings
    last, best = max(scores), best_step(scores)
    summary = f"best of {len(scores)} evaluations: {scores[best]:.5g} at step {best}"
    if best == last:
        return [*warnings, f"{summary}, the last."]
    place = folder.checkpoints_folder / step_name(best)
    kept = f"kept in {place}" if place.is_dir() else "not kept (run.keep_best = 1 keeps it)"
    return [*warnings, f"{summary}, {kept}; the last policy, of step {last}, scores {scores[last]:.5g}."]


def _mismatch_line(metrics: MetricColumns) -> str | None:
    """A line on how far the answers' policy was from the trainer's, of a run that corrects for it; None otherwise."""
    divergence, above = metrics.values.get("mismatch/k3_nats"), metrics.values.get("mismatch/ratio_above_cap")
    if divergence is None or above is None or not np.isfinite(divergence).any():
        return None
    mean, worst = np.nanmean(divergence), np.nanmax(divergence)
    return (
        f"answers' policy against the trainer's: KL {mean:.2g} nats a token, {worst:.2g} in the worst step; "
        f"{np.nanmean(above):.2%} of the tokens beyond the correction's cap."
    )


# ------------------------------------------------------------------------------------------------------------------ run


MAX_RESTARTS = 3
"""Starts of all ranks after the loss of one; a further loss ends the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Request for a run: recipe, config, origins of its values, and folder."""

    config: RunConfig
    settings: Mapping[str, ConfigSetting]
    """Every dotted key of the config with its value and origin."""
    build: Callable[[RunConfig], TrainingJob[Any]]
    root: Path
    """The folder of all runs."""
    resume: bool = False
    consent: ResumeConsent = NO_CONSENT
    """Changes that a resume accepts."""
    certify: Callable[[TrainingJob[Any], RunConfig, str], GradientCertificate | None] | None = None
    """Job, its config and the config's hash -> the certificate of the loss; None: the loss is not examined."""
    memory: MemoryPlan | None = None
    """Planned memory, to stand beside the measured one."""
    callbacks: RunCallbacks = NO_CALLBACKS
    """Called after steps, evaluations and checkpoints; one that returns False ends the run early."""
    notes: Sequence[str] = ()
    """Notes for the user on how this run came about."""


def run(request: RunRequest, *, progress: ProgressDisplay, clock: Clock | None = None) -> RunFolder:
    """Carry out a run and return its folder, unlocked. After the loss of a rank it goes on from the last checkpoint, at
    most `MAX_RESTARTS` times.

    Raises HoneError: data and resource faults before anything is written; DivergedError with a saved bundle;
    InterruptedRun after a signal, with a checkpoint.
    """
    EVENTS.arm(os.environ.pop(CHAOS_VARIABLE, ""))
    for restart in range(1, MAX_RESTARTS + 1):
        try:
            return _run_once(request, progress, clock)
        except LostRankError as fault:
            begun = (request.root / request.config.name / "manifest.json").is_file()
            note = f"{fault}; all ranks start again, from the last checkpoint ({restart} of {MAX_RESTARTS})"
            progress.note(note)
            request = replace(request, resume=begun, notes=[*request.notes, note])
    return _run_once(request, progress, clock)


def _run_once(request: RunRequest, progress: ProgressDisplay, clock: Clock | None) -> RunFolder:
    """Carry out a run until it ends or a rank is lost."""
    clock = clock or SystemClock()
    config, progress = request.config, HangupSafeDisplay(progress)
    if config.run.callbacks:
        request = replace(request, callbacks=load_callbacks(config.run.callbacks, request.callbacks))
    prepare_device(config)
    code = code_fingerprints(request.settings)
    allowed = allowed_changes(request.consent, request.settings)
    check_run(request.root, config.name, config=request.settings, code=code, resume=request.resume, allowed=allowed)
    if request.resume:
        checkpoints = CheckpointFolder(folder=request.root / config.name / "checkpoints")
        refuse_fewer_steps(checkpoints, config.steps, config.name)
    settings = {key: setting.value for key, setting in request.settings.items()}
    memory = MemoryWatch.begin(config.run.device)
    with memory_errors(settings, partial(planned_words, request.memory)):
        job = request.build(config)
    with contextlib.ExitStack() as stack:
        stack.callback(job.close)
        facts = RunMetadata(
            hone_version=__version__,
            dataset_fingerprint=job.dataset_fingerprint,
            recipe=config.recipe,
            machine=f"{platform.machine()}, {config.run.threads} threads, {config.run.device}",
            versions={"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
            code=code,
        )
        with (
            _open_folder(request, facts, clock, _checkpoints_bytes(job, config)) as folder,
            stop_on_signals(progress.note) as stop,
            memory_errors(settings, partial(planned_words, request.memory)),
        ):
            job.write_protect(folder.path)
            job.open_folder(folder.path)
            _certify(request, job, folder, progress)
            machine = MachineReader.of_run(folder.path, clock, memory, request.memory)
            folder.log(_train(request, job, facts, folder, progress, stop, machine))
            use = memory.used(request.memory)
            MEMORY.write(folder.path, use)
            speed = closing_lines(folder, job.measure_matmuls, clock)
            for line in [*evaluation_lines(folder), *speed, *job.closing_lines(), f"{memory_line(use)}."]:
                folder.log(line)
                progress.note(line)
            write_report(folder.path)
        return folder


def prepare_device(config: RunConfig) -> None:
    """Threads and device, before any tensor is made. Raises ResourceError when the device is not there."""
    device = config.run.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ResourceError(f'run.device = "{device}": no CUDA device here (only cpu); set run.device = "cpu"')
    if device != "cpu" and not device.startswith("cuda"):
        raise ResourceError(f'run.device = "{device}" is not known; use "cpu", "cuda" or "cuda:0"')
    torch.set_num_threads(config.run.threads)
    keep_freed_memory()


def _checkpoints_bytes(job: TrainingJob[Any], config: RunConfig) -> int:
    """Bytes of a run's checkpoints: weights and two moments each, and one more while it is written."""
    policy = job.recipe.learner.policy
    if not isinstance(policy, torch.nn.Module):
        return 0
    weights = sum(parameter.numel() * parameter.element_size() for parameter in policy.parameters())
    return 3 * weights * (config.run.keep_last + config.run.keep_best + 1)


@contextlib.contextmanager
def _open_folder(order: RunRequest, facts: RunMetadata, clock: Clock, need_bytes: int) -> Iterator[RunFolder]:
    name = order.config.name
    if order.resume:
        folder = resume_run(
            order.root,
            name,
            config=order.settings,
            metadata=facts,
            clock=clock,
            allowed=allowed_changes(order.consent, order.settings),
        )
    else:
        folder = create_run(order.root, name, config=order.settings, metadata=facts, clock=clock, need_bytes=need_bytes)
    try:
        yield folder
    except HoneError:
        if not order.resume:
            folder.discard_unused()
        raise
    finally:
        folder.close()


def _has_certificate(folder: RunFolder) -> bool:
    try:
        return read_certificate(folder.path) is not None
    except DataError as fault:
        folder.log(f"{fault}; it is made anew", level="WARNING")
        return False


def _certify(order: RunRequest, job: TrainingJob[Any], folder: RunFolder, progress: ProgressDisplay) -> None:
    """Keep with the run what its loss does when a batch is cut up; a loss that fails is told of, and trained by.

    A resume makes up for a certificate that is missing or damaged.
    """
    if order.certify is None or not order.config.run.certify or (order.resume and _has_certificate(folder)):
        return
    try:
        kept = order.certify(job, order.config, config_hash(order.settings))
    except HoneError as fault:
        folder.log(f"no certificate of the loss: {fault}", level="WARNING")
        return
    if kept is None:
        return
    write_certificate(folder.path, kept)
    folder.log(kept.summary(), level="INFO" if kept.passed else "WARNING")
    if not kept.passed:
        progress.note(f"{kept.summary()}; see {folder.path / CERTIFICATE}")


def _train(
    order: RunRequest,
    job: TrainingJob[Any],
    facts: RunMetadata,
    folder: RunFolder,
    progress: ProgressDisplay,
    stop: StopRequest,
    machine: MachineReader,
) -> str:
    """Train from the beginning or from the newest checkpoint; returns how it ended."""
    config, clock = order.config, machine.clock
    checkpoints = folder.checkpoints(keep_last=config.run.keep_last, keep_best=config.run.keep_best)
    state, done, notes = _initial_state(order, job, checkpoints)
    EVENTS.reach(done)
    metrics = _open_records(order, facts, folder, done, notes, progress)
    watch = Stopwatch(clock)
    reporter = RunReporter(
        job=job,
        folder=folder,
        checkpoints=checkpoints,
        metrics=metrics,
        settings=config.run,
        steps=config.steps,
        progress=progress,
        stop=stop,
        stopwatch=watch,
        clock=clock,
        callbacks=order.callbacks,
        alarms=AlarmWatch(config.alarms, -(-config.steps // config.run.log_every)),
        tracking=_tracking(config, folder),
        machine=machine,
        saved_step=done,
        last_step=done,
    )
    if state is not None:
        reporter.restore(substate(state, "report"))
        for step, line in tail_metrics(metrics.path, 0)[0]:  # those after the checkpoint are cut
            reporter.alarms.see(step, line)
        if job.survivorship is not None and "survivorship" in state:  # checkpoints of earlier versions have none
            job.survivorship.restore(substate(state, "survivorship"))
    progress.start(config.steps, f"{config.name} ({config.recipe})")
    ending: "EndState" = "failed"
    try:
        how = _run_steps(reporter, watch, first_step=done + 1, seed=config.seed)
        ending = "finished" if reporter.last_step >= reporter.steps else "stopped"
    except InterruptedRun:
        ending = "stopped"
        raise
    else:
        return how
    finally:
        progress.close()
        if (cause := reporter.alarms.diagnosis) is not None:
            progress.note(f"{cause.sentence}. To try: {cause.advice}")
        metrics.close()
        for note in reporter.tracking.close(ending) if reporter.tracking is not None else []:
            folder.log(note, level="WARNING")
            progress.note(note)


def _tracking(config: RunConfig, folder: RunFolder) -> "RunTracking | None":
    if not config.track:
        return None
    from hone.run.tracking import RunTracking  # noqa: PLC0415 - most runs have no tracker

    return RunTracking(folder.path, config.track)


def _run_steps(reporter: RunReporter, watch: Stopwatch, *, first_step: int, seed: int) -> str:
    """Run the training loop; returns how it ended. A step that fails loses nothing that is done."""
    job, folder = reporter.job, reporter.folder
    try:
        try:
            train(timed(job.recipe, watch), steps=reporter.steps, callback=reporter, first_step=first_step)
        finally:
            with contextlib.suppress(ResourceError):  # the failure of the run itself is what counts
                reporter.append_lines()
        reporter.report_learning()
        folder.events.append(reporter.steps, "finish", f"finished step {reporter.steps}")
    except StoppedByCallback as stopped:
        return str(stopped)
    except InterruptedRun:
        raise
    except DivergedError as fault:
        place = _record_failure(reporter, watch, fault, seed)
        look = f"hone debug {folder.path} names the rows" if place is not None else ""
        words = f"the batch and the weights are in {place}; {look}" if place is not None else ""
        raise DivergedError(*fault.messages, *([words] if words else [])) from fault
    except LostResourceError as fault:
        reporter.report_notices()
        folder.events.append(reporter.last_step, "failure", str(fault), {"error": type(fault).__name__})
        if reporter.last_step:
            reporter.save(reporter.last_step)  # whole but for the running episodes, which begin anew
        raise
    except LostRankError as fault:  # all ranks start again
        folder.events.append(reporter.last_step, "failure", str(fault), {"error": type(fault).__name__})
        raise
    except Exception as fault:
        for message in fault.messages if isinstance(fault, UserCodeError) else []:
            folder.log(message, level="ERROR")  # the answers that could not be scored are among them
        _record_failure(reporter, watch, fault, seed)
        raise
    return f"finished step {reporter.steps}"


def _record_failure(reporter: RunReporter, watch: Stopwatch, fault: Exception, seed: int) -> Path | None:
    """Write the capsule and the event of a failure; returns the capsule's folder. The run ends with the failure itself,
    also where the disk takes no capsule."""
    from hone.run.capsule import save_capsule  # noqa: PLC0415 - most runs do not fail

    folder, step = reporter.folder, reporter.last_step + 1
    words = fault.messages[0] if isinstance(fault, HoneError) else f"{type(fault).__name__}: {fault}"
    place = None
    try:
        place = save_capsule(reporter.job, folder, watch, fault, step=step, seed=seed)
        kind = "refused_update" if isinstance(fault, DivergedError) else "failure"
        error: dict[str, Json] = {"error": type(fault).__name__, "capsule": "" if place is None else place.name}
        folder.events.append(reporter.last_step, kind, f"step {step}: {words}", error)
    except ResourceError as disk:
        reporter.progress.note(f"no capsule of the failure: {disk}")
    return place


def _open_records(
    order: RunRequest, facts: RunMetadata, folder: RunFolder, done: int, notes: list[str], progress: ProgressDisplay
) -> MetricsWriter:
    """Record the changes of a resume and open the metrics after step `done`; `notes` and those of both are shown."""
    if order.resume:
        changes = folder.record_resume(config=order.settings, metadata=facts, after_step=done)
        folder.events.cut_after(done)
        HistogramLog(path=folder.path / HISTOGRAMS).cut_after(done)
        remove_after(folder.path, done)
        lines = [f"from step {done + 1} on: {change}" for change in changes]
        notes = [*notes, *lines, *ranks_note(changes, order.config)]
    metrics, repairs = open_metrics(folder.metrics_path, after_step=done, every=order.config.run.log_every)
    begun: dict[str, Json] = {"recipe": order.config.recipe, "seed": order.config.seed, "steps": order.config.steps}
    if order.resume:
        folder.events.append(done, "resume", f"goes on after step {done}", {**begun, "notes": [*notes, *repairs]})
    else:
        folder.events.append(0, "start", f"begins {order.config.steps} steps of {order.config.recipe}", begun)
    for note in [*notes, *repairs]:
        folder.log(note, level="WARNING")
        progress.note(note)
    return metrics


def _initial_state(
    order: RunRequest, job: TrainingJob[Any], checkpoints: CheckpointFolder
) -> "tuple[State | None, int, list[str]]":
    """The state to go on from, if any, the steps that are done, and what is to be told."""
    cleaned = checkpoints.remove_leftovers()
    notes = [*order.notes, *job.warnings, *cleaned]
    never_saved = not checkpoints.steps() and (bool(cleaned) or not checkpoints.folder.exists())
    if not order.resume:
        return None, 0, [*notes, *_warm_start(order, job, None)]
    if never_saved:
        if checkpoints.folder.exists():
            checkpoints.folder.rmdir()  # empty now; and should this start be killed as well, the next one finds none
        again = f"no checkpoint in {checkpoints.folder} yet: the run begins again at its first step"
        return None, 0, [*notes, again, *_warm_start(order, job, None)]
    state, done, lines = _restore(order, job, checkpoints)
    return state, done, notes + lines


def _warm_start(order: RunRequest, job: TrainingJob[Any], resumed: Path | None) -> Sequence[str]:
    """Begin with the weights that `run.init` names; lines for the log. Raises ConfigError where the recipe has no such
    start."""
    init = order.config.run.init
    if init is None:
        return []
    if job.warm_start is None:
        raise ConfigError(
            f"run.init = {init.path!r}: recipe {order.config.recipe} does not begin from another run's weights; "
            "networks of control do, and a language model by model.path"
        )
    return job.warm_start(init, order.config, resumed)


def _restore(order: RunRequest, job: TrainingJob[Any], checkpoints: CheckpointFolder) -> tuple[State, int, list[str]]:
    """Put the recipe where the newest whole checkpoint stands; returns its state, its step, and what is to be told."""
    checkpoint = checkpoints.newest_intact()
    notes = [*checkpoint.warnings, f"resuming from {checkpoint.folder}"]
    state = checkpoint.state()
    done = integer(state, "step")
    try:
        job.load_policy(checkpoint.policy_folder)
        _warm_start(order, job, checkpoint.policy_folder)
        job.recipe.learner.restore(substate(state, "learner"))
        job.recipe.source.restore(substate(state, "source"))
    except (DataError, LookupError, TypeError, ValueError, RuntimeError, AssertionError) as fault:
        if not order.consent.config:
            raise
        raise ConfigError(
            f"the state of {checkpoint.folder} does not fit the changed settings: {fault}. Nothing was changed; undo "
            "the changes that concern the size of networks, optimizers or buffers, or start a new run"
        ) from fault
    before = integer(state, "steps") if "steps" in state else order.config.steps
    if before != order.config.steps:
        notes.append(steps_note(before, order.settings))
    notes += checkpoints.set_aside_after(done)
    return state, done, notes
