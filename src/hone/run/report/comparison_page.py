"""HTML page of a comparison: curves with intervals, summaries, improvement, profiles, time to a threshold.

Belongs here: the sections of the page. `hone.evaluate.comparison` computes the figures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hone.run.report.html import (
    EMPTY,
    MISSING,
    Html,
    collapsible,
    element,
    format_duration,
    format_number,
    join,
    page,
    styled,
    table,
    text,
)
from hone.run.report.svg import IntervalRow, interval_plot
from hone.run.report.svg_lines import CurveSeries, band_plot, legend
from hone.run.store.comparison import Comparison, GroupSummary, RunCurveBand, ScoreInterval, TimeToThreshold
from hone.run.store.durable import replace_file


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page atomically. Raises ResourceError."""
    replace_file(path, render_comparison(comparison).encode("utf-8", "replace"))


def render_comparison(comparison: Comparison) -> Html:
    """Render a comparison as an HTML document."""
    names = [group.name for group in comparison.groups]
    runs = sum(len(group.runs) for group in comparison.groups)
    title = " against ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    about = f"{runs} runs · {', '.join(comparison.tasks)} · score: {comparison.metric}"
    head = element("header", styled("p", "kicker", text("comparison")), element("h1", text(title)))
    notes = [styled("p", "note", text(f"Note: {note}.")) for note in comparison.notes]
    return page(
        title,
        head,
        styled("p", "about", text(about)),
        comparison_verdicts(comparison),
        _summary(comparison),
        comparison_curves(comparison),
        _profile(comparison),
        _runs(comparison),
        *([element("h2", text("Limits of this comparison")), *notes] if notes else []),
    )


def comparison_verdicts(comparison: Comparison) -> Html:
    """Render the probabilities of improvement and the paired differences, a sentence each."""
    lines = [
        styled(
            "p",
            "verdict",
            text(f"{one.after} scores higher than {one.before} with probability "),
            element("b", text(format_interval(one.probability))),
            text(significance_note(one.probability)),
        )
        for one in comparison.improvements
    ]
    lines += [
        styled(
            "p",
            "verdict",
            text(f"{pair.after} against {pair.before} on the same {pair.n:,} questions: "),
            element("b", text(_format_signed(pair.difference))),
            text(
                f" ({format_number(pair.low)} to {format_number(pair.high)}, paired p = {format_number(pair.p_value)})."
            ),
        )
        for pair in comparison.paired
    ]
    return join(lines)


def significance_note(probability: ScoreInterval) -> str:
    """Significance of a probability of improvement, in words."""
    if math.isnan(probability.low):
        return "; one run gives no interval."
    if probability.low <= 0.5 <= probability.high:
        return "; the interval includes 1/2: not significant."
    return "."


def _format_signed(value: float) -> str:
    """Format a number with a plus sign if it is positive."""
    return f"{'+' if value > 0 else ''}{format_number(value)}"


def format_interval(value: ScoreInterval, number: Callable[[float], str] = format_number) -> str:
    """Format as `0.91 (0.88 to 0.94)`, or as the mean alone without an interval; `number` formats each figure."""
    return number(value.mean) + ("" if math.isnan(value.low) else f" ({number(value.low)} to {number(value.high)})")


def _format_threshold_time(reached: TimeToThreshold) -> str:
    """Format as `24,000 (20,000 to 31,000), 9 of 10`."""
    if math.isinf(reached.median):
        return f"not reached, {reached.reached} of {reached.n}"
    ends = "" if math.isnan(reached.low) else f" ({format_number(reached.low)} to {format_number(reached.high)})"
    return f"{format_number(reached.median)}{ends}, {reached.reached} of {reached.n}"


def _summary(comparison: Comparison) -> Html:
    rows = [_interval(group) for group in comparison.groups]
    unit = ", scaled per task: 0 is the lowest and 1 the highest score of these runs" if comparison.normalised else ""
    words = f"Interquartile mean of the score with its 95% interval over runs{unit}"
    card = styled("div", "card", styled("p", "note", text(words)), interval_plot(rows))
    keys = list(dict.fromkeys(key for group in comparison.groups for key in group.settings))
    tasks = list(dict.fromkeys(task for group in comparison.groups for task in group.reached))
    heads = [
        "",
        *keys,
        "runs",
        "IQM",
        "median",
        "mean",
        *(f"{comparison.curve_unit} to {_level(comparison, t)}" for t in tasks),
    ]
    heads += ["time per run"]
    lines = [
        [
            text(group.name),
            *(text(group.settings.get(key, MISSING)) for key in keys),
            text(str(len(group.runs))),
            *(text(format_interval(value)) for value in (group.iqm, group.median, group.mean)),
            *(
                text(_format_threshold_time(group.reached[task]) if task in group.reached else MISSING)
                for task in tasks
            ),
            text(format_duration(sum(run.seconds for run in group.runs) / len(group.runs))),
        ]
        for group in comparison.groups
    ]
    return join([element("h2", text("Scores")), card, table(heads, lines, style="fit")])


def _level(comparison: Comparison, task: str) -> str:
    threshold = next(group.reached[task].threshold for group in comparison.groups if task in group.reached)
    return format_number(threshold) if len(comparison.tasks) == 1 else f"{format_number(threshold)} on {task}"


def _interval(group: GroupSummary) -> IntervalRow:
    """Row of the interval plot; a point without an interval."""
    mean, low, high = group.iqm.mean, group.iqm.low, group.iqm.high
    known = not math.isnan(low)
    return IntervalRow(label=group.name, mean=mean, low=low if known else mean, high=high if known else mean)


def comparison_curves(comparison: Comparison) -> Html:
    """Render the learning curves of all groups, one picture for each task; nothing without curves."""
    parts: list[Html] = []
    for task in comparison.tasks:
        there = _series(comparison, {group.name: group.curves.get(task) for group in comparison.groups})
        if there:
            threshold = next(
                (group.reached[task].threshold for group in comparison.groups if task in group.reached), None
            )
            picture = band_plot(there, x_label=comparison.curve_unit, floor=threshold)
            parts.append(
                styled("div", "card", styled("p", "note", text(f"{task}: {comparison.curve_metric}")), picture)
            )
    if not parts:
        return EMPTY
    words = "Interquartile mean over runs with its 95% bootstrap interval"
    return join([element("h2", text("Learning curves")), styled("p", "note", text(words)), _legend(comparison), *parts])


def _series(comparison: Comparison, lines: Mapping[str, RunCurveBand | None]) -> list[CurveSeries]:
    """Curves to draw; each group keeps its colour, also where another group has no curve."""
    return [
        CurveSeries(name=group.name, colour=colour, x=line.x, middle=line.middle, low=line.low, high=line.high)
        for colour, group in enumerate(comparison.groups)
        if (line := lines[group.name]) is not None
    ]


def _legend(comparison: Comparison) -> Html:
    return legend([group.name for group in comparison.groups])


def _profile(comparison: Comparison) -> Html:
    if max((len(group.runs) for group in comparison.groups), default=0) < 2:
        return EMPTY
    words = (
        "Share of runs that score higher than this. A line that is above another everywhere is better; where lines "
        "cross, the order depends on the score of interest."
    )
    across = "score, from the lowest (0) to the highest (1) of a task" if comparison.normalised else "score"
    picture = band_plot(_series(comparison, {group.name: group.profile for group in comparison.groups}), x_label=across)
    parts = [styled("p", "note", text(words)), _legend(comparison), styled("div", "card", picture)]
    return join([element("h2", text("Performance profile")), *parts])


def _runs(comparison: Comparison) -> Html:
    lines: list[Sequence[Html]] = [
        [
            text(group.name),
            text(run.name),
            text(run.task),
            text(format_number(run.score)),
            text(format_duration(run.seconds)),
        ]
        for group in comparison.groups
        for run in group.runs
    ]
    return collapsible(
        "Every run", table(("group", "run", "task", "score", "time"), lines, style="fit", numeric=(3, 4))
    )
