"""HTML page of a sweep: the winner on fresh seeds, every trial with its interval and its end, learning curves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hone.run.report.comparison_page import comparison_curves, comparison_verdicts, format_interval
from hone.run.report.html import EMPTY, Html, element, format_number, join, page, styled, table, text
from hone.run.report.svg import IntervalRow, interval_plot
from hone.run.store.comparison import Comparison, ScoreInterval
from hone.run.store.durable import replace_file
from hone.run.store.sweep import SweepRecord, SweepTrialRecord, TrialScore

SHOWN_CURVES = 8
"""Trials whose learning curves are drawn."""


def write_sweep_page(
    path: Path, record: SweepRecord, labels: Mapping[int, str], *, searched: Comparison | None, fresh: Comparison | None
) -> None:
    """Write the page atomically; `labels` are the settings of the trials in short. Raises ResourceError."""
    document = render_sweep(record, labels, searched=searched, fresh=fresh)
    replace_file(path, document.encode("utf-8", "replace"))


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
        EMPTY if searched is None else comparison_curves(_first_groups(searched, record, labels)),
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
    return join([heading, *lines, EMPTY if fresh is None else comparison_verdicts(fresh)])


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
