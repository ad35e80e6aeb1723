"""`hone show` and `hone list`: runs and recipes.

Belongs here: the layout. The content comes from `hone.run.store` and the recipes.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hone.cli.commands.fetch import PREFIX, fetch_model
from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.config.resolve import format_value
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, HoneError, did_you_mean
from hone.run.alarms import read_alarms, read_diagnosis
from hone.run.report.policy_map import text_rows, value_range
from hone.run.saved_config import config_tree, is_control
from hone.run.store.folder import RunFolder, list_runs, open_run
from hone.run.store.metrics import depends_on_clock, read_metrics

METRICS_SHOWN = 40
_DIFFERENCES_SHOWN = 60
_ABSENT = "-"
_LOGS = (".csv", ".npz", ".hdf5", ".h5")
"""Suffixes of logs of decisions that other programs wrote."""
RED_ALARM: Final = 7
"""Exit code of `hone show --alarms` where an alarm is red."""


def run(call: CommandCall) -> int:
    """Show a run, or list runs or recipes; returns the exit code."""
    screen = standard_screen()
    runs = Path(call.text("runs"))
    if call.command == "show":
        return _show(screen, call, runs)
    if call.text("what") == "recipes":
        _list_recipes(screen, call.text("name"))
    elif call.text("what") == "runs":
        _show_runs(screen, runs)
    elif not call.text("what"):
        _show_runs(screen, runs)
        screen.line()
        # print the names of the recipes, one line per family
        from hone.recipes.registry import titles_by_family  # noqa: PLC0415 - as above
        from hone.run.job import installed_recipes  # noqa: PLC0415 - as above

        grouped = {**titles_by_family(), "other packages": sorted(installed_recipes())}
        screen.rows([(f"{family} ({len(names)})", ", ".join(names)) for family, names in grouped.items() if names])
        screen.line("hone list recipes describes them, hone list recipes NAME one of them")
    else:
        raise ConfigError(
            f"hone list has no {call.text('what')!r}{did_you_mean(call.text('what'), ['recipes', 'runs'])}"
        )
    return 0


def _show(screen: TerminalScreen, call: CommandCall, runs: Path) -> int:
    """Print a run, its alarms or its map, a log, or a row as tokens; returns the exit code."""
    if call.switch("tokens"):
        _show_tokens(screen, call)
        return 0
    if Path(call.text("run")).suffix in _LOGS:
        _show_log(screen, Path(call.text("run")))
        return 0
    folder = find_run(call.text("run"), runs)
    if call.switch("alarms"):
        return _show_alarms(screen, folder)
    if call.text("diff"):
        _show_difference(screen, folder, find_run(call.text("diff"), runs))
        return 0
    if call.switch("map"):
        _show_map(screen, folder)
    else:
        _show_run(screen, folder, whole=call.switch("config"), verify=call.switch("verify"))
    return 0


def _show_map(screen: TerminalScreen, folder: RunFolder) -> None:
    """Print the newest policy's action in each grid cell; on a terminal the background shows the value."""
    newest = open_run(folder.path, clock=SystemClock()).checkpoints().newest_policy()
    if not is_control(newest.policy_folder):
        raise DataError(f"{folder.path}: its policy is a language model; a map needs a control policy on a grid")
    from hone.control.evaluate.policy_maps import policy_map  # noqa: PLC0415 - the wing of the run

    grid = policy_map(newest.policy_folder, config_tree(folder.path), step=newest.step)
    low, high = value_range(grid)
    screen.title(f"{folder.name}, step {grid.step}")
    for one in grid.slices:
        screen.line(one.title)
        shares = [None if cell.worth is None else (cell.worth - low) / ((high - low) or 1.0) for cell in one.cells]
        screen.shaded_grid(text_rows(one), shares)
    screen.line(f"{grid.worth_is}: {compact_number(low)} to {compact_number(high)}")


def _show_alarms(screen: TerminalScreen, folder: RunFolder) -> int:
    """Print the alarms that a run has raised and not ended; returns the exit code."""
    alarms = read_alarms(folder.path, now_s=SystemClock().now_s())
    if (cause := read_diagnosis(folder.path)) is not None:
        screen.line(cause.sentence)
    for one in alarms:
        screen.line(f"{one.level} since step {one.step}: {one.name.replace('_', ' ')}: {one.evidence}")
        screen.line(f"  to try: {one.advice}")
    if not alarms:
        screen.line(f"{folder.name}: no alarm is raised")
    return RED_ALARM if any(one.level == "red" for one in alarms) else 0


_STYLES: Final = {"context": "dim", "trained": "green", "end": "bold magenta"}


def _show_tokens(screen: TerminalScreen, call: CommandCall) -> None:
    """Print the first rows of a dataset as the tokens that a run would train. Raises ConfigError or DataError."""
    from hone.text.show_tokens import shown_rows  # noqa: PLC0415 - torch

    count, model = int(parse_number(call.text("rows"), "--rows", least=1)), call.text("model")
    shown = shown_rows(Path(call.text("run")), str(fetch_model(model)) if model.startswith(PREFIX) else model, count)
    for title, spans in shown.rows:
        screen.title(title)
        for span in spans:
            text = span.text.replace("\n", "\u21b5")
            screen.line(f"  {span.kind:<8}{span.tokens:>5}  {text}", style=_STYLES[span.kind])
    for note in shown.notes:
        screen.line(note)


def _show_log(screen: TerminalScreen, path: Path) -> None:
    """Print the columns of a log that another program wrote, and what an offline recipe makes of it. Raises DataError
    at the end for one that it cannot read as it is."""
    from hone.control.logs.formats import raw_log  # noqa: PLC0415 - Gymnasium: not needed to show a run
    from hone.control.logs.parquet import describe_log, read_log  # noqa: PLC0415 - as above

    raw = raw_log(path)
    rows = len(next(iter(raw.columns.values()), ()))
    screen.title(f"{path}: {raw.kind}, {rows:,} rows")
    screen.rows([(name, raw.type_of(name)) for name in raw.columns])
    log = read_log(path)
    screen.line(describe_log(log))
    for note in log.notes:
        screen.line(note)


def find_run(text: str, runs: Path) -> RunFolder:
    """Find a run by its folder, or by its name under `runs`. Raises DataError with the nearest name."""
    for path in (Path(text), runs / text):
        if (path / "manifest.json").is_file():
            return open_run(path, clock=SystemClock())
    known = [path.name for path in list_runs(runs)]
    raise DataError(
        _misnamed(text) or f"no run {text!r} in {runs}{did_you_mean(text, known) or ', which contains no runs'}"
    )


def _misnamed(text: str) -> str:
    """What a path is that names no run: a config, a part of a run, a folder of runs; empty if nothing is there."""
    path = Path(text)
    if not text or not path.exists():
        return ""
    owner = next((above for above in path.absolute().parents if (above / "manifest.json").is_file()), None)
    if owner is not None:
        return f"{path} is a part of the run {owner.name}: name the run, hone show {owner.name}"
    if path.is_file():
        use = f"; hone plan {path} checks it" if path.suffix == ".toml" else ""
        use += f"; hone show {path} --tokens shows the tokens of its rows"
        return f"{path} is a file, not a run{use}"
    inside = [one.name for one in list_runs(path)]
    if inside:
        return f"{path} is a folder of runs ({', '.join(inside[:5])}): hone list runs --runs {path}"
    return f"{path} is a folder without runs"


def _show_run(screen: TerminalScreen, folder: RunFolder, *, whole: bool, verify: bool = False) -> None:
    """Print facts, settings, checkpoints and the last metrics of a run.

    Checkpoints whose files are missing or have another size are marked; with `verify` every file is hashed as well.
    Raises DataError at the end if `verify` found a damaged one.
    """
    manifest = folder.manifest()
    versions = ", ".join(f"{name} {version}" for name, version in manifest.metadata.versions.items())
    steps = folder.checkpoints().steps()
    damaged = folder.checkpoints().faults(contents=verify)
    marks = [f"{step} (damaged)" if step in damaged else str(step) for step in steps]
    screen.title(f"{folder.name}: {manifest.metadata.recipe}")
    screen.rows(
        [
            ("folder", str(folder.path)),
            ("created", manifest.created_at),
            ("machine", manifest.metadata.machine),
            ("versions", f"hone {manifest.metadata.hone_version}, {versions}".rstrip(", ")),
            ("checkpoints", (", ".join(marks) or "none yet") + (", every file verified" if verify else "")),
            ("report", str(folder.report_path) if folder.report_path.exists() else "not written yet"),
        ]
    )
    screen.line()
    settings = {key: item for key, item in folder.config().items() if whole or item.origin != "default"}
    screen.rows([(key, format_value(item.value), item.origin) for key, item in settings.items()])
    for change in manifest.changes:
        screen.line(f"changed after step {change.after_step}: {change.change}")
    screen.line()
    _show_metrics(screen, folder)
    if folder.metrics_path.exists() and (cause := read_diagnosis(folder.path)) is not None:
        screen.line()
        screen.line(f"{cause.sentence}. To try: {cause.advice}")
    if verify and damaged:
        raise DataError(*damaged.values())
    for fault in damaged.values():
        screen.line(f"damaged: {fault}")


def _show_metrics(screen: TerminalScreen, folder: RunFolder) -> None:
    columns = read_metrics(folder.metrics_path)
    for fault in columns.faults:
        screen.line(f"note: {fault}: left out")
    if not len(columns.steps):
        screen.line("no steps yet")
        return
    rows: list[tuple[str, str, str]] = []
    for name, values in list(columns.values.items())[:METRICS_SHOWN]:
        there = [float(value) for value in values if not math.isnan(value)]
        if there:
            rows.append((name, compact_number(there[0]), compact_number(there[-1])))
    screen.table(("metric", "first", f"last (step {int(columns.steps[-1])})"), rows)
    left_out = len(columns.values) - METRICS_SHOWN
    if left_out > 0:
        screen.line(f"and {left_out} more in {folder.metrics_path}")


def _show_runs(screen: TerminalScreen, runs: Path) -> None:
    """Print one line per run."""
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
        rows.append((path.name, manifest.metadata.recipe, str(steps[-1]) if steps else "-", manifest.created_at))
    screen.table(("run", "recipe", "saved step", "created"), rows)


def _list_recipes(screen: TerminalScreen, wanted: str = "") -> None:
    """Print one line per algorithm, by family; for a `wanted` recipe or family, its details.

    Raises ConfigError for a name that is neither.
    """
    from hone.recipes.registry import describe_recipe, is_file, titles_by_family  # noqa: PLC0415
    from hone.run.job import installed_recipes  # noqa: PLC0415

    grouped = {**titles_by_family(), "other packages": sorted(installed_recipes())}
    known = [name for members in grouped.values() for name in members]
    if wanted:
        members = [wanted] if is_file(wanted) else grouped.get(wanted) or [name for name in known if name == wanted]
        if not members:
            near = did_you_mean(wanted, [*known, *grouped])
            raise ConfigError(f"{wanted!r} is not a recipe or a family of recipes{near}")
        for name in members:
            # print a recipe's summary, paper, parts, defaults and limitation
            entry = describe_recipe(name)
            screen.line(f"{name}  {entry.summary}")
            limit = f"when not to use it: {entry.limitation}" if entry.limitation else ""
            for line in filter(None, (entry.paper, entry.parts, entry.defaults, limit)):
                screen.line(f"{'':{len(name)}}  {line}")
        return
    width = max(map(len, known))
    for family, members in grouped.items():
        if members:
            screen.title(f"{family} ({len(members)})")
            for name in members:
                screen.line(f"  {name:{width}}  {_summary(name)}")
            screen.line()
    screen.line("hone list recipes NAME shows its paper, parts and defaults; NAME may be a family or a file.py")


def _summary(name: str) -> str:
    """Summary of a recipe, or the reason why a package's cannot be loaded."""
    from hone.recipes.registry import describe_recipe  # noqa: PLC0415

    try:
        return describe_recipe(name).summary
    except HoneError as fault:
        return f"cannot be used: {fault.messages[0]}"


# ------------------------------------------------------------------------------------------------------ differences


def _show_difference(screen: TerminalScreen, first: RunFolder, second: RunFolder) -> None:
    """Print three tables; what both runs share is left out, and its number told."""
    runs = (first, second)
    settings = [{key: format_value(item.value) for key, item in run.config().items()} for run in runs]
    _difference_table(screen, "setting", runs, *settings)
    about: list[dict[str, str]] = []
    for run in runs:
        facts = run.manifest().metadata
        about.append({"machine": facts.machine, "hone": facts.hone_version, **facts.versions, **(facts.code or {})})
    _difference_table(screen, "version", runs, *about)
    last = [_last_known_metrics(run) for run in runs]
    _difference_table(screen, "last metric", runs, *last, most=_DIFFERENCES_SHOWN)


def _difference_table(
    screen: TerminalScreen,
    kind: str,
    runs: tuple[RunFolder, RunFolder],
    first: Mapping[str, str],
    second: Mapping[str, str],
    *,
    most: int | None = None,
) -> None:
    """Rows of the keys whose texts differ, at most `most`."""
    keys = list(dict.fromkeys([*first, *second]))
    rows = [(key, first.get(key, _ABSENT), second.get(key, _ABSENT)) for key in keys]
    rows = [row for row in rows if row[1] != row[2]]
    if rows:
        screen.table((kind, runs[0].name, runs[1].name), rows[:most])
    left = len(rows) - len(rows[:most])
    screen.line(f"{len(keys) - len(rows)} {kind}s are equal" + (f"; {left} more differ" if left else ""))
    screen.line()


def _last_known_metrics(run: RunFolder) -> dict[str, str]:
    """Step, and the last known value of each metric that does not depend on the clock."""
    columns = read_metrics(run.metrics_path)
    values = {"step": str(int(columns.steps[-1])) if len(columns.steps) else _ABSENT}
    for name, column in columns.values.items():
        known = [float(value) for value in column if not math.isnan(value)]
        if known and not depends_on_clock(name):
            values[name] = compact_number(known[-1])
    return values
