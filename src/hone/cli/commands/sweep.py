"""`hone sweep`: many settings of one config, trained and compared; the best again on fresh seeds.

Belongs here: the checks before the first run, and the screen. `hone.evaluate.sweep` chooses, trains and judges.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hone.cli.commands.sweep_checks import CheckedSweep, check_sweep, read_sweep_call, train_arguments
from hone.cli.options import CommandCall
from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, InterruptedRun
from hone.evaluate.sweep.search import SweepSearch, kept_count
from hone.evaluate.sweep.space import trial_label
from hone.evaluate.sweep.trial_runs import TrialTrainer
from hone.parallel.connect import RayCommands, connect_to_ray
from hone.process.commands import CommandRunner, LocalCommands
from hone.run.report.comparison_page import significance_note
from hone.run.report.sweep_page import latest_scores, score_text, trial_end, write_sweep_page
from hone.run.signals import stop_on_signals
from hone.run.store.folder import check_name
from hone.run.store.lock import RunLock
from hone.run.store.sweep import SWEEP, SweepJournal, SweepRecord, read_sweep

if TYPE_CHECKING:
    from hone.evaluate.sweep.search import SweepResult

PAGE = "sweep.html"


def run(call: CommandCall) -> int:
    """Check everything, then train the trials, or only print the plan; returns the exit code."""
    screen = standard_screen()
    sweep = check_sweep(read_sweep_call(call), yes=call.switch("yes"))
    _show_plan(screen, sweep)
    if call.switch("dry_run"):
        return 0
    folder = Path(call.text("runs")) / sweep.name
    journal = _open_journal(folder, sweep, resume=call.switch("resume"))
    lock = RunLock.acquire(folder / "lock", sweep.name)
    try:
        result = _search(call, screen, sweep, journal)
    finally:
        lock.release()
    labels = {one.number: trial_label(one.number, one.settings) for one in result.record.trials}
    write_sweep_page(folder / PAGE, result.record, labels, searched=result.searched, fresh=result.fresh)
    _show_result(screen, result, labels)
    screen.line(f"finished {sweep.name}: {folder}, page in {folder / PAGE}")
    return 0


def _open_journal(folder: Path, sweep: CheckedSweep, *, resume: bool) -> SweepJournal:
    """The sweep's folder, new or to be resumed. Raises ConfigError where the two do not fit."""
    check_name(folder.name)
    before = read_sweep(folder)
    if before is None:
        if resume:
            raise ConfigError(f"--resume: {folder} has no sweep to go on with; leave --resume out to start one")
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} exists and is not a sweep; give a new --name")
        folder.mkdir(parents=True, exist_ok=True)
        journal = SweepJournal(folder, SweepRecord(plan=sweep.identity))
        journal.write(journal.record)
        return journal
    if not resume:
        raise ConfigError(f"{folder} contains a sweep already; --resume continues it, a new --name starts another")
    free = () if before.rungs else ("metric",)  # nothing was judged yet
    changed = [
        f"{key}: was {before.plan.get(key)!r}, is {sweep.identity.get(key)!r}"
        for key in {**before.plan, **sweep.identity}
        if key not in free and before.plan.get(key) != sweep.identity.get(key)
    ]
    if changed:
        raise ConfigError(*(f"{folder / SWEEP}: {one}" for one in changed), "a new --name starts another sweep")
    return SweepJournal(folder, replace(before, plan=sweep.identity))


def _search(call: CommandCall, screen: TerminalScreen, sweep: CheckedSweep, journal: SweepJournal) -> "SweepResult":
    """Make the runs until the sweep ends. Raises InterruptedRun with the signal's exit code."""
    runner = _runner(sweep)  # before the signals: Ray sets a handler of its own for SIGTERM
    with stop_on_signals(screen.line) as stop:
        trainer = TrialTrainer(
            journal=journal,
            runner=runner,
            arguments=lambda one, begun: train_arguments(call, sweep, one, journal.folder, begun=begun),
            metric=sweep.config.metric,
            retries=sweep.config.retries,
            stopping=lambda: stop.requested,
            note=screen.line,
        )
        search = SweepSearch(sweep.plan, journal, proposer=sweep.proposer, runs=trainer, note=screen.line)
        try:
            return search.run()
        except InterruptedRun as fault:
            raise InterruptedRun(*fault.messages, exit_code=stop.exit_code) from None


def _runner(sweep: CheckedSweep) -> CommandRunner:
    """What makes the runs: processes of this machine, or tasks of a Ray cluster."""
    config = sweep.config
    if config.ray is None:
        return LocalCommands(config.jobs, clock=SystemClock())
    connect_to_ray(config.ray.address)
    return RayCommands(
        config.jobs, address=config.ray.address, folder=Path.cwd(), cpus=config.ray.cpus, gpus=config.ray.gpus
    )


def _show_plan(screen: TerminalScreen, sweep: CheckedSweep) -> None:
    """Print what will be tried, and how many runs that makes."""
    plan, per_batch = sweep.plan, sweep.batch
    screen.title(f"sweep {sweep.name}: {sweep.trials} trials of {sweep.config.config}")
    screen.rows([(f"over.{one.key}", one.describe(), one.source) for one in sweep.keys])
    rows = [("seeds", _numbers(plan.seeds)), ("fresh seeds of the best", _numbers(plan.fresh_seeds))]
    alive = per_batch
    for steps, following in zip(plan.rungs, [*plan.rungs[1:], 0], strict=True):
        rest = kept_count(alive, plan.factor)
        rows.append((f"step {steps}", f"{alive} trials, {rest} go on" if following else f"{alive} trials, the end"))
        alive = rest
    fresh = min(plan.finalists, sweep.trials) * len(plan.fresh_seeds)
    rows.append(
        ("runs", f"{sweep.trials * len(plan.seeds)}, then {fresh} on fresh seeds, {sweep.config.jobs} at a time")
    )
    screen.rows([(name, value, "") for name, value in rows])
    screen.line()


def _numbers(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _show_result(screen: TerminalScreen, result: "SweepResult", labels: dict[int, str]) -> None:
    """Print the trials, best first, and the finalists on fresh seeds."""
    record = result.record
    screen.line()
    screen.title(f"score: {record.metric}")
    rows = [
        [labels[trial.number], str(steps), score_text(score), trial_end(record, trial, steps, score)]
        for trial, steps, score in latest_scores(record)
    ]
    screen.table(("trial", "steps", "IQM (95% interval), search seeds", ""), rows)
    screen.line()
    for one in record.fresh:
        told = one.failure or f"{score_text(one)} on fresh seeds, worst seed {compact_number(one.worst)}"
        screen.line(f"{labels[one.trial]}: {told}")
    for better in () if result.fresh is None else result.fresh.improvements:
        chance = f"{compact_number(better.probability.mean)}{significance_note(better.probability)}"
        screen.line(f"{better.after} scores higher than {better.before} with probability {chance}")
