"""HTML page of a league: who beats whom, the equilibrium over time, the ladder of ratings, exploitability.

Belongs here: the sections of the page, read from the record of the run (`match_log.py`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from hone.control.seats.match_log import FILE, MatchLog
from hone.run.report.html import EMPTY, Html, collapsible, element, format_number, join, page, styled, table, text
from hone.run.report.svg import CurveSeries, IntervalRow, band_plot, interval_plot, label, legend
from hone.run.store.durable import replace_file

EXPLOITABILITY: Final = ("nash_conv", "nash_conv_mean")
"""Figures of evaluations that are drawn over time."""
PAGE: Final = "league.html"
_MOST_MEMBERS: Final = 24
"""Rows of the matrix: the newest members, and those that never learn."""
_MOST_CURVES: Final = 6
_CELL, _NAMES = 34.0, 120.0


def write_league_page(folder: Path) -> Path:
    """Write `league.html` into a run's folder, from its record. Raises DataError and ResourceError."""
    log = MatchLog(path=folder / FILE)
    try:
        body = [_head(folder.name, log), _matrix(log), _weights(log), _ladder(log), _exploitability(log)]
    finally:
        log.close()
    replace_file(folder / PAGE, page(f"{folder.name}: league", *body).encode("utf-8", "replace"))
    return folder / PAGE


def _newest_ratings(log: MatchLog) -> list[tuple[str, float, float]]:
    """Name, mean and deviation of every member, by the last ratings, the strongest first."""
    last = {str(name): (float(mean), float(deviation)) for _, name, mean, deviation in log.rows("ratings")}
    return sorted(((name, *rating) for name, rating in last.items()), key=lambda one: -one[1])


def _head(name: str, log: MatchLog) -> Html:
    ratings, rows = _newest_ratings(log), [(float(step), str(one), float(w)) for step, one, w in log.rows("weights")]
    last = max((step for step, _, _ in rows), default=-1.0)
    weights = sorted(((one, w) for step, one, w in rows if step == last and w > 0.005), key=lambda pair: -pair[1])
    words = f"{log.count():,} matches. "
    if ratings:
        words += f"The strongest of {len(ratings)} members is {ratings[0][0]}. "
    if weights:
        kept = ", ".join(f"{member} ({weight:.0%})" for member, weight in weights[:4])
        one = "One member beats or draws with every other: " if len(weights) == 1 else "No member beats all others: "
        words += f"{one}the equilibrium of the population plays {kept}."
    return element(
        "header", styled("p", "kicker", text("league")), element("h1", text(name)), styled("p", "verdict", text(words))
    )


def _matrix(log: MatchLog) -> Html:
    """Mean scores of the row against the column, green above 1/2 and red below."""
    scores: dict[tuple[str, str], float] = {}
    for _, one, other, score in log.rows("payoffs"):
        scores[str(one), str(other)] = float(score)
        scores[str(other), str(one)] = 1 - float(score)
    members = [str(member) for member, _, _ in sorted(log.rows("members"), key=lambda row: (row[1], row[0]))]
    anchors = list(dict.fromkeys(other for _, other in scores if other not in members))
    shown = [*anchors, *members[-(_MOST_MEMBERS - len(anchors)) :]]
    if not members:
        return EMPTY
    parts: list[Html] = []
    for row, one in enumerate(shown):
        top = (row + 1) * _CELL
        parts.append(label(_NAMES - 8, top + _CELL / 2 + 4, one, "tick end"))
        parts.append(label(_NAMES + (row + 0.5) * _CELL, _CELL - 8, str(row + 1), "tick middle"))
        for column, other in enumerate(shown):
            score = scores.get((one, other))
            if score is None:
                continue
            hue = 140 if score >= 0.5 else 10
            box = {"x": _NAMES + column * _CELL, "y": top, "width": _CELL - 2, "height": _CELL - 2, "rx": 3}
            strength = f"{0.08 + 0.8 * abs(2 * score - 1):.2f}"
            colour = {"fill": f"hsl({hue} 55% 45%)", "fill-opacity": strength}
            words = element("title", text(f"{one} against {other}: {score:.2f}"))
            parts.append(element("rect", words, attributes={**box, **colour}))
            at = _NAMES + column * _CELL + _CELL / 2 - 1
            parts.append(label(at, top + _CELL / 2 + 3, f"{100 * score:.0f}", "tick middle"))
    width, height = _NAMES + len(shown) * _CELL, (len(shown) + 1) * _CELL
    drawn = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "role": "img"}
    note = "Score of the row's member against the column's, in per cent; columns are numbered as rows are."
    rows = [[text(one), *(text(_cell(scores.get((one, other)))) for other in shown)] for one in shown]
    as_table = collapsible("As a table", table(("member", *shown), rows, style="fit"))
    return join(
        [
            element("h2", text("Who beats whom")),
            styled("div", "card", styled("p", "note", text(note)), element("svg", *parts, attributes=drawn), as_table),
        ]
    )


def _cell(score: float | None) -> str:
    return "" if score is None else f"{score:.2f}"


def _weights(log: MatchLog) -> Html:
    rows = [(float(step), str(name), float(weight)) for step, name, weight in log.rows("weights")]
    steps = sorted({step for step, _, _ in rows})
    if len(steps) < 2:
        return EMPTY
    known = {(step, name): weight for step, name, weight in rows}
    total = {name: sum(known.get((step, name), 0.0) for step in steps) for _, name, _ in rows}
    names = sorted(total, key=lambda name: -total[name])[:_MOST_CURVES]
    curves = {name: [known.get((step, name), 0.0) for step in steps] for name in names}
    return _curves("The equilibrium of the population", "Weight of members in it, of those with most.", steps, curves)


def _ladder(log: MatchLog) -> Html:
    ratings = _newest_ratings(log)[: 2 * _MOST_MEMBERS]
    if not ratings:
        return EMPTY
    rows = [
        IntervalRow(label=name, mean=mean, low=mean - deviation, high=mean + deviation)
        for name, mean, deviation in ratings
    ]
    cells = [[text(name), *map(text, (f"{mean:.2f}", f"{deviation:.2f}"))] for name, mean, deviation in ratings]
    figures = collapsible("As a table", table(("member", "rating", "deviation"), cells, style="fit", numeric=(1, 2)))
    note = "Weng-Lin ratings by all matches between members, with one standard deviation."
    drawn = styled("div", "card", styled("p", "note", text(note)), interval_plot(rows, unit_axis=False), figures)
    return join([element("h2", text("Ladder")), drawn])


def _exploitability(log: MatchLog) -> Html:
    rows = [(float(step), str(name), float(value)) for step, name, value in log.rows("figures")]
    steps = sorted({step for step, name, _ in rows if name in EXPLOITABILITY})
    if not steps:
        return EMPTY
    known = {(step, name): value for step, name, value in rows}
    titles = {"nash_conv": "main", "nash_conv_mean": "equilibrium of the population"}
    curves = {titles[name]: [known.get((step, name), np.nan) for step in steps] for name in EXPLOITABILITY}
    last = ", ".join(f"{name} {format_number(values[-1])}" for name, values in curves.items())
    note = f"NashConv: what both seats together could gain by best responses; 0 in an equilibrium. Last: {last}."
    if len(steps) < 2:
        return join([element("h2", text("Exploitability")), styled("p", "note", text(note))])
    return _curves("Exploitability", note, steps, curves)


def _curves(title: str, note: str, steps: Sequence[float], curves: dict[str, list[float]]) -> Html:
    x = np.array(steps)
    series = [
        CurveSeries(name=name, colour=colour, x=x, middle=values, low=values, high=values)
        for colour, (name, values) in enumerate((name, np.array(values)) for name, values in curves.items())
    ]
    plot = band_plot(series, x_label="iteration", floor=0.0)
    return join(
        [
            element("h2", text(title)),
            styled("div", "card", styled("p", "note", text(note)), legend(list(curves)), plot),
        ]
    )
