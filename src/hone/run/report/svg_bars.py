"""Bars as inline SVG: labelled horizontal bars, and a histogram.

Belongs here: geometry. Colours come from the page's style sheet by class; SVG titles show exact values on hover.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hone.run.report.html import EMPTY, Html, element, format_number, text
from hone.run.report.svg import Attributes, LinearScale, axes, label, labelled_ticks

_WIDE, _ROW, _BAR = 960.0, 26.0, 14.0


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
    left = min(max(120.0, 7.5 * max(len(bar.name) for bar in bars) + 20), 0.4 * _WIDE)
    end = longest if longest is not None else max(bar.value for bar in bars)
    room = 8.0 * max(len(bar.words) for bar in bars) + 20
    x = LinearScale(0.0, end if end > 0 else 1.0, left, _WIDE - room)
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
    x = LinearScale(low, high, 64.0, _WIDE - 20)
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
    box = f"0 0 {_WIDE:.0f} {height:.0f}"
    return element("svg", *parts, attributes={"viewBox": box, "class": "wide", "role": "img"})
