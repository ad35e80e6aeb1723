"""`hone sweep`: many settings of one config, trained and compared; the best again on fresh seeds.

Belongs here: the checks of the file and the command line before the first run, and the screen. `hone.evaluate.sweep`
chooses, trains and judges.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hone.cli.options import CommandCall
from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, InterruptedRun
from hone.evaluate.sweep.search import SweepSearch, TrialTrainer, kept_count
from hone.evaluate.sweep.space import trial_label
from hone.parallel.connect import RayCommands, connect_to_ray
from hone.process.commands import CommandRunner, LocalCommands
from hone.run.callbacks import stop_on_signals
from hone.run.report.comparison_page import latest_scores, render_sweep, score_text, significance_note, trial_end
from hone.run.store.comparison import SWEEP, SweepJournal, SweepRecord, read_sweep
from hone.run.store.durable import replace_file
from hone.run.store.folder import RunLock, check_name
from hone.run.store.metrics import metric_catalogue

if TYPE_CHECKING:
    from hone.evaluate.sweep.search import SweepResult
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import cast

from pydantic import JsonValue

from hone.cli.commands.seeds import parse_seeds, seed_folder
from hone.cli.commands.train import opened_runs, planned_runs
from hone.cli.memory import missing_devices
from hone.cli.stages import STAGE
from hone.config.resolve import ResolvedConfig, leaves, read_document, require_consent, resolve
from hone.config.toml import COMMAND_LINE, ConfigDocument, KeyPath, dotted, parse_value
from hone.core.errors import ErrorCollector, ResourceError, run_all_checks
from hone.evaluate.sweep.search import SweepPlan, TrialProposer, TrialRun, make_proposer, rung_steps, uncompared_keys
from hone.evaluate.sweep.space import (
    GridSearch,
    OptunaSearch,
    SweepConfig,
    SweptKey,
    TrialSettings,
    grid,
    grid_size,
    one_at_a_time,
    swept_keys,
)
from hone.run.job import RunConfig
from hone.run.resume import step_schedules

# --------------------------------------------------------------------------------------------------------- sweep checks


MAX_TRIALS = 1000
"""Most combinations of a grid."""
OWN_KEYS = ("name", "seed", "steps")
"""Keys of the runs that a sweep sets itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SweepCall:
    """A sweep as it was asked for: its own document, and that of its runs."""

    config: SweepConfig
    sources: ConfigDocument
    base: ConfigDocument
    overrides: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedSweep:
    """A sweep that may start."""

    name: str
    config: SweepConfig
    keys: Sequence[SweptKey]
    plan: SweepPlan
    proposer: TrialProposer
    trials: int
    """Most trials of the search."""
    batch: int
    """Trials of one batch."""
    overrides: tuple[str, ...]
    identity: Mapping[str, JsonValue]
    """What a resume must not change."""


def _read_sweep_call(call: CommandCall) -> _SweepCall:
    """The sweep that the command line names: a sweep's file, or a config with `--over`. Raises ConfigError."""
    document, stem = read_document(call.text("file")), Path(call.text("file")).stem
    if "config" not in document.values:
        document = ConfigDocument(name="command line", values={"config": call.text("file"), "name": f"{stem}_sweep"})
    faults = ErrorCollector(ConfigError)
    for path, value in _options(call, faults):
        faults.extend(document.set_value(path, value, source=COMMAND_LINE))
    faults.raise_if_any()
    if not document.values.get("over"):
        raise ConfigError(
            f"{call.text('file')} names nothing to try: give --over learner.lr=1e-4,3e-4, or a sweep's file with "
            'config = "run.toml" and a table [over]'
        )
    config = resolve(SweepConfig, document).config
    base = read_document(config.config, call.overrides)
    return _SweepCall(config=config, sources=document, base=base, overrides=call.overrides, name=config.name or stem)


def _options(call: CommandCall, faults: ErrorCollector) -> list[tuple[KeyPath, object]]:
    """Keys of the sweep that options of the command line set."""
    options: list[tuple[KeyPath, object]] = []
    for text in call.texts("over"):
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            faults.add(f"--over {text!r} is not of the form key=value,value: --over learner.lr=1e-4,3e-4")
            continue
        options.append((("over", key), _values(values)))
    texts = {"seeds": call.text("seeds"), "fresh_seeds": call.text("fresh_seeds"), "name": call.text("name")}
    texts |= {"metric": call.text("metric")}
    options += [((key,), text) for key, text in texts.items() if text]
    if call.text("jobs"):
        options.append((("jobs",), parse_value(call.text("jobs"))))
    if call.text("ray"):
        options.append((("ray", "address"), call.text("ray")))
    return options


def _values(text: str) -> list[object]:
    """`1e-4,3e-4`, `[1e-4, 3e-4]` or `fast,slow` as a list."""
    value = parse_value(text if text.startswith("[") else f"[{text}]")
    return list(value) if isinstance(value, list) else [parse_value(part) for part in text.split(",")]


def _check_sweep(asked: _SweepCall, *, yes: bool) -> _CheckedSweep:
    """Check every trial's config, open what the values name, and plan the sweep.

    Raises HoneError with all faults at once; ConfigError for suspicious values without `yes`.
    """
    config = asked.config
    keys = [replace(one, source=asked.sources.source_of(("over", *one.path))) for one in swept_keys(config.over)]
    search, halving = config.search, config.halving
    trials = grid_size(keys) if isinstance(search, GridSearch) else search.trials
    faults = ErrorCollector(ConfigError)
    for check in (
        lambda: _refuse_keys(asked, keys),
        lambda: _seeds(config),
        lambda: _check_trials(asked, keys, _examples(search, keys), yes=yes),
    ):
        try:
            check()
        except ConfigError as fault:
            faults.extend(fault.messages)
    faults.raise_if_any()
    (seeds, fresh), steps = _seeds(config), _steps(asked, keys)
    proposer = make_proposer(search, keys)
    # open what a run opens before its first step, once for every value. Raises HoneError with all faults
    local = asked.config.ray is None

    def open_one(settings: TrialSettings) -> None:
        stages = planned_runs(_trial_document(asked, keys, settings))
        absent = missing_devices([stages[0].resolved.config.run.device]) if local else []
        if absent:
            raise ResourceError(*absent)
        with opened_runs(stages, may_exceed=yes):
            pass

    run_all_checks({str(number): partial(open_one, one) for number, one in enumerate(one_at_a_time(keys))})
    return _CheckedSweep(
        name=asked.name,
        config=config,
        keys=keys,
        plan=SweepPlan(
            seeds=seeds,
            fresh_seeds=fresh,
            rungs=(steps,) if halving is None else rung_steps(steps, first=halving.first_steps, factor=halving.factor),
            factor=1 if halving is None else halving.factor,
            finalists=config.finalists,
        ),
        proposer=proposer,
        trials=trials,
        batch=trials if isinstance(search, GridSearch) else min(search.batch, trials),
        overrides=asked.overrides,
        identity=_identity(asked, seeds, fresh, steps),
    )


def _refuse_keys(asked: _SweepCall, keys: Sequence[SweptKey]) -> None:
    """Raise ConfigError for keys that a sweep cannot try, and for a pipeline."""
    faults = ErrorCollector(ConfigError)
    if STAGE in asked.base.values:
        faults.add(f"{asked.config.config} has [[stage]] tables, and a sweep is over a single run")
    for one in keys:
        if one.key in OWN_KEYS:
            faults.add(f"over.{one.key} in {one.source}: a sweep sets {', '.join(OWN_KEYS)} of its runs itself")
        elif uncompared_keys([one.key]):
            faults.add(
                f"over.{one.key} in {one.source}: runs that differ in it count as one configuration, so they cannot be "
                "compared; sweep each value on its own"
            )
    for key in ("seed", "name"):
        if asked.base.sources.get((key,)) == COMMAND_LINE:
            faults.add(f"{key}=... is set by the sweep itself; use --seeds and --name")
    faults.raise_if_any()


def _seeds(config: SweepConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Seeds of the search and of the final runs. Raises ConfigError where they overlap."""

    def read(given: str | int | list[int]) -> tuple[int, ...]:
        return tuple(parse_seeds(",".join(map(str, [*given, ""])) if isinstance(given, list) else str(given)))

    seeds = read(config.seeds)
    first = max(seeds) + 1
    fresh = tuple(range(first, first + len(seeds))) if config.fresh_seeds is None else read(config.fresh_seeds)
    if both := sorted({*seeds} & {*fresh}):
        raise ConfigError(
            f"fresh_seeds contains {', '.join(map(str, both))} of seeds: a score on seeds that chose the settings is "
            "too good; name other seeds"
        )
    return seeds, fresh


def _examples(search: GridSearch | OptunaSearch, keys: Sequence[SweptKey]) -> Sequence[TrialSettings]:
    """Settings to check: all of a grid; else every value and every end of a range once, and all last ones together.

    Raises ConfigError for a grid over a range, and for one that is too large.
    """
    if not isinstance(search, GridSearch):
        return [*one_at_a_time(keys), {one.key: one.examples()[-1] for one in keys}]
    if grid_size(keys) > MAX_TRIALS:
        raise ConfigError(
            f"over: {grid_size(keys)} combinations are more than {MAX_TRIALS}; try fewer values, or set "
            'search.kind = "optuna"'
        )
    return grid(keys)


def _steps(asked: _SweepCall, keys: Sequence[SweptKey]) -> int:
    """Steps of a run. Raises ConfigError for one whose epochs say them."""
    steps = planned_runs(_trial_document(asked, keys, one_at_a_time(keys)[0]))[0].resolved.config.steps
    if not steps:
        raise ConfigError("epochs: trials are compared, and stopped early, at a number of steps; give steps instead")
    return steps


def _check_trials(asked: _SweepCall, keys: Sequence[SweptKey], trials: Sequence[TrialSettings], *, yes: bool) -> None:
    """Resolve the config of every trial. Raises ConfigError with all faults."""
    messages: dict[str, None] = {}
    warnings: dict[str, None] = {}
    source, metric = asked.sources.source_of(("metric",)), asked.config.metric
    option = f"--metric {metric!r}" if source == COMMAND_LINE else f"metric = {metric!r} in {source}"
    for settings in trials:
        try:
            resolved = planned_runs(_trial_document(asked, keys, settings))[0].resolved
        except ConfigError as fault:
            messages |= dict.fromkeys(fault.messages)
            continue
        warnings |= dict.fromkeys(resolved.warnings)
        messages |= dict.fromkeys(_halving_faults(asked.config, resolved))
        # A recipe of somebody else's may write any metric; the first run that ends shows it.
        if metric and type(resolved.config).__module__.startswith("hone."):
            evaluates = any(key.startswith("evaluation.") for key in resolved.settings())
            messages |= {f"{option} {why}": None for why in metric_catalogue().absence(metric, evaluates=evaluates)}
    if messages:
        raise ConfigError(*messages)
    require_consent(list(warnings), yes=yes)


def _halving_faults(config: SweepConfig, resolved: ResolvedConfig[RunConfig]) -> list[str]:
    """Reasons why a run of this config cannot be trained in parts."""
    if config.halving is None:
        return []
    faults = [
        f"halving trains a run in parts, and the schedule of {one} ends with the run: the parts would be another run; "
        "set a constant one, or leave [halving] out"
        for one in step_schedules(resolved.settings())
    ]
    if config.halving.first_steps >= resolved.config.steps:
        faults.append(
            f"halving.first_steps = {config.halving.first_steps} must be below steps = {resolved.config.steps}"
        )
    return faults


def _trial_document(asked: _SweepCall, keys: Sequence[SweptKey], settings: TrialSettings) -> ConfigDocument:
    """The config of the runs with the settings of one trial. Raises ConfigError for a key without a place."""
    document = deepcopy(asked.base)
    faults = ErrorCollector(ConfigError)
    for one in keys:
        path = tuple(int(part) if part.isdecimal() else part for part in one.key.split("."))
        faults.extend(document.set_value(path, settings[one.key], source=one.source))
    faults.raise_if_any()
    return document


def _identity(asked: _SweepCall, seeds: Sequence[int], fresh: Sequence[int], steps: int) -> dict[str, JsonValue]:
    """What decides the trials and the runs, flat, so that a message can name what changed."""
    config = asked.config.model_dump(mode="json")
    own = {key: config[key] for key in ("over", "search", "halving", "finalists", "metric")}
    base = {f"{asked.config.config}: {dotted(path)}": value for path, value in leaves(asked.base.values)}
    return cast(
        "dict[str, JsonValue]", {**own, "seeds": list(seeds), "fresh_seeds": list(fresh), "steps": steps, **base}
    )


def _train_arguments(call: CommandCall, sweep: _CheckedSweep, run: TrialRun, folder: Path, *, begun: bool) -> list[str]:
    """The command line after `hone` of one run."""
    settings = [f"{key}={toml_text(value)}" for key, value in run.trial.settings.items()]
    own = [f"steps={run.steps}", f"seed={run.seed}", f"name={seed_folder(run.seed)}"]
    switches = [flag for flag, is_set in (("--resume", begun), ("--yes", call.switch("yes"))) if is_set]
    overrides = [one for one in sweep.overrides if one.removeprefix("--").partition("=")[0] != "steps"]
    place = ["--runs", str((folder / run.folder).absolute())]
    return ["train", sweep.config.config, *overrides, *settings, *own, *place, *switches]


def toml_text(value: JsonValue) -> str:
    """A value as TOML on one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {toml_text(inner)}" for key, inner in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml_text, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------------------------------------------------------- sweep


PAGE = "sweep.html"


def run(call: CommandCall) -> int:
    """Check everything, then train the trials, or only print the plan; returns the exit code."""
    screen = standard_screen()
    sweep = _check_sweep(_read_sweep_call(call), yes=call.switch("yes"))
    # print what will be tried, and how many runs that makes
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
    page = render_sweep(result.record, labels, searched=result.searched, fresh=result.fresh)
    replace_file(folder / PAGE, page.encode("utf-8", "replace"))
    _show_result(screen, result, labels)
    screen.line(f"finished {sweep.name}: {folder}, page in {folder / PAGE}")
    return 0


def _open_journal(folder: Path, sweep: _CheckedSweep, *, resume: bool) -> SweepJournal:
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


def _search(call: CommandCall, screen: TerminalScreen, sweep: _CheckedSweep, journal: SweepJournal) -> "SweepResult":
    """Make the runs until the sweep ends. Raises InterruptedRun with the signal's exit code."""
    runner = _runner(sweep)  # before the signals: Ray sets a handler of its own for SIGTERM
    with stop_on_signals(screen.line) as stop:
        trainer = TrialTrainer(
            journal=journal,
            runner=runner,
            arguments=lambda one, begun: _train_arguments(call, sweep, one, journal.folder, begun=begun),
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


def _runner(sweep: _CheckedSweep) -> CommandRunner:
    """What makes the runs: processes of this machine, or tasks of a Ray cluster."""
    config = sweep.config
    if config.ray is None:
        return LocalCommands(config.jobs, clock=SystemClock())
    connect_to_ray(config.ray.address)
    return RayCommands(
        config.jobs, address=config.ray.address, folder=Path.cwd(), cpus=config.ray.cpus, gpus=config.ray.gpus
    )


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
        words = one.failure or f"{score_text(one)} on fresh seeds, worst seed {compact_number(one.worst)}"
        screen.line(f"{labels[one.trial]}: {words}")
    for better in () if result.fresh is None else result.fresh.improvements:
        chance = f"{compact_number(better.probability.mean)}{significance_note(better.probability)}"
        screen.line(f"{better.after} scores higher than {better.before} with probability {chance}")
