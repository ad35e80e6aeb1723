"""`hone train` and `hone plan`: from a config file to a run, or to the table of what a run would be.

Belongs here: which config class a file is checked against. What the run does is `hone.train`'s.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.cli.commands import Call
from hone.cli.configs import Resolved, read_document, require_consent, resolve, table_at
from hone.cli.explain import shown
from hone.cli.overrides import Document
from hone.cli.progress import RunProgress
from hone.cli.screen import Screen, is_plain, standard_screen
from hone.cli.toml import KeyPath
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, Faults, did_you_mean
from hone.store.folder import check_name
from hone.train.config import RunConfig
from hone.train.registry import Entry, load_recipe, recipe_names

STAGE = "stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One run to be made: its recipe and its checked config."""

    entry: Entry
    resolved: Resolved[RunConfig]


def run(call: Call) -> int:
    """Check everything; then train, or only say what would be trained."""
    screen = standard_screen()
    if call.text("name"):
        check_name(call.text("name"))
    document = read_document(call.text("file"), [*call.overrides, *_asked(call)])
    stages = stages_of(document)
    warnings = [warning for stage in stages for warning in stage.resolved.warnings]
    require_consent(warnings, yes=call.switch("yes"))
    for stage in stages:
        show_plan(screen, stage)
    if call.command == "plan" or call.switch("dry_run"):
        return 0
    carry_out(stages, root=Path(call.text("runs")), resume=call.switch("resume"), screen=screen)
    return 0


def _asked(call: Call) -> list[str]:
    """Options that are short for a key of the config."""
    keys = {"name": call.text("name"), "run.device": call.text("device")}
    return [f'{key}="{value}"' for key, value in keys.items() if value]


def stages_of(document: Document) -> list[Stage]:
    """The runs that a file asks for: one, or one for each `[[stage]]`.

    Raises ConfigError with the faults of all of them.
    """
    stages = document.values.get(STAGE)
    places: list[KeyPath] = [(STAGE, index) for index in range(len(stages))] if isinstance(stages, list) else [()]
    faults = Faults(ConfigError)
    found: list[Stage] = []
    if places != [()]:
        faults.extend(
            f"unknown key {key} in {document.source((key,))}: beside [[stage]] tables a file holds `name` only"
            for key in document.values
            if key not in (STAGE, "name")
        )
    for place in places:
        try:
            found.append(_stage(document, place))
        except ConfigError as error:
            faults.extend(error.messages)
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
    """A run without a name is called like its file, a stage like the pipeline and its recipe."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(document.name).stem).strip("-") or "run"
    whole = document.values.get("name", stem)
    name = f"{whole}-{recipe}" if place else stem
    document.put((*place, "name"), name, source="the file's name")


def show_plan(screen: Screen, stage: Stage) -> None:
    """The settings that are not defaults, with where they came from, and what they come to."""
    config = stage.resolved.config
    screen.title(f"{config.name}: {config.recipe} ({stage.entry.source})")
    screen.rows([(key, shown(item.value), item.origin) for key, item in stage.resolved.chosen().items()])
    derived = stage.entry.derive(config)
    if derived:
        screen.line()
        screen.rows(list(derived.items()))
    screen.line()


def carry_out(stages: Sequence[Stage], *, root: Path, resume: bool, screen: Screen) -> None:
    """Run one after the other; each ends with its folder complete."""
    from hone.train import run as driver  # noqa: PLC0415 - torch: not needed to refuse a config

    for stage in stages:
        resolved = stage.resolved
        order = driver.Order(
            config=resolved.config, settings=resolved.settings(), build=stage.entry.build, root=root, resume=resume
        )
        progress = RunProgress(console=screen.console, clock=SystemClock(), live=not is_plain(sys.stdout))
        folder = driver.run(order, progress=progress)
        screen.line(f"finished {resolved.config.name}: {folder.path}, report in {folder.report_path}")
