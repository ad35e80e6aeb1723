"""`hone show A --diff B`: settings, versions, code and last metrics in which two runs differ."""

import math
from collections.abc import Mapping

from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen
from hone.config.resolve import format_value
from hone.run.store.folder import RunFolder
from hone.run.store.metrics import depends_on_clock, read_metrics

METRICS_SHOWN = 60
ABSENT = "-"


def show_difference(screen: TerminalScreen, first: RunFolder, second: RunFolder) -> None:
    """Print three tables; what both runs share is left out, and its number told."""
    runs = (first, second)
    settings = [{key: format_value(item.value) for key, item in run.config().items()} for run in runs]
    _table(screen, "setting", runs, *settings)
    about: list[dict[str, str]] = []
    for run in runs:
        facts = run.manifest().metadata
        about.append({"machine": facts.machine, "hone": facts.hone_version, **facts.versions, **(facts.code or {})})
    _table(screen, "version", runs, *about)
    last = [_last_metrics(run) for run in runs]
    _table(screen, "last metric", runs, *last, most=METRICS_SHOWN)


def _table(
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
    rows = [(key, first.get(key, ABSENT), second.get(key, ABSENT)) for key in keys]
    rows = [row for row in rows if row[1] != row[2]]
    if rows:
        screen.table((kind, runs[0].name, runs[1].name), rows[:most])
    left = len(rows) - len(rows[:most])
    screen.line(f"{len(keys) - len(rows)} {kind}s are equal" + (f"; {left} more differ" if left else ""))
    screen.line()


def _last_metrics(run: RunFolder) -> dict[str, str]:
    """Step, and the last known value of each metric that does not depend on the clock."""
    columns = read_metrics(run.metrics_path)
    values = {"step": str(int(columns.steps[-1])) if len(columns.steps) else ABSENT}
    for name, column in columns.values.items():
        known = [float(value) for value in column if not math.isnan(value)]
        if known and not depends_on_clock(name):
            values[name] = compact_number(known[-1])
    return values
