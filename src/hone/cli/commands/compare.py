"""`hone compare`: a comparison of runs on the screen, as an HTML page and as JSON.

Belongs here: the layout of a `Comparison`. `hone.evaluate.comparison` computes it.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hone.cli.options import CommandCall
from hone.cli.terminal.progress import compact_duration, compact_number
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.errors import ConfigError
from hone.evaluate.comparison import compare
from hone.run.report.comparison_page import format_interval, significance_note, write_comparison
from hone.run.store.comparison import Comparison, GroupSummary, TimeToThreshold
from hone.run.store.durable import to_json

QUARTERS = (0.25, 0.5, 0.75, 1.0)
"""Fractions of a curve at which it is shown on the screen."""
BARS = " ▁▂▃▄▅▆▇█"
SHOWN_POINTS = 24
SHOWN_SETTINGS = 20


def run(call: CommandCall) -> int:
    """Compare runs; returns the exit code."""
    text = call.text("threshold")
    root = Path(call.text("runs"))
    comparison = compare(
        call.texts("run"), root=root, metric=call.text("metric"), threshold=_number(text) if text else None
    )
    if call.switch("json"):
        print(json.dumps(json.loads(to_json(comparison.to_json())), indent=1))
        return 0
    screen = standard_screen()
    show_comparison(screen, comparison)
    page = Path(call.text("html")) if call.text("html") else _page(call.texts("run"), root)
    write_comparison(page, comparison)
    screen.line(f"curves and profiles in {page}")
    return 0


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"--threshold must be a number, got {text!r}") from None
    if not np.isfinite(value):
        raise ConfigError(f"--threshold must be a finite number, got {text}")
    return value


def _page(asked: Sequence[str], root: Path) -> Path:
    """Path of the page: in the folder of the runs, or else in the folder that was named."""
    return (root if root.is_dir() else Path(asked[0]).parent) / "compare.html"


def show_comparison(screen: TerminalScreen, comparison: Comparison) -> None:
    """Print scores, curves, and the probabilities of improvement."""
    screen.title(f"score: {comparison.metric}")
    if comparison.normalised:
        screen.line(
            f"{len(comparison.tasks)} tasks; scores are scaled per task: 0 is the lowest, 1 the highest of these runs"
        )
    screen.line()
    # print one line per setting that differs: its values, each with the groups that have it
    keys = list(dict.fromkeys(key for group in comparison.groups for key in group.settings))
    rows: list[tuple[str, str]] = []
    for key in keys[:SHOWN_SETTINGS]:
        names: dict[str, list[str]] = {}
        for group in comparison.groups:
            names.setdefault(group.settings.get(key, "-"), []).append(group.name)
        rows.append((key, "; ".join(f"{value} ({', '.join(groups)})" for value, groups in names.items())))
    screen.rows(rows)
    if len(keys) > SHOWN_SETTINGS:
        screen.line(f"and {len(keys) - SHOWN_SETTINGS} more settings; --json has all")
    if rows:
        screen.line()
    _show_scores(screen, comparison)
    _show_curves(screen, comparison)
    for one in comparison.improvements:
        chance = f"{format_interval(one.probability, compact_number)}{significance_note(one.probability)}"
        screen.line(f"{one.after} scores higher than {one.before} with probability {chance}")
    for pair in comparison.paired:
        screen.line(
            f"{pair.after} against {pair.before} on the same {pair.n} questions: {pair.difference:+.3g} "
            f"({pair.low:+.3g} to {pair.high:+.3g}, paired p = {pair.p_value:.2g})"
        )
    for note in comparison.notes:
        screen.line(f"note: {note}")


def _show_scores(screen: TerminalScreen, comparison: Comparison) -> None:
    tasks = list(dict.fromkeys(task for group in comparison.groups for task in group.reached))
    heads = ["", "runs", "IQM (95% interval)", "median", "mean", *(_to(comparison, task) for task in tasks), "time"]
    rows = [
        [
            group.name,
            str(len(group.runs)),
            format_interval(group.iqm, compact_number),
            compact_number(group.median.mean),
            compact_number(group.mean.mean),
            *(_when(group.reached.get(task)) for task in tasks),
            compact_duration(sum(run.seconds for run in group.runs) / len(group.runs)),
        ]
        for group in comparison.groups
    ]
    screen.table(heads, rows)
    screen.line()


def _to(comparison: Comparison, task: str) -> str:
    threshold = next(group.reached[task].threshold for group in comparison.groups if task in group.reached)
    where = "" if len(comparison.tasks) == 1 else f" on {task}"
    return f"{comparison.curve_unit} to {threshold:g}{where}"


def _when(reached: TimeToThreshold | None) -> str:
    if reached is None:
        return "-"
    share = f"{reached.reached} of {reached.n}"
    return f"never ({share})" if np.isinf(reached.median) else f"{compact_number(reached.median)} ({share})"


def _show_curves(screen: TerminalScreen, comparison: Comparison) -> None:
    if not comparison.curve_metric:
        return
    for task in comparison.tasks:
        rows = [row for group in comparison.groups if (row := _curve_row(group, task, comparison)) is not None]
        if rows:
            heads = (
                f"{task}: {comparison.curve_metric}",
                *(f"{share:.0%}" for share in QUARTERS),
                comparison.curve_unit,
            )
            screen.table(heads, rows)
            screen.line()


def _curve_row(group: GroupSummary, task: str, comparison: Comparison) -> list[str] | None:
    line = group.curves.get(task)
    if line is None:
        return None
    lines = [one.curves[task].middle for one in comparison.groups if task in one.curves]
    known = np.concatenate(lines)
    known = known[np.isfinite(known)]
    low, high = float(known.min()), float(known.max())
    places = [round(share * (len(line.middle) - 1)) for share in QUARTERS]
    cells = [compact_number(float(line.middle[place])) if np.isfinite(line.middle[place]) else "" for place in places]
    drawn = line.middle[np.linspace(0, len(line.middle) - 1, SHOWN_POINTS).astype(int)]
    heights = np.nan_to_num((drawn - low) / ((high - low) or 1.0), nan=0.0) * (len(BARS) - 2)
    bars = "".join(
        BARS[1 + round(height)] if np.isfinite(at) else " " for height, at in zip(heights, drawn, strict=True)
    )
    return [group.name, *cells, bars]
