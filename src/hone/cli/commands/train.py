"""`hone train` and `hone plan`: from a config file to a run, or to the table of what a run would be.

Belongs here: which config class a file is checked against. What the run does is `hone.train`'s.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hone.cli.commands.seeds import (
    Turns,
    at_the_same_time,
    folder_of,
    one_after_another,
    parse_seeds,
    seeded,
    show_seeds,
)
from hone.cli.options import Call, number
from hone.cli.stages import STAGE, doubles, pipeline_name, place_stages, spread_shared, stem_of
from hone.cli.terminal.progress import RunProgress
from hone.cli.terminal.screen import Screen, is_plain, standard_screen
from hone.config.explain import shown
from hone.config.overrides import Document
from hone.config.resolve import Resolved, placed, read_document, require_consent, resolve, table_at
from hone.config.toml import KeyPath
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, Faults, HoneError, all_at_once, did_you_mean
from hone.recipes.registry import load_recipe, recipe_names
from hone.report.run_page import write_report
from hone.store.folder import RunFolder, check_name
from hone.train.config import RunConfig
from hone.train.job import Entry

if TYPE_CHECKING:
    from hone.train.runner.pipeline import Outcome
    from hone.train.runner.reporter import Progress
    from hone.train.runner.run import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One run to be made: its recipe and its checked config."""

    entry: Entry
    resolved: Resolved[RunConfig]

    def said(self, message: str) -> str:
        """Led by its place in the config."""
        return placed(message, self.resolved.origins, self.resolved.settings())


def run(call: Call) -> int:
    """Check everything; then train, or only say what would be trained."""
    screen = standard_screen()
    if call.text("name"):
        check_name(call.text("name"))
    document = read_document(call.text("file"), [*call.overrides, *_asked(call)])
    seeds = _seeds(call)
    name = pipeline_name(document)
    if seeds:
        seeded(document, seeds[0])
    stages = stages_of(document)
    warnings = [warning for stage in stages for warning in stage.resolved.warnings]
    require_consent(warnings, yes=call.switch("yes"))
    for stage in stages:
        show_plan(screen, stage)
    for warning in check_data(stages):
        screen.line(f"warning: {warning}")
    if call.command == "plan" or call.switch("dry_run"):
        return 0
    if seeds:
        turns = Turns(
            root=Path(call.text("runs")) / name,
            seeds=seeds,
            steps=stages[0].resolved.config.steps,
            resume=call.switch("resume"),
        )
        carry_out_seeds(call, document, turns, screen)
        return 0
    carry_out(document, stages, root=Path(call.text("runs")), resume=call.switch("resume"), screen=screen)
    return 0


def _seeds(call: Call) -> list[int]:
    """The seeds that are asked for, none for a single run. Raises ConfigError."""
    if call.command != "train" or not call.text("seeds"):
        if call.command == "train" and call.text("jobs") != "1":
            raise ConfigError("--jobs says how many seeds run at the same time; it needs --seeds")
        return []
    number(call.text("jobs"), "--jobs", least=1)
    return parse_seeds(call.text("seeds"))


def carry_out_seeds(call: Call, document: Document, turns: Turns, screen: Screen) -> None:
    """A run for each seed, and what they come to together."""
    check_name(turns.root.name)
    progress = RunProgress(console=screen.console, clock=SystemClock(), live=not is_plain(sys.stdout))

    def make(seed: int, begun: bool) -> None:  # noqa: FBT001 - called by position
        seeded(document, seed)
        train_one(stages_of(document)[0], root=turns.root, resume=begun, progress=progress)

    def command(seed: int, begun: bool) -> list[str]:  # noqa: FBT001 - called by position
        own = [f"name={folder_of(seed)}", f"seed={seed}"]
        device = [f'run.device="{call.text("device")}"'] if call.text("device") else []
        switches = [flag for flag, asked in (("--resume", begun), ("--yes", call.switch("yes"))) if asked]
        overrides = [one for one in call.overrides if one.removeprefix("--").partition("=")[0] != "name"]
        return ["train", call.text("file"), *overrides, *device, *own, "--runs", str(turns.root), *switches]

    jobs = int(number(call.text("jobs"), "--jobs", least=1))
    if jobs == 1:
        one_after_another(turns, make, screen)
    else:
        at_the_same_time(turns, command, jobs=jobs, screen=screen)
    show_seeds(screen, turns)


def check_data(stages: Sequence[Stage]) -> list[str]:
    """Everything that can be found wrong before a model is loaded, of all stages at once; returns warnings."""
    checks = {stage.resolved.config.name: partial(_checked, stage) for stage in stages}
    return [warning for warnings in all_at_once(checks).values() for warning in warnings]


def _checked(stage: Stage) -> list[str]:
    with _placing(stage):
        return [stage.said(warning) for warning in stage.entry.check(stage.resolved.config)]


@contextlib.contextmanager
def _placing(stage: Stage) -> Iterator[None]:
    """Lead what a recipe finds wrong by the line of the config that it is about."""
    try:
        yield
    except HoneError as fault:
        raise type(fault)(*map(stage.said, fault.messages)) from fault


def _asked(call: Call) -> list[str]:
    """Options that are short for a key of the config."""
    keys = {"name": call.text("name"), "run.device": call.text("device")}
    return [f'{key}="{value}"' for key, value in keys.items() if value]


def stages_of(document: Document) -> list[Stage]:
    """The runs that a file asks for: one, or one for each `[[stage]]`.

    Raises ConfigError with the faults of all of them.
    """
    stages = document.values.get(STAGE)
    if not isinstance(stages, list):
        return [_stage(document, ())]
    faults = Faults(ConfigError)
    faults.extend(spread_shared(document))
    found: list[Stage] = []
    for index in range(len(stages)):
        try:
            found.append(_stage(document, (STAGE, index)))
        except ConfigError as error:
            faults.extend(error.messages)
    faults.extend(doubles([stage.resolved.config.name for stage in found]))
    faults.raise_if_any()
    return found


def _stage(document: Document, place: KeyPath) -> Stage:
    table = table_at(document, place)
    recipe = table.get("recipe")
    path = (*place, "recipe")
    if not isinstance(recipe, str):
        what = "is missing" if recipe is None else f"must be a string, got {shown(recipe)}"
        raise ConfigError(f"recipe in {document.source(path)} {what}; known: {', '.join(recipe_names())}")
    if recipe not in recipe_names():
        near = did_you_mean(recipe, recipe_names())
        raise ConfigError(f"recipe = {shown(recipe)} in {document.source(path)} is not known{near}")
    entry = load_recipe(recipe)
    if "name" not in table:
        _name_after_file(document, place, recipe)
    return Stage(entry=entry, resolved=resolve(entry.config, document, at=place))


def _name_after_file(document: Document, place: KeyPath, recipe: str) -> None:
    """A run without a name is called like its file, a stage like its recipe."""
    document.put((*place, "name"), recipe if place else stem_of(document), source="the file's name")


def show_plan(screen: Screen, stage: Stage) -> None:
    """The settings that are not defaults, with where they came from, what stays beside them in the same tables, and
    what they come to."""
    config = stage.resolved.config
    screen.title(f"{config.name}: {config.recipe} ({stage.entry.source})")
    rows = [(key, shown(item.value), item.origin) for key, item in stage.resolved.chosen().items()]
    kept = [(key, shown(item.value), f"default of {config.recipe}") for key, item in stage.resolved.kept().items()]
    screen.rows([*rows, *kept])
    with _placing(stage):
        derived = stage.entry.derive(config)
    if derived:
        screen.line()
        screen.rows(list(derived.items()))
    screen.line()


def carry_out(document: Document, stages: Sequence[Stage], *, root: Path, resume: bool, screen: Screen) -> None:
    """Run what the file asks for; each run ends with its folder complete."""
    progress = RunProgress(console=screen.console, clock=SystemClock(), live=not is_plain(sys.stdout))
    if STAGE in document.values:
        outcome = train_pipeline(document, stages, root=root, resume=resume, progress=progress)
        show_outcome(screen, outcome)
        return
    folder = train_one(stages[0], root=root, resume=resume, progress=progress)
    screen.line(f"finished {folder.name}: {folder.path}, report in {folder.report_path}")


def train_one(stage: Stage, *, root: Path, resume: bool, progress: "Progress") -> RunFolder:
    """One run, from its checked config to its finished folder."""
    from hone.evaluate.pictures import picture  # noqa: PLC0415 - torch: not needed to refuse a config
    from hone.train.runner.run import run as drive  # noqa: PLC0415 - as above

    folder = drive(order_of(stage, root=root, resume=resume), progress=progress)
    try:
        if picture(folder.path):
            write_report(folder.path)
    except HoneError as fault:  # the run itself is whole
        folder.log(f"no picture of the policy: {fault}", level="WARNING")
    return folder


def order_of(stage: Stage, *, root: Path, resume: bool) -> "Order":
    from hone.train.runner.run import Order  # noqa: PLC0415 - as above

    resolved = stage.resolved
    return Order(
        config=resolved.config, settings=resolved.settings(), build=stage.entry.build, root=root, resume=resume
    )


def train_pipeline(
    document: Document, stages: Sequence[Stage], *, root: Path, resume: bool, progress: "Progress"
) -> "Outcome":
    """The stages one after another; a stage's `stage:NAME` is the folder that stage NAME left behind."""
    from hone.train.runner.pipeline import Stage as Turn  # noqa: PLC0415 - as above
    from hone.train.runner.pipeline import run_pipeline  # noqa: PLC0415

    name = pipeline_name(document)
    folder = root / name
    names = [stage.resolved.config.name for stage in stages]
    place_stages(document, folder, names)
    placed = stages_of(document)

    def turn(stage: Stage) -> Turn:
        config = stage.resolved.config
        begun = (folder / config.name / "manifest.json").is_file()
        return Turn(
            name=config.name,
            steps=config.steps,
            order=lambda: order_of(stage, root=folder, resume=resume and begun),
        )

    return run_pipeline(name, [turn(stage) for stage in placed], root=root, resume=resume, progress=progress)


def show_outcome(screen: Screen, outcome: "Outcome") -> None:
    """How the stages compare, and ten answers before and after."""
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
                    mark(one.before_score),
                    one.after,
                    mark(one.after_score),
                )
                for one in outcome.side_by_side
            ],
        )
    screen.line(f"finished in {outcome.seconds:.0f} s: {outcome.folder}, report in {outcome.folder / 'report.html'}")


def mark(score: float | None) -> str:
    """Right, wrong, or not scored."""
    return "?" if score is None else "ok" if score >= 1 else "x"
