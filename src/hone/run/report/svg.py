"""Small plots as inline SVG: a curve, several curves, intervals on a common axis, bars, lanes
of a timeline.

Belongs here: geometry. Colours and fonts come from the page's style sheet by class, so that light and dark mode both
work; SVG titles show exact values on hover, without scripts.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.run.report.html import EMPTY, Html, element, format_number, join, styled, text, with_minus_sign
from hone.run.store.comparison import RunCurveBand

_WIDTH, _HEIGHT = 300.0, 128.0
_WIDE = 960.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 36.0, 8.0, 8.0, 18.0
_MAX_POINTS = 400
_MAX_HOVERS = 60
_SMOOTH_FROM = 40

Floats = NDArray[np.float64]
Attributes = dict[str, str | float]


@dataclass(frozen=True, slots=True)
class LinearScale:
    """Linear map from data to picture coordinates."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Coordinate of `value`."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Axis ticks: at most `count` + 1 round values (1, 2 or 5 times a power of ten apart) within [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # Formatting removes rounding errors (0.6000000000000001); huge values that are close may become equal.
    return list(dict.fromkeys(float(f"{index * step:.14g}") for index in range(first, last + 1)))


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Format ticks with the fewest decimals that distinguish them."""
    largest = max(map(abs, ticks), default=0.0)
    if not largest or largest >= 1e6 or largest < 1e-3:
        return [format_number(tick) for tick in ticks]
    decimals = next(count for count in range(13) if all(math.isclose(tick, round(tick, count)) for tick in ticks))
    return [with_minus_sign(f"{tick:,.{decimals}f}") for tick in ticks]


def labelled_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """The ticks of `nice_ticks`, each with its label."""
    ticks = nice_ticks(low, high, count)
    return list(zip(ticks, tick_labels(ticks), strict=True))


def axes(
    x: LinearScale, y: LinearScale, x_label: str, *, y_ticks: Sequence[tuple[float, str]], x_count: int = 6
) -> list[Html]:
    """Draw both axes of a plot: a grid line at each of `y_ticks`, about `x_count` ticks along x, and its label."""
    parts: list[Html] = []
    for tick, words in y_ticks:
        line: Attributes = {"x1": x.start, "x2": x.end, "y1": y.at(tick), "y2": y.at(tick), "class": "grid"}
        parts += [element("line", attributes=line), label(x.start - 8, y.at(tick) + 4, words, "tick end")]
    parts += [
        label(x.at(tick), y.start + 16, words, "tick middle") for tick, words in labelled_ticks(x.low, x.high, x_count)
    ]
    parts.append(label((x.start + x.end) / 2, y.start + 36, x_label, "tick middle"))
    return parts


def polyline(x: LinearScale, y: LinearScale, points: Iterable[tuple[float, float]], style: Attributes) -> Html:
    """Draw a line through `points`, given in data coordinates; `style` holds further attributes."""
    return element(
        "polyline", attributes={"points": " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in points)} | style
    )


def label(x: float, y: float, words: str, style: str) -> Html:
    """Write `words` at a place of the picture; `style` is a class."""
    return element("text", text(words), attributes={"x": x, "y": y, "class": style})


def curve_plot(steps: NDArray[np.int64], values: Floats) -> Html:
    """Plot `values` `[N]` over `steps` `[N]`, without NaN; a noisy curve is faint under its moving average."""
    known = np.isfinite(values)
    if not known.any():
        return EMPTY
    first, last = float(steps[0]), float(steps[-1])
    steps, values = steps[known], values[known]
    x = LinearScale(first, max(last, first + 1), _LEFT, _WIDTH - _RIGHT)
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - (abs(low) or 1.0) * 0.5, high + (abs(high) or 1.0) * 0.5
    if 0 <= low < 0.35 * high:  # close to zero: include zero in the axis
        low = 0.0
    room = 0.06 * (high - low)
    y = LinearScale(low - (0.0 if low == 0 else room), high + room, _HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(x, y)]
    where, means = thinned(steps.astype(np.float64), values)
    smooth = _smoothed(means)
    noisy = len(values) >= _SMOOTH_FROM and _total_variation(means) > 2 * _total_variation(smooth)
    for path, style in ((means, "raw"), (smooth, "line")) if noisy else ((means, "line"),):
        parts.append(polyline(x, y, zip(where.tolist(), path.tolist(), strict=True), {"class": style}))
    for index in np.unique(np.linspace(0, len(values) - 1, _MAX_HOVERS).astype(int)):
        step = int(steps[index])
        value = float(values[index])
        width = (_WIDTH - _LEFT - _RIGHT) / _MAX_HOVERS
        middle = x.at(step)
        box: Attributes = {"x": middle - width / 2, "y": _TOP, "width": width}
        target = element("rect", attributes=box | {"height": _HEIGHT - _TOP - _BOTTOM})
        title = element("title", text(f"step {step:,}: {format_number(value)}"))
        parts.append(styled("g", "hover", title, target, _dot(middle, y.at(value), "", 2.6)))
    if not noisy:
        parts.append(_dot(x.at(float(steps[-1])), y.at(float(values[-1])), "end", 2.6))
    return _picture(_WIDTH, _HEIGHT, *parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """One row of an interval plot: a mean with its interval."""

    label: str
    mean: float
    low: float
    high: float
    words: str = ""
    """Text beside the interval; empty: the mean."""


def interval_plot(
    rows: Sequence[IntervalRow],
    *,
    unit_axis: bool = True,
    level: float | None = None,
    emphasised: Sequence[int] | None = None,
) -> Html:
    """Plot means with their intervals on one axis, which is 0 to 1 if all values are and `unit_axis` is set.

    `level`: a value to compare with, drawn as a line through all rows. `emphasised`: numbers of rows in the accent
    colour; None: the last one.
    """
    values = [value for row in rows for value in (row.low, row.mean, row.high)]
    ends = [value for value in (*values, *([] if level is None else [level])) if math.isfinite(value)]
    if not ends:
        return EMPTY
    low, high = min(ends), max(ends)
    if unit_axis and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    else:
        margin = 0.08 * (high - low) or 1.0
        low, high = low - margin, high + margin
    width, row_height = _WIDE, 34.0
    left = min(max(120.0, 7.0 * max(len(row.label) for row in rows) + 20), 0.4 * width)  # room for the longest name
    bottom = row_height * len(rows) + 6
    x = LinearScale(low, high, left, width - 70)
    parts = [_grid_line(x.at(tick), bottom, words) for tick, words in labelled_ticks(low, high, 5)]
    if level is not None:
        line: Attributes = {"x1": x.at(level), "x2": x.at(level), "y1": 0, "y2": bottom, "class": "level"}
        parts.append(element("line", attributes=line))
    for index, row in enumerate(rows):
        middle = 6 + row_height * (index + 0.5)
        parts.append(label(left - 14, middle + 4, row.label, "label end"))
        strong = index == len(rows) - 1 if emphasised is None else index in emphasised
        parts.append(_interval_row(row, x, middle, strong=strong))
    return _picture(width, bottom + 22, *parts, style="wide")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBlock:
    """Block of a lane."""

    name: str
    start: float
    size: float
    style: str
    title: str
    """Text on hover."""


def lane_plot(rows: Sequence[tuple[str, Sequence[LaneBlock]]], total: float, unit: str) -> Html:
    """Plot labelled lanes of blocks on one axis from 0 to `total` (or the end of the last block), ticks in `unit`."""
    end = max([total, *(block.start + block.size for _, blocks in rows for block in blocks)])
    left, row_height, height = 120.0, 34.0, 22.0
    bottom = row_height * len(rows) + 4
    x = LinearScale(0.0, end, left, _WIDE - 12)
    parts = [_grid_line(x.at(tick), bottom, f"{words} {unit}") for tick, words in labelled_ticks(0.0, end, 6)]
    for index, (name, blocks) in enumerate(rows):
        top = 4 + row_height * index
        parts.append(label(left - 14, top + height / 2 + 4, name, "label end"))
        for block in blocks:
            size = max(x.at(block.start + block.size) - x.at(block.start) - 1, 0.5)
            box: Attributes = {"x": x.at(block.start), "y": top, "width": size, "height": height, "rx": 3}
            title = element("title", text(block.title))
            parts.append(element("rect", title, attributes=box | {"class": block.style}))
            if size > 7 * len(block.name) + 12:
                parts.append(label(x.at(block.start) + 7, top + height / 2 + 4, block.name, "on-part"))
    return _picture(_WIDE, bottom + 22, *parts, style="wide")


def part_style(name: str, index: int) -> str:
    """CSS class of part `index`: seven colours, and grey for the rest."""
    return "p7" if name == "other" else f"p{index % 7}"


def _axes(x: LinearScale, y: LinearScale) -> Html:
    parts: list[Html] = []
    for tick, words in labelled_ticks(y.low, y.high, 4):
        height = y.at(tick)
        line: Attributes = {"x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": height, "y2": height}
        parts.append(element("line", attributes=line | {"class": "grid"}))
        parts.append(label(_LEFT - 5, height + 3, words, "tick end"))
    for tick in nice_ticks(x.low, x.high, 4):
        if tick == int(tick):
            anchor = "tick end" if x.at(tick) > _WIDTH - _RIGHT - 8 else "tick middle"
            parts.append(label(min(x.at(tick), _WIDTH - 2), _HEIGHT - 4, format_number(tick), anchor))
    return join(parts)


def thinned(steps: Floats, values: Floats, max_points: int = _MAX_POINTS) -> tuple[Floats, Floats]:
    """Reduce to at most `max_points` points: means over blocks of equal length."""
    if len(values) <= max_points:
        return steps, values
    starts = np.arange(0, len(values), math.ceil(len(values) / max_points))
    counts = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


def _smoothed(values: Floats) -> Floats:
    """Centred moving average over about a twelfth of the points; shorter towards both ends."""
    window = np.ones(max(len(values) // 12, 3) | 1)
    return np.convolve(values, window, "same") / np.convolve(np.ones_like(values), window, "same")


def _total_variation(values: Floats) -> float:
    """Total variation of a curve: smoothing reduces that of noise, but not that of a schedule."""
    return float(np.abs(np.diff(values)).sum())


def _interval_row(row: IntervalRow, x: LinearScale, middle: float, *, strong: bool) -> Html:
    style = "interval now" if strong else "interval"
    title = element(
        "title", text(f"{row.label}: {format_number(row.mean)} ({format_number(row.low)} to {format_number(row.high)})")
    )
    if not all(map(math.isfinite, (row.mean, row.low, row.high))):
        return styled("g", style, title)
    line: Attributes = {"x1": x.at(row.low), "x2": x.at(row.high), "y1": middle, "y2": middle}
    caps = [
        element("line", attributes={"x1": x.at(end), "x2": x.at(end), "y1": middle - 5, "y2": middle + 5})
        for end in (row.low, row.high)
    ]
    value = label(x.at(row.high) + 10, middle + 4, row.words or format_number(row.mean), "value")
    return styled(
        "g", style, title, element("line", attributes=line), *caps, _dot(x.at(row.mean), middle, "", 5), value
    )


def _grid_line(at: float, bottom: float, words: str) -> Html:
    line: Attributes = {"x1": at, "x2": at, "y1": 0, "y2": bottom, "class": "grid"}
    return join([element("line", attributes=line), label(at, bottom + 16, words, "tick middle")])


def _dot(x: float, y: float, style: str, radius: float) -> Html:
    return element("circle", attributes={"cx": x, "cy": y, "r": radius, "class": style})


def _picture(width: float, height: float, *parts: Html, style: str = "small") -> Html:
    box = f"0 0 {width:.0f} {height:.0f}"
    return element("svg", *parts, attributes={"viewBox": box, "class": style, "role": "img"})


# ------------------------------------------------------------------------------------------------------------ svg lines


_LINES_WIDTH, _LINES_HEIGHT = 960.0, 320.0
_LINES_LEFT, _LINES_RIGHT, _LINES_TOP, _LINES_BOTTOM = 64.0, 16.0, 10.0, 40.0
_COLOURS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSeries(RunCurveBand):
    """A curve with its interval, as it is drawn."""

    name: str
    colour: int


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
    x = LinearScale(first, max(last, first + 1e-9), _LINES_LEFT, _LINES_WIDTH - _LINES_RIGHT)
    y = LinearScale(low - room, high + room, _LINES_HEIGHT - _LINES_BOTTOM, _LINES_TOP)
    parts = axes(x, y, x_label, y_ticks=labelled_ticks(y.low, y.high, 5))
    if floor is not None:
        parts.append(_level(x, y, floor))
    parts += [_band(one, x, y) for one in series]
    parts += [_line(one, x, y) for one in series]
    box: Attributes = {"viewBox": f"0 0 {_LINES_WIDTH:.0f} {_LINES_HEIGHT:.0f}", "class": "wide", "role": "img"}
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


# ------------------------------------------------------------------------------------------------------------- svg bars


_BARS_WIDE, _ROW, _BAR = 960.0, 26.0, 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledBar:
    """One bar with its label."""

    name: str
    value: float
    words: str
    """Text after the bar."""
    style: str = "p0"
    """CSS class of the colour, `p0` to `p7`."""


def horizontal_bars(bars: Sequence[LabelledBar], *, longest: float | None = None) -> Html:
    """Draw bars from 0 to their values, one below the other; `longest`: value of the axis' end, None: the largest."""
    if not bars:
        return EMPTY
    left = min(max(120.0, 7.5 * max(len(bar.name) for bar in bars) + 20), 0.4 * _BARS_WIDE)
    end = longest if longest is not None else max(bar.value for bar in bars)
    room = 8.0 * max(len(bar.words) for bar in bars) + 20
    x = LinearScale(0.0, end if end > 0 else 1.0, left, _BARS_WIDE - room)
    parts: list[Html] = []
    for index, bar in enumerate(bars):
        top = 4 + _ROW * index
        box: Attributes = {"x": left, "y": top + (_ROW - _BAR) / 2, "height": _BAR, "rx": 2, "class": bar.style}
        title = element("title", text(f"{bar.name}: {bar.words}"))
        parts.append(label(left - 14, top + _ROW / 2 + 4, bar.name, "label end"))
        parts.append(element("rect", title, attributes=box | {"width": max(x.at(bar.value) - left, 0.5)}))
        parts.append(label(x.at(bar.value) + 8, top + _ROW / 2 + 4, bar.words, "tick"))
    return _wide_picture(_ROW * len(bars) + 8, parts)


def histogram(counts: Sequence[int], *, low: float, high: float, x_label: str) -> Html:
    """Draw counts of equal bins between `low` and `high`."""
    if not sum(counts):
        return EMPTY
    height = 190.0
    x = LinearScale(low, high, 64.0, _BARS_WIDE - 20)
    y = LinearScale(0.0, float(max(counts)), height, 10.0)
    width = (high - low) / len(counts)
    parts = axes(x, y, x_label, y_ticks=labelled_ticks(0.0, float(max(counts)), 4), x_count=10)
    for place, count in enumerate(counts):
        begin, until = low + place * width, low + (place + 1) * width
        words = f"{format_number(begin)} to {format_number(until)}: {count:,}"
        box: Attributes = {"x": x.at(begin) + 1, "width": x.at(until) - x.at(begin) - 2, "y": y.at(count)}
        title = element("title", text(words))
        parts.append(element("rect", title, attributes=box | {"height": height - y.at(count), "class": "p0"}))
    return _wide_picture(height + 44, parts)


def _wide_picture(height: float, parts: Sequence[Html]) -> Html:
    box = f"0 0 {_BARS_WIDE:.0f} {height:.0f}"
    return element("svg", *parts, attributes={"viewBox": box, "class": "wide", "role": "img"})
