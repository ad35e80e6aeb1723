"""`hone train` and `hone plan`: from a config file to a run, or to a table of its settings.

Belongs here: the choice of the config class, the settings of a resume that nobody gave (those of the run, not the
defaults of a newer hone), and what follows a finished run: pictures and searches, whose failure is told, and no more.
`hone.run` runs.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.cli.commands.fetch import PREFIX, fetch_model
from hone.cli.commands.seeds import (
    SeedRuns,
    parse_seeds,
    run_in_parallel,
    run_sequentially,
    seed_folder,
    set_seed,
    show_seeds,
)
from hone.cli.memory import missing_devices, require_opened_fit, show_opened
from hone.cli.options import CommandCall, parse_number
from hone.cli.plan_memory import memory_request, missing_bytes
from hone.cli.stages import (
    STAGE,
    apply_shared,
    default_run_name,
    pipeline_name,
    resolve_stage_references,
    stage_reference_faults,
)
from hone.cli.terminal.progress import RunProgress
from hone.cli.terminal.screen import TerminalScreen, is_plain, standard_screen
from hone.config.resolve import (
    ResolvedConfig,
    format_value,
    read_document,
    require_consent,
    resolve,
    table_at,
    with_location,
)
from hone.config.toml import ConfigDocument, KeyPath
from hone.core.clock import SystemClock
from hone.core.config import ConfigSetting
from hone.core.errors import (
    ConfigError,
    DataError,
    ErrorCollector,
    HoneError,
    ResourceError,
    nearest_name,
    run_all_checks,
)
from hone.core.out_of_memory import memory_errors
from hone.process.hub import hub_folder, is_hub_name
from hone.recipes.ranked_run import over_ranks, rank_placement, require_ranks_fit
from hone.recipes.registry import is_recipe, load_recipe, recipe_names, short_name
from hone.run.callbacks import NO_CALLBACKS, RunCallbacks, check_callbacks
from hone.run.job import OpenedRun, RecipeSpec, RunConfig, TrainingJob
from hone.run.memory_plan import layers_plan, require_fit
from hone.run.report.run_page import write_report
from hone.run.resume import NO_CONSENT, ResumeConsent
from hone.run.saved_config import config_tree, is_control
from hone.run.store.animation import write_episode
from hone.run.store.checkpoints import step_name
from hone.run.store.folder import CONFIG, RunFolder, check_name, open_run
from hone.run.store.manifest import read_config
from hone.run.store.records import MAP, SEARCH, GradientCertificate

if TYPE_CHECKING:
    from hone.run.callbacks import ProgressDisplay
    from hone.run.pipeline import PipelineResult
    from hone.run.run import RunRequest

# -------------------------------------------------------------------------------------------------------------- outcome


def _show_outcome(screen: TerminalScreen, outcome: "PipelineResult") -> None:
    """Print the evaluations and comparisons of the stages, and ten answers before and after."""
    screen.line()
    screen.title("on the same held-out questions")
    for one in outcome.evaluations:
        screen.line(f"{one.stage}: {one.mean:.1%} (95% interval {one.low:.1%} to {one.high:.1%}, n = {one.n})")
    for pair in outcome.comparisons:
        screen.line(
            f"{pair.before} -> {pair.after}: {pair.difference:+.1%} (95% interval {pair.low:+.1%} to {pair.high:+.1%}, "
            f"paired p = {pair.p_value:.2g})"
        )
    if outcome.side_by_side:
        screen.line()
        screen.table(
            ("question", "answer", "before", "", "after", ""),
            [
                (
                    one.prompt.strip(),
                    one.reference,
                    one.before,
                    _score_mark(one.before_score),
                    one.after,
                    _score_mark(one.after_score),
                )
                for one in outcome.side_by_side
            ],
        )
    screen.line(f"finished in {outcome.seconds:.0f} s: {outcome.folder}, report in {outcome.folder / 'report.html'}")


def _score_mark(score: float | None) -> str:
    """Mark of a score: right, wrong, or not scored."""
    return "?" if score is None else "ok" if score >= 1 else "x"


# --------------------------------------------------------------------------------------------------------------- finish
# What follows a finished run: pictures of its policy, and the searches of `[evaluation.search]`.
#
# The run itself is complete then: what fails here is told, and no more.


def _write_searches(folder: RunFolder, config: RunConfig, *, progress: "ProgressDisplay") -> None:
    """Run the searches of a finished run's config, if it has any; saved, told, and shown in its report."""
    if not config.has_search():
        return
    from hone.evaluate.checkpoint import search_run  # noqa: PLC0415 - as above

    try:
        record = search_run(folder.path, device=config.run.device)
    except HoneError as fault:
        progress.note(f"no search: {fault}")
        folder.log(f"no search: {fault}", level="WARNING")
        return
    if record is None:
        return
    SEARCH.write(folder.path, record)
    for note in record.notes:
        progress.note(note)
        folder.log(note, level="WARNING")
    write_report(folder.path)


# --------------------------------------------------------------------------------------------------------------- resume


SAVED_DEFAULT = "default of the saved run"
"""Origin of a setting that a resume takes over from its run."""


def _keep_saved_defaults(
    document: ConfigDocument, settings: Mapping[str, Mapping[str, ConfigSetting]], root: Path
) -> list[str]:
    """Set each key of the document that is left to its default to the default that its run in `root` was started with.

    `settings` are the resolved settings by the name of the run or stage. Returns a note for each key that is set.
    """
    folder = root / pipeline_name(document) if STAGE in document.values else root
    notes: list[str] = []
    for index, (name, resolved) in enumerate(settings.items()):
        place: KeyPath = (STAGE, index) if STAGE in document.values else ()
        for key, saved in _changed_defaults(folder / name / CONFIG, resolved).items():
            document.set_value((*place, *key.split(".")), saved.value, source=SAVED_DEFAULT)
            notes.append(
                f"{name}: {key} stays {format_value(saved.value)}, the default when the run was started; it is "
                f"{format_value(resolved[key].value)} now"
            )
    return notes


def _changed_defaults(path: Path, resolved: Mapping[str, ConfigSetting]) -> dict[str, ConfigSetting]:
    """Saved settings that were defaults then, are defaults now, and differ; none if the run's file cannot be read."""
    try:
        saved = read_config(path)
    except DataError:  # the run is missing or damaged, which the resume reports
        return {}
    return {
        key: saved[key]
        for key, item in resolved.items()
        if key in saved
        and item.origin == "default"
        and saved[key].origin in ("default", SAVED_DEFAULT)
        and saved[key].value != item.value
        and not any(part.isdigit() or part == "kind" for part in key.split("."))
    }


# ---------------------------------------------------------------------------------------------------------------- train


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run to start: its recipe and its checked config."""

    spec: RecipeSpec
    resolved: ResolvedConfig[RunConfig]
    opened: OpenedRun | None = None
    """Resources that the check opened, if the run follows."""

    def with_location(self, message: str) -> str:
        """Prefix a message with its location in the config."""
        return with_location(message, self.resolved.origins, self.resolved.settings())


def run(call: CommandCall) -> int:
    """Check everything, then train, or only print the plan; returns the exit code."""
    screen, document = standard_screen(), read_call(call)
    seeds, consent = _seeds(call), _consent(call)
    name = pipeline_name(document)
    if seeds:
        set_seed(document, seeds[0])
    resumed = call.command == "train" and call.switch("resume") and not seeds
    stages = planned_resume(document, Path(call.text("runs"))) if resumed else planned_runs(document)
    require_stage_consent(stages, yes=call.switch("yes"))
    for note in document.notes:
        screen.line(f"note: {note}")
    counted = [stage for stage in stages if stage.resolved.config.steps]
    for stage in counted:
        show_plan(screen, stage)
    planned_only, request = call.command == "plan" or call.switch("dry_run"), memory_request(call)
    with opened_runs(stages, may_exceed=planned_only or call.switch("yes")) as opened:
        for stage in opened[: None if len(counted) < len(stages) else 0]:
            show_plan(screen, stage)
        certified = [(one.opened, one.resolved.config, one.with_location) for one in opened if one.opened is not None]
        absent = missing_devices(stage.resolved.config.run.device for stage in stages)
        for warning in absent:
            screen.line(f"warning: {warning}")
        show_opened(screen, certified, build=planned_only and not absent, request=request)
        if planned_only:
            for note in plan_notes(opened):
                screen.line(note)
            return ResourceError.exit_code if any(missing_bytes(one[0].memory, request) for one in certified) else 0
        if not seeds:
            root, resume = Path(call.text("runs")), call.switch("resume")
            _train_document(document, opened, root=root, resume=resume, screen=screen, consent=consent)
            return 0
    turns = SeedRuns(
        root=Path(call.text("runs")) / name,
        seeds=seeds,
        steps=opened[0].resolved.config.steps,
        resume=call.switch("resume"),
    )
    _train_each_seed(call, document, turns, screen)
    return 0


def read_call(call: CommandCall) -> ConfigDocument:
    """The config that the command line names, with its overrides. Raises ConfigError."""
    if call.text("name"):
        check_name(call.text("name"))
    # overrides from options that abbreviate a config key
    keys = {"name": call.text("name"), "run.device": memory_request(call).own_device}
    return read_document(
        call.text("file"), [*call.overrides, *[f'{key}="{value}"' for key, value in keys.items() if value]]
    )


def require_stage_consent(stages: "Sequence[PlannedRun]", *, yes: bool) -> None:
    """Raise ConfigError for settings that look like a mistake, unless `yes`."""
    require_consent([warning for stage in stages for warning in stage.resolved.warnings], yes=yes)


def planned_resume(document: ConfigDocument, root: Path) -> list[PlannedRun]:
    """`planned_runs` of a resume in `root`: defaults are those that the saved runs were started with, and noted."""
    settings = {stage.resolved.config.name: stage.resolved.settings() for stage in planned_runs(document)}
    document.notes.extend(_keep_saved_defaults(document, settings, root))
    return planned_runs(document)


def _seeds(call: CommandCall) -> list[int]:
    """Seeds of the command line, empty for a single run. Raises ConfigError."""
    if call.command != "train" or not call.text("seeds"):
        if call.command == "train" and call.text("jobs") != "1":
            raise ConfigError("--jobs is the number of seeds that run at the same time; it needs --seeds")
        return []
    parse_number(call.text("jobs"), "--jobs", least=1)
    return parse_seeds(call.text("seeds"))


def _train_each_seed(call: CommandCall, document: ConfigDocument, turns: SeedRuns, screen: TerminalScreen) -> None:
    """Train one run per seed and compare them."""
    check_name(turns.root.name)
    progress = RunProgress(console=screen.console, clock=SystemClock(), live=not is_plain(sys.stdout))

    def make(seed: int, begun: bool) -> None:  # noqa: FBT001 - called by position
        own = deepcopy(document)
        set_seed(own, seed)
        stage = planned_resume(own, turns.root)[0] if begun else planned_runs(own)[0]
        train_one(stage, root=turns.root, resume=begun, progress=progress, consent=_consent(call))

    def command(seed: int, begun: bool) -> list[str]:  # noqa: FBT001 - called by position
        own = [f"name={seed_folder(seed)}", f"seed={seed}"]
        device = [f'run.device="{call.text("device")}"'] if call.text("device") else []
        asked = {
            "--resume": begun,
            "--allow-changed-config": begun and call.switch("allow_changed_config"),
            "--allow-changed-code": begun and call.switch("allow_changed_code"),
            "--yes": call.switch("yes"),
        }
        switches = [flag for flag, is_set in asked.items() if is_set]
        overrides = [one for one in call.overrides if one.removeprefix("--").partition("=")[0] != "name"]
        return ["train", call.text("file"), *overrides, *device, *own, "--runs", str(turns.root), *switches]

    jobs = int(parse_number(call.text("jobs"), "--jobs", least=1))
    if jobs == 1:
        run_sequentially(turns, make, screen)
    else:
        run_in_parallel(turns, command, jobs=jobs, screen=screen)
    show_seeds(screen, turns)


@contextlib.contextmanager
def opened_runs(stages: Sequence[PlannedRun], *, may_exceed: bool = False) -> Iterator[list[PlannedRun]]:
    """The stages with everything that is opened before a model is loaded, until the end of the block.

    Raises HoneError with the faults of all stages at once; one of them is a planned peak above the machine's memory,
    unless the runs `may_exceed` it.
    """
    with contextlib.ExitStack() as stack:

        def open_stage(stage: PlannedRun) -> PlannedRun:
            with _locating_errors(stage):
                settings = {key: setting.value for key, setting in stage.resolved.settings().items()}
                check_callbacks(stage.resolved.config.run.callbacks)
                if stage.resolved.config.track:
                    from hone.run.tracking import check_trackers  # noqa: PLC0415 - most runs have none

                    check_trackers(stage.resolved.config.track)
                require_fit(layers_plan(settings), settings)
                require_ranks_fit(stage.resolved.config)
                opened = stage.resolved.config.open()
                require_opened_fit(opened, settings, may_exceed=may_exceed)
            stack.callback(opened.close)
            return replace(stage, opened=opened, resolved=_with_steps(stage.resolved, opened.config))

        checks = {stage.resolved.config.name: partial(open_stage, stage) for stage in stages}
        yield list(run_all_checks(checks).values())


def _with_steps(resolved: ResolvedConfig[RunConfig], counted: RunConfig | None) -> ResolvedConfig[RunConfig]:
    """A config with the steps that its epochs make, which are then as if they had been given."""
    if counted is None:
        return resolved
    origins = {key: place for key, place in resolved.origins.items() if key != "epochs"}
    epochs = resolved.settings()["epochs"]
    return replace(
        resolved, config=counted, origins={**origins, "steps": f"epochs = {epochs.value:g} in {epochs.origin}"}
    )


@contextlib.contextmanager
def _locating_errors(stage: PlannedRun) -> Iterator[None]:
    """Prefix a recipe's errors with the line of the config that they concern; memory that runs out is one of them."""
    try:
        with memory_errors({key: setting.value for key, setting in stage.resolved.settings().items()}):
            yield
    except HoneError as fault:
        raise type(fault)(*map(stage.with_location, fault.messages)) from fault


def _consent(call: CommandCall) -> ResumeConsent:
    """Changes that the user accepts for a resume. Raises ConfigError for a flag without --resume."""
    if call.command != "train":
        return NO_CONSENT
    consent = ResumeConsent(config=call.switch("allow_changed_config"), code=call.switch("allow_changed_code"))
    if consent != NO_CONSENT and not call.switch("resume"):
        raise ConfigError("--allow-changed-config and --allow-changed-code are for --resume; leave them out")
    return consent


def planned_runs(document: ConfigDocument) -> list[PlannedRun]:
    """Runs that a document describes: one, or one per `[[stage]]`.

    Raises ConfigError with the errors of all of them.
    """
    stages = document.values.get(STAGE)
    if not isinstance(stages, list):
        if absent := stage_reference_faults(document, (), ()):
            raise ConfigError(*absent)
        return [_stage(document, ())]
    faults = ErrorCollector(ConfigError)
    faults.extend(apply_shared(document))
    runs: list[PlannedRun] = []
    for index in range(len(stages)):
        try:
            runs.append(_stage(document, (STAGE, index)))
        except ConfigError as error:
            faults.extend(error.messages)
    names = [stage.resolved.config.name for stage in runs]
    twice = [name for name, count in Counter(names).items() if count > 1]
    faults.extend(f"two stages are called {name}; give each [[stage]] a different name" for name in twice)
    if len(names) == len(stages):
        collecting = {stage.resolved.config.name for stage in runs if stage.spec.collects_answers}
        faults.extend(stage_reference_faults(document, names, collecting))
    faults.raise_if_any()
    return runs


def _stage(document: ConfigDocument, place: KeyPath) -> PlannedRun:
    table = table_at(document, place)
    recipe = table.get("recipe")
    path = (*place, "recipe")
    if not isinstance(recipe, str):
        problem = "is missing" if recipe is None else f"must be a string, got {format_value(recipe)}"
        raise ConfigError(f"recipe in {document.source_of(path)} {problem}; hone list recipes shows all")
    if not is_recipe(recipe):
        close = nearest_name(recipe, recipe_names())
        near = "; hone list recipes shows all" if close is None else f"; did you mean {close}?"
        raise ConfigError(f"recipe = {format_value(recipe)} in {document.source_of(path)} is not known{near}")
    try:
        entry = load_recipe(recipe)
    except HoneError as fault:
        raise type(fault)(*(f"{document.source_of(path)}: {message}" for message in fault.messages)) from fault
    model = table.get("model")
    start = model.get("path") if isinstance(model, dict) else None
    if isinstance(start, str) and start.startswith(PREFIX):
        key = (*place, "model", "path")
        origin = document.source_of(key)
        try:
            document.set_value(key, str(fetch_model(start)), source=origin)
        except HoneError as fault:
            raise type(fault)(*(f"{origin}: {message}" for message in fault.messages)) from fault
    elif isinstance(start, str) and is_hub_name(start):
        with contextlib.suppress(DataError):  # told with the other faults when the run is opened
            pinned, key = f"{start.partition('@')[0]}@{hub_folder(start).name}", (*place, "model", "path")
            document.set_value(key, pinned, source=document.source_of(key))
    if "name" not in table:
        document.set_value(
            (*place, "name"), short_name(recipe) if place else default_run_name(document), source="the file's name"
        )
    return PlannedRun(spec=entry, resolved=resolve(entry.config, document, at=place))


def show_plan(screen: TerminalScreen, stage: PlannedRun) -> None:
    """Print the settings that differ from the defaults with their origin, the recipe's own defaults in the same tables,
    and the derived numbers."""
    config = stage.resolved.config
    screen.title(f"{config.name}: {config.recipe} ({stage.spec.paper})")
    rows = [(key, format_value(item.value), item.origin) for key, item in stage.resolved.non_defaults().items()]
    kept = [
        (key, format_value(item.value), f"default of {config.recipe}")
        for key, item in stage.resolved.recipe_defaults().items()
    ]
    screen.rows([*rows, *kept])
    with _locating_errors(stage):
        derived = {**config.derive(), **rank_placement(config)} if config.steps else {}
    if derived:
        screen.line()
        screen.rows(list(derived.items()))
    screen.line()


def plan_notes(stages: Sequence[PlannedRun]) -> list[str]:
    """What the checks that only a plan makes saw. Raises HoneError."""
    notes: list[str] = []
    for stage in stages:
        with _locating_errors(stage):
            notes += [] if stage.opened is None else stage.opened.plan_checks()
    return notes


def _train_document(
    document: ConfigDocument,
    stages: Sequence[PlannedRun],
    *,
    root: Path,
    resume: bool,
    screen: TerminalScreen,
    consent: ResumeConsent = NO_CONSENT,
) -> None:
    """Run the document's run or stages; each ends with a complete folder."""
    progress = RunProgress(console=screen.console, clock=SystemClock(), live=not is_plain(sys.stdout))
    if STAGE in document.values:
        outcome = train_pipeline(document, stages, root=root, resume=resume, progress=progress, consent=consent)
        _show_outcome(screen, outcome)
        return
    folder = train_one(stages[0], root=root, resume=resume, progress=progress, consent=consent)
    screen.line(f"finished {folder.name}: {folder.path}, report in {folder.report_path}")


def train_one(
    stage: PlannedRun,
    *,
    root: Path,
    resume: bool,
    progress: "ProgressDisplay",
    callbacks: RunCallbacks = NO_CALLBACKS,
    consent: ResumeConsent = NO_CONSENT,
) -> RunFolder:
    """Train one run, from its checked config to its finished folder."""
    from hone.run.run import run as drive  # noqa: PLC0415 - torch: not needed to refuse a config

    with contextlib.ExitStack() as stack:
        stage = _counted(stage, stack)
        request = _run_request(stage, root=root, resume=resume, callbacks=callbacks, consent=consent)
        folder = drive(request, progress=progress)
    # add pictures of the policy and searches to a finished run
    try:
        if write_policy_pictures(folder.path):
            write_report(folder.path)
    except HoneError as fault:
        folder.log(f"no picture of the policy: {fault}", level="WARNING")
    _write_searches(folder, stage.resolved.config, progress=progress)
    return folder


def write_policy_pictures(run: Path) -> list[str]:
    """Write an animation of a control run's newest policy, and a map if its environment is a grid; returns their
    names."""
    checkpoints = open_run(run, clock=SystemClock()).checkpoints() if (run / "checkpoints").is_dir() else None
    if checkpoints is None or not (steps := checkpoints.steps()):
        return []
    # Before the checksums are verified: the checkpoint may have gigabytes.
    if not is_control(checkpoints.folder / step_name(steps[-1]) / "policy"):
        return []
    config = config_tree(run)
    if not any(isinstance(config.get(key), dict) for key in ("env", "finite")):
        return []  # a bandit
    from hone.control.evaluate.policy_maps import grid_layout, policy_map_on  # noqa: PLC0415 - the wing of the run
    from hone.control.evaluate.returns import run_environment  # noqa: PLC0415 - as above
    from hone.control.evaluate.video import record_saved_policy  # noqa: PLC0415 - as above

    newest = checkpoints.newest_policy()
    folder, step = newest.policy_folder, newest.step
    made: list[str] = []
    if isinstance(config.get("env"), dict):
        about, png = record_saved_policy(folder, run_environment(folder, config), seed=0, step=step)
        write_episode(run, about, png)
        made.append("an episode" if png is not None else "the reason why there is no episode")
    try:
        layout = grid_layout(folder, config)
        if layout is not None:
            MAP.write(run, policy_map_on(layout, folder, step=step))
            made.append("a map")
    except DataError as fault:
        open_run(run, clock=SystemClock()).log(f"no map of the policy: {fault}", level="WARNING")
    return made


def _counted(stage: PlannedRun, stack: contextlib.ExitStack) -> PlannedRun:
    """The stage with its number of steps; one that is not known is counted in the data, which stay open."""
    return stage if stage.resolved.config.steps else stack.enter_context(opened_runs([stage]))[0]


def _run_request(
    stage: PlannedRun,
    *,
    root: Path,
    resume: bool,
    callbacks: RunCallbacks = NO_CALLBACKS,
    consent: ResumeConsent = NO_CONSENT,
) -> "RunRequest":
    """Request for `hone.run.run.run`, from a planned run."""
    from hone.run.run import RunRequest  # noqa: PLC0415 - torch: not needed to refuse a config

    resolved, opened = stage.resolved, stage.opened
    build = stage.spec.build if opened is None else opened.build
    return RunRequest(
        config=resolved.config,
        settings=resolved.settings(),
        build=over_ranks(stage.spec, build, resolved.config),
        root=root,
        resume=resume,
        consent=consent,
        certify=_certify,
        memory=None if opened is None else opened.memory,
        callbacks=callbacks,
    )


def _certify(job: TrainingJob[Any], config: RunConfig, config_hash: str) -> GradientCertificate | None:
    """The certificate of a job: only a run that makes one loads the code."""
    from hone.certify.job import certify_job  # noqa: PLC0415 - as above

    return certify_job(job, config, config_hash)


def train_pipeline(
    document: ConfigDocument,
    stages: Sequence[PlannedRun],
    *,
    root: Path,
    resume: bool,
    progress: "ProgressDisplay",
    callbacks: RunCallbacks = NO_CALLBACKS,
    consent: ResumeConsent = NO_CONSENT,
) -> "PipelineResult":
    """Train the stages one after another; a value `stage:NAME` becomes the run folder of stage NAME."""
    from hone.run.pipeline import PipelineStage as Turn  # noqa: PLC0415 - as above
    from hone.run.pipeline import run_pipeline  # noqa: PLC0415

    name = pipeline_name(document)
    folder = root / name
    names = [stage.resolved.config.name for stage in stages]
    waiting = resolve_stage_references(document, folder, names)
    placed: list[PlannedRun] = []
    for place, (stage, checked) in enumerate(zip(planned_runs(document), stages, strict=True)):
        late = place in waiting or not checked.resolved.config.steps
        if late and checked.opened is not None:
            checked.opened.close()  # opened again once the earlier stages are there
        resolved = _with_steps(stage.resolved, None if late or checked.opened is None else checked.opened.config)
        placed.append(replace(stage, resolved=resolved, opened=None if late else checked.opened))

    with contextlib.ExitStack() as stack:

        def turn(stage: PlannedRun) -> Turn:
            config = stage.resolved.config
            begun = (folder / config.name / "manifest.json").is_file()
            return Turn(
                name=config.name,
                make_request=lambda: _run_request(
                    _counted(stage, stack), root=folder, resume=resume and begun, callbacks=callbacks, consent=consent
                ),
            )

        result = run_pipeline(name, [turn(stage) for stage in placed], root=root, resume=resume, progress=progress)
    # The searches of the finished stages, and the pipeline's report with them.
    searched = [stage.resolved.config for stage in placed if stage.resolved.config.has_search()]
    for config in searched:
        _write_searches(open_run(folder / config.name, clock=SystemClock()), config, progress=progress)
    if any((folder / config.name / SEARCH.name).exists() for config in searched):
        write_report(folder)
    return result
