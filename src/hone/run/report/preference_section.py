"""Report section about preferences: likelihood of the chosen and of the rejected answers, and distance from the start.

Belongs here: which figures are drawn and said together. A growing margin alone does not show that both fall.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hone.run.report.html import EMPTY, Html, element, format_number, join, styled, table, text
from hone.run.report.run_data import RunData
from hone.run.report.svg import thinned
from hone.run.report.svg_lines import CurveSeries, band_plot, legend

CHOSEN, REJECTED = "preference/chosen_nats", "preference/rejected_nats"
DISTANCE = "preference/kl_to_start_nats"
LAST = 10
"""Steps at the end whose means are told."""
_FIGURES = (
    (CHOSEN, "chosen answers", "log-ratio to the reference in nats; without a reference, the log-probability"),
    (REJECTED, "rejected answers", "the same"),
    ("preference/margin_nats", "margin", "chosen less rejected, in nats"),
    ("preference/accuracy", "accuracy", "share of the pairs that the policy orders as the data do"),
    (DISTANCE, "distance from the start", "KL in nats per answer, on the policy's own samples"),
)

Floats = NDArray[np.float64]


def preference_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run without preferences."""
    values, steps = stage.metrics.values, stage.metrics.steps.astype(np.float64)
    if CHOSEN not in values or REJECTED not in values:
        return EMPTY
    names = {CHOSEN: "chosen", REJECTED: "rejected", DISTANCE: "distance from the start, on samples"}
    curves = [
        _curve(names[name], colour, steps, values[name])
        for colour, name in enumerate(names)
        if name in values and np.isfinite(values[name]).any()
    ]
    words = "Mean log-ratio of the answers by step, in nats. A margin can grow while both fall."
    card = styled(
        "div",
        "card",
        styled("p", "note", text(words)),
        legend([one.name for one in curves]),
        band_plot(curves, x_label="step"),
        _table(values),
    )
    return join([element(level, text("Preferences")), card])


def _table(values: Mapping[str, Floats]) -> Html:
    rows = [
        [text(title), text(format_number(_last(values[name]))), text(meaning)]
        for name, title, meaning in _FIGURES
        if name in values and np.isfinite(values[name]).any()
    ]
    heads = ("figure", f"last {LAST} steps", "meaning")
    return table(heads, rows, style="fit", numeric=(1,))


def _curve(name: str, colour: int, steps: Floats, values: Floats) -> CurveSeries:
    known = np.isfinite(values)
    x, middle = thinned(steps[known], values[known])
    nothing = np.full(len(x), np.nan)
    return CurveSeries(name=name, colour=colour, x=x, middle=middle, low=nothing, high=nothing)


def _last(values: Floats) -> float:
    """Mean over the last steps; of a figure that is measured more seldom, the last value."""
    late = values[-LAST:]
    known = late[np.isfinite(late)] if np.isfinite(late).any() else values[np.isfinite(values)][-1:]
    return float(known.mean())
