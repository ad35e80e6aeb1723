"""HTML page of a decision log: the verdict, then delays, probabilities and rewards by action.

Belongs here: the sections of the page. `store.joins` computes the figures.
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from hone.decide.joins.audit import LogAudit
from hone.decide.joins.view import LOG10_EDGES, DecisionView, ViewSummary
from hone.run.report.html import (
    EMPTY,
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
from hone.run.report.svg import CurveSeries, IntervalRow, band_plot, histogram, interval_plot
from hone.run.store.durable import replace_file

_MOST_ACTIONS = 30


def write_log_page(path: Path, view: DecisionView, audit: LogAudit) -> None:
    """Write a tenant's log as an HTML document, atomically. Raises ResourceError."""
    figures = view.summary()
    moment = datetime.fromtimestamp(view.as_of_s, UTC)
    title = f"The log is {audit.words}"
    kicker = f"decision log{f', tenant {audit.tenant}' if audit.tenant else ''}, as of {moment:%Y-%m-%d %H:%M:%S UTC}"
    html = page(
        title,
        element("header", styled("p", "kicker", text(kicker)), element("h1", text(title))),
        _faults(audit),
        _tiles(view, figures),
        _delays(view, figures),
        _probabilities(figures),
        _actions(figures),
    )
    replace_file(path, html.encode("utf-8", "replace"))


def _faults(audit: LogAudit) -> Html:
    heads = {"refuse": "Wrong", "weak": "Note"}
    return join(
        styled("p", "verdict", element("b", text(f"{heads.get(one.verdict, '')}: ")), text(one.words))
        for one in audit.faults
    )


def _tiles(view: DecisionView, figures: ViewSummary) -> Html:
    counts = view.counts
    tiles = [
        (f"{counts.decisions:,}", f"decisions for {figures.units:,} units"),
        (f"{counts.joined:,}", "rewards joined"),
        (f"{counts.defaulted:,}", f"without outcome: {format_number(view.join.default)}"),
        (f"{figures.open_share:.1%}", "windows open: not known yet"),
        (f"{counts.late:,}", "outcomes after their window"),
        (f"{counts.orphans:,}", "outcomes without a decision"),
    ]
    return styled(
        "div", "tiles",
        *(styled("div", "tile", element("b", text(value)), element("span", text(f" {name}"))) for value, name in tiles),
    )  # fmt: skip


def _delays(view: DecisionView, figures: ViewSummary) -> Html:
    delays = figures.delays
    if not delays.delay_s:
        return EMPTY
    x, arrived = np.array([0.0, *delays.delay_s]), np.array([0.0, *delays.arrived])
    curve = CurveSeries(name="share with an outcome", colour=0, x=x, middle=arrived, low=arrived, high=arrived)
    words = (
        f"Share of decisions whose first outcome has arrived, by the time since the decision (Kaplan-Meier: open "
        f"windows count for as long as they were seen). {delays.within_window:.1%} have one within the window of "
        f"{format_duration(view.join.window_s)}; of these, half come within {format_duration(delays.median_s)} and 99% "
        f"within {format_duration(delays.p99_s)}. The dashed line is the share within the window."
    )
    plot = band_plot([curve], x_label="seconds since the decision", floor=delays.within_window)
    return join([
        element("h2", text("Delay of rewards")),
        styled("div", "card", styled("p", "note", text(words)), plot),
    ])  # fmt: skip


def _probabilities(figures: ViewSummary) -> Html:
    """Histogram of probabilities by powers of ten; the lowest bin has all that is lower."""
    step = LOG10_EDGES[1] - LOG10_EDGES[0]
    plot = histogram(
        figures.p_counts, low=LOG10_EDGES[0] - step, high=LOG10_EDGES[-1], x_label="power of ten of the probability"
    )
    words = (
        f"Probability of the executed action, from {format_number(figures.smallest_p)} to "
        f"{format_number(figures.largest_p)}. An estimate of another policy divides by it: its largest "
        f"weight can be {format_number(1 / figures.smallest_p) if figures.smallest_p else 'without bound'}."
    )
    return join([
        element("h2", text("Probabilities of actions")),
        styled(
            "div", "card", styled("p", "note", text(words)), plot
        ),
    ])  # fmt: skip


def _actions(figures: ViewSummary) -> Html:
    shown = sorted(figures.actions, key=lambda one: -one.decisions)[:_MOST_ACTIONS]
    rows = [IntervalRow(label=one.name, mean=one.mean, low=one.low, high=one.high) for one in shown if one.known > 1]
    cells = [
        [text(one.name), text(f"{one.decisions:,}"), text(f"{one.known:,}"), text(format_number(one.mean))]
        for one in shown
    ]
    words = (
        "Mean final reward of each action where it was executed, with 95% intervals. A policy that chose by context "
        "chose different contexts for each: this compares the decisions that were made, not the actions."
    )
    return join([
        element("h2", text("Reward by action")),
        styled(
            "div", "card", styled("p", "note", text(words)), interval_plot(rows),
            collapsible("As a table", table(("action", "executed", "final", "reward"), cells, style="fit",
                                            numeric=(1, 2, 3))),
        ),
    ])  # fmt: skip
