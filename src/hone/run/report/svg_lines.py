"""Several curves with their intervals in one plot, as inline SVG.

Belongs here: geometry; colours come from the page's style sheet by class (`s0` ... `s6`, as `p0` ... for areas).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.run.report.html import EMPTY, Html, element, format_number, styled, text
from hone.run.report.svg import Attributes, LinearScale, axes, labelled_ticks, polyline

_WIDTH, _HEIGHT = 960.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 10.0, 40.0
_COLOURS = 7

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSeries:
    """A curve with its interval: `[S]` each, NaN for missing values."""

    name: str
    colour: int
    x: Floats
    middle: Floats
    low: Floats
    high: Floats


def band_plot(series: Sequence[CurveSeries], *, x_label: str, floor: float | None = None) -> Html:
    """Plot curves over one axis named `across`; `floor` is a horizontal line, such as a threshold."""
    known = [values[np.isfinite(values)] for one in series for values in (one.middle, one.low, one.high)]
    every = np.concatenate(known) if known else np.zeros(0)
    if not len(every):
        return EMPTY
    low, high = float(every.min()), float(every.max())
    if floor is not None:
        low, high = min(low, floor), max(high, floor)
    room = 0.05 * (high - low) or 0.5
    first, last = min(float(one.x[0]) for one in series), max(float(one.x[-1]) for one in series)
    x = LinearScale(first, max(last, first + 1e-9), _LEFT, _WIDTH - _RIGHT)
    y = LinearScale(low - room, high + room, _HEIGHT - _BOTTOM, _TOP)
    parts = axes(x, y, x_label, y_ticks=labelled_ticks(y.low, y.high, 5))
    if floor is not None:
        parts.append(_level(x, y, floor))
    parts += [_band(one, x, y) for one in series]
    parts += [_line(one, x, y) for one in series]
    box: Attributes = {"viewBox": f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}", "class": "wide", "role": "img"}
    return element("svg", *parts, attributes=box)


def legend(names: Sequence[str]) -> Html:
    """Legend of the colours."""
    rows = [element("span", styled("i", f"swatch p{index % _COLOURS}"), text(name)) for index, name in enumerate(names)]
    return styled("p", "legend", *rows)


def _level(x: LinearScale, y: LinearScale, value: float) -> Html:
    line: Attributes = {"x1": x.start, "x2": x.end, "y1": y.at(value), "y2": y.at(value), "class": "level"}
    return element("line", element("title", text(f"threshold {format_number(value)}")), attributes=line)


def _band(one: CurveSeries, x: LinearScale, y: LinearScale) -> Html:
    """Area between low and high, in pieces between missing values."""
    there = np.isfinite(one.low) & np.isfinite(one.high)
    pieces: list[Html] = []
    for places in _pieces(there):
        upper = [f"{x.at(float(one.x[k])):.1f},{y.at(float(one.high[k])):.1f}" for k in places]
        lower = [f"{x.at(float(one.x[k])):.1f},{y.at(float(one.low[k])):.1f}" for k in reversed(places)]
        style: Attributes = {"points": " ".join([*upper, *lower]), "class": f"band p{one.colour % _COLOURS}"}
        pieces.append(element("polygon", attributes=style))
    return element("g", *pieces)


def _line(one: CurveSeries, x: LinearScale, y: LinearScale) -> Html:
    pieces: list[Html] = [element("title", text(_told(one)))]
    for places in _pieces(np.isfinite(one.middle)):
        points = [(float(one.x[k]), float(one.middle[k])) for k in places]
        pieces.append(polyline(x, y, points, {"class": f"stroke s{one.colour % _COLOURS}"}))
    return element("g", *pieces)


def _told(one: CurveSeries) -> str:
    known = one.middle[np.isfinite(one.middle)]
    return f"{one.name}: {format_number(float(known[-1]))} at the end" if len(known) else one.name


def _pieces(there: NDArray[np.bool_]) -> list[list[int]]:
    """Runs of consecutive known values."""
    places = np.flatnonzero(there)
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) > 1) + 1
    return [piece.tolist() for piece in np.split(places, cuts)]
