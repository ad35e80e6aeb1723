"""HTML pages of a comparison (curves with intervals, improvement, profiles, time to a threshold) and of a sweep.

Belongs here: the sections of the pages. `hone.evaluate` computes the figures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from hone.run.report.svg import CurveSeries, IntervalRow, band_plot, interval_plot, legend
from hone.run.store.comparison import (
    Comparison,
    GroupSummary,
    RunCurveBand,
    ScoreInterval,
    SweepRecord,
    SweepTrialRecord,
    TimeToThreshold,
    TrialScore,
)
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
        _comparison_verdicts(comparison),
        _summary(comparison),
        _comparison_curves(comparison),
        _profile(comparison),
        _runs(comparison),
        *([element("h2", text("Limits of this comparison")), *notes] if notes else []),
    )


def _comparison_verdicts(comparison: Comparison) -> Html:
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
            element("b", text(f"{'+' if pair.difference > 0 else ''}{format_number(pair.difference)}")),
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


def _comparison_curves(comparison: Comparison) -> Html:
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


# ----------------------------------------------------------------------------------------------------------- sweep page


SHOWN_CURVES = 8
"""Trials whose learning curves are drawn."""


def render_sweep(
    record: SweepRecord, labels: Mapping[int, str], *, searched: Comparison | None, fresh: Comparison | None
) -> Html:
    """Render a finished sweep as an HTML document."""
    seeds, fresh_seeds = (", ".join(map(str, record.seeds(name))) for name in ("seeds", "fresh_seeds"))
    runs = (
        f"{len(record.finished_runs)} runs of {len(record.trials)} trials · search seeds {seeds} · fresh seeds "
        f"{fresh_seeds} · score: {record.metric}"
    )
    head = element(
        "header", styled("p", "kicker", text("sweep")), element("h1", text(f"trial {labels[record.finalists[0]]}"))
    )
    return page(
        f"sweep: {labels[record.finalists[0]]}",
        head,
        styled("p", "about", text(runs)),
        _winner(record, labels, fresh),
        _trials(record, labels),
        EMPTY if searched is None else _comparison_curves(_first_groups(searched, record, labels)),
    )


def latest_scores(record: SweepRecord) -> list[tuple[SweepTrialRecord, int, TrialScore]]:
    """Each trial with the steps and the score of its last judgement: the finalists first, then the further trained,
    then by score."""
    last: dict[int, tuple[int, TrialScore]] = {}
    for rung in record.rungs:
        last |= {one.trial: (rung.steps, one) for one in rung.scores}
    rows = [(trial, *last[trial.number]) for trial in record.trials if trial.number in last]
    order = {number: place for place, number in enumerate(record.finalists)}

    def rank(row: tuple[SweepTrialRecord, int, TrialScore]) -> tuple[float, ...]:
        trial, steps, score = row
        known = math.isfinite(score.mean)
        return (order.get(trial.number, len(order)), not known, -steps, -score.mean if known else 0.0, trial.number)

    return sorted(rows, key=rank)


def trial_end(record: SweepRecord, trial: SweepTrialRecord, steps: int, score: TrialScore) -> str:
    """How a trial ended: `winner`, `finalist`, `stopped at step 10`, `failed: ...`, or nothing."""
    if score.failure:
        return f"failed: {score.failure}"
    if trial.number in record.finalists:
        return "winner" if trial.number == record.finalists[0] else "finalist"
    final = max(rung.steps for rung in record.rungs)
    return f"stopped at step {steps}" if steps < final else ""


def score_text(score: TrialScore) -> str:
    """Format as `0.91 (0.88 to 0.94)`; empty for a failed trial."""
    if math.isnan(score.mean):
        return ""
    return format_interval(ScoreInterval(mean=score.mean, low=score.low, high=score.high))


def _winner(record: SweepRecord, labels: Mapping[int, str], fresh: Comparison | None) -> Html:
    """The finalists on the fresh seeds, beside what they scored on the seeds that chose them."""
    search = {trial.number: score for trial, _, score in latest_scores(record)}
    lines: list[Html] = []
    for one in record.fresh:
        if one.failure:
            lines.append(styled("p", "verdict", text(f"{labels[one.trial]} failed on the fresh seeds: {one.failure}")))
            continue
        chosen = ", where the best of many looks better than it is" if one is record.fresh[0] else ""
        lines.append(
            styled(
                "p",
                "verdict",
                text(f"{labels[one.trial]}: "),
                element("b", text(score_text(one))),
                text(
                    f" on fresh seeds, worst seed {format_number(one.worst)}; {score_text(search[one.trial])} on the "
                    f"search seeds{chosen}."
                ),
            )
        )
    heading = element("h2", text("Best settings, on seeds that chose nothing"))
    return join([heading, *lines, EMPTY if fresh is None else _comparison_verdicts(fresh)])


def _trials(record: SweepRecord, labels: Mapping[int, str]) -> Html:
    rows = latest_scores(record)
    keys = list(dict.fromkeys(key for trial in record.trials for key in trial.settings))
    plotted = [
        IntervalRow(
            label=labels[trial.number],
            mean=score.mean,
            low=score.mean if math.isnan(score.low) else score.low,
            high=score.mean if math.isnan(score.high) else score.high,
        )
        for trial, _, score in rows
        if math.isfinite(score.mean)
    ]
    words = "Interquartile mean of the score over the search seeds with its 95% interval, as last judged"
    card = styled("div", "card", styled("p", "note", text(words)), interval_plot(plotted, emphasised=(0,)))
    lines = [
        [
            text(str(trial.number)),
            *(text(_value(trial.settings.get(key))) for key in keys),
            text(str(steps)),
            text(score_text(score)),
            text("" if math.isnan(score.worst) else format_number(score.worst)),
            text(trial_end(record, trial, steps, score)),
        ]
        for trial, steps, score in rows
    ]
    heads = ("trial", *keys, "steps", "score", "worst seed", "")
    return join([element("h2", text("Trials")), card, table(heads, lines, style="fit")])


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _first_groups(searched: Comparison, record: SweepRecord, labels: Mapping[int, str]) -> Comparison:
    """The comparison of the best trials only: more curves in one picture cannot be told apart."""
    order: Sequence[str] = [labels[trial.number] for trial, _, _ in latest_scores(record)]
    groups = sorted(searched.groups, key=lambda group: order.index(group.name))
    return replace(searched, groups=tuple(groups[:SHOWN_CURVES]))
