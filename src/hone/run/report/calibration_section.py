"""Report section about a scorer: reliability of its chances, and what selecting by it is worth.

Belongs here: the plots, the table and their text. `store.calibration` holds the figures.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hone.estimators.means import wilson_interval
from hone.run.report.html import EMPTY, Html, collapsible, element, format_number, join, styled, table, text
from hone.run.report.svg_lines import CurveSeries, band_plot, legend
from hone.run.store.calibration import CalibrationBin, CalibrationRecord, SelectionRow

_KINDS = {"pairs": "pairs of answers", "outcomes": "answers", "steps": "labelled tokens of steps"}
_FIGURES = {
    "score": "accuracy",
    "base_rate": "accuracy of the more frequent label alone",
    "auc": "AUC",
    "ece": "expected calibration error",
    "ece_fitted": "the same at the fitted temperature, each half of the data at the other half's",
    "temperature": "fitted temperature: scores divided by it are best calibrated",
    "cross_entropy_nats": "cross-entropy, nats",
    "length_bias": "length bias: how much more it prefers long answers than the labels do",
}


def calibration_section(found: CalibrationRecord | None, level: str) -> Html:
    """Render the section; empty for a run without a scorer."""
    if found is None:
        return EMPTY
    parts = [element(level, text("The scorer on held-out answers")), _reliability(found)]
    if found.selection:
        parts.append(_selection(found.selection))
    rows = [
        [text(words), text(format_number(found.figures[name]))]
        for name, words in _FIGURES.items()
        if not math.isnan(found.figures.get(name, math.nan))
    ]
    parts.append(styled("div", "card", table(("figure", "value"), rows, style="fit", numeric=(1,))))
    return join(parts)


def _reliability(found: CalibrationRecord) -> Html:
    """Observed share against predicted chance, with the diagonal of a calibrated scorer."""
    bins = [one for one in found.bins if one.n]
    if not bins:
        return EMPTY
    ends = np.array([min(one.low for one in bins), max(one.high for one in bins)])
    count = sum(one.n for one in bins)
    what = "how sure it is of its preference" if found.kind == "pairs" else "the chance that it gives"
    words = (
        f"Observed share of {count:,} {_KINDS.get(found.kind, found.kind)} by {what}, with 95% intervals. A calibrated "
        "scorer follows the diagonal."
    )
    intervals = [wilson_interval(min(one.n, round(one.observed * one.n)), one.n) for one in bins]
    observed = CurveSeries(
        name="observed",
        colour=0,
        x=np.array([one.predicted for one in bins]),
        middle=np.array([one.observed for one in bins]),
        low=np.array([one.low for one in intervals]),
        high=np.array([one.high for one in intervals]),
    )
    perfect = CurveSeries(name="calibrated", colour=1, x=ends, middle=ends, low=ends, high=ends)
    plot = band_plot([observed, perfect], x_label="predicted chance")
    return styled(
        "div", "card", styled("p", "note", text(words)), legend(["observed", "calibrated"]), plot,
        collapsible("As a table", _bins(bins)),
    )  # fmt: skip


def _bins(bins: list[CalibrationBin]) -> Html:
    rows = [
        [text(f"{one.low:.1f} to {one.high:.1f}"), *map(text, (f"{one.predicted:.3f}", f"{one.observed:.3f}")),
         text(f"{one.n:,}")]
        for one in bins
    ]  # fmt: skip
    return table(("bin", "predicted", "observed", "count"), rows, style="fit", numeric=(1, 2, 3))


def _selection(rows: tuple[SelectionRow, ...]) -> Html:
    """Worth of the selected answer over the number of answers."""
    curves: dict[str, Callable[[SelectionRow], float]] = {
        "best-scored answer": lambda row: row.best,
        "majority vote": lambda row: row.vote,
        "vote weighted by the scorer": lambda row: row.weighted_vote,
        "best answer there is (pass@n)": lambda row: row.oracle,
    }
    x = np.log2([row.n for row in rows])
    series = [
        CurveSeries(name=name, colour=colour, x=x, middle=middle, low=middle, high=middle)
        for colour, (name, curve) in enumerate(curves.items())
        for middle in [np.array([curve(row) for row in rows])]
    ]
    ends = {"low": np.array([row.low for row in rows]), "high": np.array([row.high for row in rows])}
    series[0] = replace(series[0], **ends)
    words = "Mean label of the answer that is selected from n held-out ones to a question."
    heads = ("n", *curves)
    lines = [[text(f"{row.n}"), *(text(f"{curve(row):.3f}") for curve in curves.values())] for row in rows]
    whole = collapsible("As a table", table(heads, lines, style="fit", numeric=(0, 1, 2, 3, 4)))
    plot = band_plot(series, x_label="log2 n")
    return styled("div", "card", styled("p", "note", text(words)), legend(list(curves)), plot, whole)
