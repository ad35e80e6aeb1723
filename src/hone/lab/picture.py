"""Plots of a result as one self-contained SVG file: panels side by side, for light and dark backgrounds.

Lines differ by dashes besides colours, for readers who cannot distinguish colours. A band around a line, and a thin
line along a bar, go from the least to the largest run; a line across a stacked bar is its mark.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hone.lab.finding import BarPlot, LinePlot, Panel, PlotSeries, StackedBarPlot
from hone.run.report.html import Html, element, format_number, join, text
from hone.run.report.svg import Attributes, LinearScale, axes, label, labelled_ticks, polyline, thinned

_Floats = NDArray[np.float64]

_WIDTH, _HEIGHT = 460.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 34.0, 44.0
_LEGEND_ROW = 17.0
_BAR_LABELS = 150.0
_MAX_POINTS = 240
_AS_IS = LinearScale(0.0, 1.0, 0.0, 1.0)
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8860b", "#aa4499", "#56a0d3", "#777777")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2")

_STYLE = """
svg { font: 12px system-ui, sans-serif; } .back { fill: #ffffff; } text { fill: #222222; }
.grid { stroke: #dddddd; stroke-width: 1; } .line { fill: none; stroke-width: 1.8; }
.band { fill-opacity: 0.15; } .range { stroke: #222222; stroke-width: 1.5; } .title { font-weight: 600; }
.tick { font-size: 11px; fill: #555555; } .middle { text-anchor: middle; } .end { text-anchor: end; }
@media (prefers-color-scheme: dark) { .back { fill: #16191d; } text { fill: #e6e6e6; } .grid { stroke: #33383f; }
.tick { fill: #a8adb3; } .range { stroke: #e6e6e6; } }
"""


def render_panels(panels: Sequence[Panel], *, title: str) -> str:
    """SVG document with `panels` from left to right."""
    height = max(map(_height, panels))
    drawn = [
        element(
            "g",
            _drawn(panel),
            attributes={"transform": f"translate({k * _WIDTH:.0f} 0)"},
        )
        for k, panel in enumerate(panels)
    ]
    width = _WIDTH * len(panels)
    back = element("rect", attributes={"class": "back", "width": width, "height": height})
    style = element("style", Html(_STYLE))
    box = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width:.0f} {height:.0f}", "role": "img"}
    svg = element("svg", element("title", text(title)), style, back, *drawn, attributes=box | {"width": width})
    return f"{svg}\n"


def _drawn(panel: Panel) -> Html:
    if isinstance(panel, BarPlot):
        return _bars(panel)
    return _stacks(panel) if isinstance(panel, StackedBarPlot) else _lines(panel)


def _height(panel: Panel) -> float:
    if isinstance(panel, BarPlot):
        return max(_TOP + 30.0 * len(panel.labels) + 26.0, 120.0)
    if isinstance(panel, StackedBarPlot):
        return _TOP + 30.0 * len(panel.labels) + 26.0 + _LEGEND_ROW * math.ceil(len(panel.parts) / 2)
    return _HEIGHT + 8.0 + _LEGEND_ROW * math.ceil(len(panel.series) / 2)


# ---------------------------------------------------------------------------------------------- lines


def _lines(panel: LinePlot) -> Html:
    lines = [_known(series.x, series.y, positive=panel.log_y) for series in panel.series]
    bands = [_band(series, positive=panel.log_y) for series in panel.series]
    every_x = np.concatenate([x for x, _ in lines])
    every_y = np.concatenate([y for _, y in [*lines, *bands]])
    if not len(every_x):
        return label(_LEFT, _TOP, "nothing to draw", "")
    x = LinearScale(*_span(every_x), _LEFT, _WIDTH - _RIGHT)
    y = LinearScale(*_span(every_y, room=0.05), _HEIGHT - _BOTTOM, _TOP)
    y_ticks = labelled_ticks(y.low, y.high, 6)
    if panel.log_y:
        y_ticks = [(tick, format_number(float(f"{10.0**tick:.3g}"))) for tick in log_ticks(y.low, y.high)]
    parts = [label(_LEFT - 44, 18, panel.title, "title"), *axes(x, y, panel.x_label, y_ticks=y_ticks, x_count=5)]
    for k, (xs, ys) in enumerate(bands):
        corners = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in zip(xs.tolist(), ys.tolist(), strict=True))
        fill: Attributes = {"points": corners, "class": "band", "fill": _COLOURS[k % len(_COLOURS)]}
        parts += [element("polygon", attributes=fill)] if corners else []
    for k, (xs, ys) in enumerate(lines):
        where, means = thinned(xs, ys, _MAX_POINTS)
        parts.append(polyline(x, y, zip(where.tolist(), means.tolist(), strict=True), _line_style(k)))
    for k, series in enumerate(panel.series):
        left, height = _LEFT - 40 + (k % 2) * (_WIDTH / 2), _HEIGHT + 12 + _LEGEND_ROW * (k // 2)
        parts.append(polyline(_AS_IS, _AS_IS, [(left, height - 4), (left + 28, height - 4)], _line_style(k)))
        parts.append(label(left + 34, height, series.label, ""))
    return join(parts)


def _band(series: PlotSeries, *, positive: bool) -> tuple[_Floats, _Floats]:
    """Corners of the band of a series: along its upper edge, and back along the lower one."""
    ends = [_known(series.x, edge, positive=positive) for edge in (series.high, series.low) if len(edge)]
    if not ends:
        return np.zeros(0), np.zeros(0)
    (x, high), (back, low) = (thinned(*end, _MAX_POINTS) for end in ends)
    return np.concatenate([x, back[::-1]]), np.concatenate([high, low[::-1]])


def _known(where: Sequence[float], values: Sequence[float], *, positive: bool) -> tuple[_Floats, _Floats]:
    """Finite points of a line; on a logarithmic axis the logarithms of positive ones."""
    x, y = np.asarray(where, np.float64), np.asarray(values, np.float64)
    if positive:
        y = np.log10(np.where(y > 0, y, np.nan))
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def _span(values: _Floats, *, room: float = 0.0) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    edge = room * (high - low)
    return (low if low == 0 else low - edge), high + edge


def log_ticks(low: float, high: float) -> list[float]:
    """Logarithms of 1, 2 and 5 times powers of ten within [low, high]; only of every nth power where these are more
    than six.
    """
    powers = range(math.floor(low), math.ceil(high) + 1)
    fine = [power + math.log10(digit) for power in powers for digit in (1, 2, 5)]
    inside = [tick for tick in fine if low <= tick <= high]
    if len(inside) <= 6:
        return inside
    whole = [float(power) for power in powers if low <= power <= high]
    return whole[:: math.ceil(len(whole) / 6)]


def _line_style(k: int) -> Attributes:
    return {"class": "line", "stroke": _COLOURS[k % len(_COLOURS)], "stroke-dasharray": _DASHES[k % len(_DASHES)]}


# ----------------------------------------------------------------------------------------------- bars


def _bars(panel: BarPlot) -> Html:
    values = [value if math.isfinite(value) else 0.0 for value in panel.values]
    ends_of_runs = [value for value in (*panel.low, *panel.high) if math.isfinite(value)]
    low, high = min(0.0, 0.0, *values, *ends_of_runs), max(0.0, 0.0, *values, *ends_of_runs)
    x = LinearScale(low, high if high > low else low + 1.0, _BAR_LABELS, _WIDTH - 62)
    parts = [label(_LEFT - 44, 18, panel.title, "title")]
    bottom = _TOP + 30.0 * len(values)
    zero: Attributes = {"x1": x.at(0.0), "x2": x.at(0.0), "y1": _TOP, "y2": bottom, "class": "grid"}
    parts.append(element("line", attributes=zero))
    for k, (name, value) in enumerate(zip(panel.labels, panel.values, strict=True)):
        top = _TOP + 30.0 * k + 6
        shown = value if math.isfinite(value) else 0.0
        ends = sorted((x.at(0.0), x.at(shown)))
        box: Attributes = {"x": ends[0], "y": top, "width": max(ends[1] - ends[0], 1.0), "height": 18}
        parts.append(element("rect", attributes=box | {"fill": _COLOURS[0], "rx": 2}))
        parts.append(label(_BAR_LABELS - 10, top + 13, name, "end"))
        right = ends[1]
        if panel.low and math.isfinite(panel.low[k] + panel.high[k]) and panel.low[k] < panel.high[k]:
            right = max(right, x.at(panel.high[k]))
            span: Attributes = {"x1": x.at(panel.low[k]), "x2": x.at(panel.high[k]), "y1": top + 9, "y2": top + 9}
            parts.append(element("line", attributes=span | {"class": "range"}))
        parts.append(label(right + 6, top + 13, format_number(value), ""))
    return join(parts)


def _stacks(panel: StackedBarPlot) -> Html:
    sums = [sum(sizes) for sizes in zip(*panel.parts.values(), strict=True)]
    x = LinearScale(0.0, max(*sums, *panel.marks), _BAR_LABELS, _WIDTH - 62)
    parts = [label(_LEFT - 44, 18, panel.title, "title")]
    for k, (name, mark) in enumerate(zip(panel.labels, panel.marks, strict=True)):
        top, begin = _TOP + 30.0 * k + 6, 0.0
        for index, sizes in enumerate(panel.parts.values()):
            box: Attributes = {"x": x.at(begin), "y": top, "width": x.at(sizes[k]) - x.at(0.0), "height": 18}
            parts.append(element("rect", attributes=box | {"fill": _COLOURS[index % len(_COLOURS)]}))
            begin += sizes[k]
        here: Attributes = {"x1": x.at(mark), "x2": x.at(mark), "y1": top - 3, "y2": top + 21, "class": "range"}
        parts.append(element("line", attributes=here))
        parts.append(label(_BAR_LABELS - 10, top + 13, name, "end"))
        parts.append(label(x.at(max(begin, mark)) + 6, top + 13, format_number(mark), ""))
    for index, name in enumerate(panel.parts):
        left, height = (
            _LEFT - 40 + (index % 2) * (_WIDTH / 2),
            _TOP + 30.0 * len(sums) + 24 + _LEGEND_ROW * (index // 2),
        )
        swatch: Attributes = {"x": left, "y": height - 9, "width": 28, "height": 10}
        parts.append(element("rect", attributes=swatch | {"fill": _COLOURS[index % len(_COLOURS)]}))
        parts.append(label(left + 34, height, name, ""))
    return join(parts)
