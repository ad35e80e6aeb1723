"""`hone show` and `hone list`: what is there.

Belongs here: laying out what `hone.store` and the recipes say about themselves.
"""

import math
from pathlib import Path

from hone.cli.commands import Call
from hone.cli.explain import shown
from hone.cli.progress import figure
from hone.cli.screen import Screen, standard_screen
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.store.folder import RunFolder, list_runs, open_run
from hone.store.metrics import read_metrics

METRICS_SHOWN = 40


def run(call: Call) -> int:
    screen = standard_screen()
    runs = Path(call.text("runs"))
    if call.command == "show":
        show_run(screen, find_run(call.text("run"), runs), whole=call.switch("config"))
    elif call.text("what") == "recipes":
        list_recipes(screen)
    elif call.text("what") == "runs":
        show_runs(screen, runs)
    else:
        raise ConfigError(
            f"hone list has no {call.text('what')!r}{did_you_mean(call.text('what'), ['recipes', 'runs'])}"
        )
    return 0


def find_run(text: str, runs: Path) -> RunFolder:
    """A run by its folder, or by its name under `runs`. Raises DataError with the nearest name."""
    for path in (Path(text), runs / text):
        if (path / "manifest.json").is_file():
            return open_run(path, clock=SystemClock())
    known = [path.name for path in list_runs(runs)]
    raise DataError(f"no run {text!r} in {runs}{did_you_mean(text, known) or ', which holds no runs'}")


def show_run(screen: Screen, folder: RunFolder, *, whole: bool) -> None:
    """Facts, settings, checkpoints and the last figures of a run."""
    manifest = folder.manifest()
    versions = ", ".join(f"{name} {version}" for name, version in manifest.facts.versions.items())
    steps = folder.checkpoints().steps()
    screen.title(f"{folder.name}: {manifest.facts.recipe}")
    screen.rows(
        [
            ("folder", str(folder.path)),
            ("created", manifest.created_at),
            ("machine", manifest.facts.machine),
            ("versions", f"hone {manifest.facts.hone_version}, {versions}".rstrip(", ")),
            ("checkpoints", ", ".join(str(step) for step in steps) or "none yet"),
            ("report", str(folder.report_path) if folder.report_path.exists() else "not written yet"),
        ]
    )
    screen.line()
    settings = {key: item for key, item in folder.config().items() if whole or item.origin != "default"}
    screen.rows([(key, shown(item.value), item.origin) for key, item in settings.items()])
    screen.line()
    _show_metrics(screen, folder)


def _show_metrics(screen: Screen, folder: RunFolder) -> None:
    columns = read_metrics(folder.metrics_path)
    if not len(columns.steps):
        screen.line("no steps yet")
        return
    rows: list[tuple[str, str, str]] = []
    for name, values in list(columns.values.items())[:METRICS_SHOWN]:
        there = [float(value) for value in values if not math.isnan(value)]
        if there:
            rows.append((name, figure(there[0]), figure(there[-1])))
    screen.table(("metric", "first", f"last (step {int(columns.steps[-1])})"), rows)
    left_out = len(columns.values) - METRICS_SHOWN
    if left_out > 0:
        screen.line(f"and {left_out} more in {folder.metrics_path}")


def show_runs(screen: Screen, runs: Path) -> None:
    """One line a run."""
    paths = list_runs(runs)
    if not paths:
        screen.line(f"no runs in {runs}")
        return
    rows: list[tuple[str, str, str, str]] = []
    for path in paths:
        try:
            folder = open_run(path, clock=SystemClock())
            manifest = folder.manifest()
            steps = folder.checkpoints().steps()
        except DataError as error:
            rows.append((path.name, "damaged", "", str(error)))
            continue
        rows.append((path.name, manifest.facts.recipe, str(steps[-1]) if steps else "-", manifest.created_at))
    screen.table(("run", "recipe", "saved step", "created"), rows)


def list_recipes(screen: Screen) -> None:
    """Four lines an algorithm: what it is, where it comes from, what it is made of, its numbers."""
    from hone.train.job import defaults_of  # noqa: PLC0415 - torch: not needed to show a run
    from hone.train.registry import load_recipe, recipe_names  # noqa: PLC0415 - as above

    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        entry = load_recipe(name)
        defaults = ", ".join(f"{key} = {value}" for key, value in defaults_of(entry.config).items())
        screen.line(f"{name:{width}}  {entry.summary}")
        for line in filter(None, (entry.source, entry.parts.said(), defaults)):
            screen.line(f"{'':{width}}  {line}")
