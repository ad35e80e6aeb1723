"""Bars and histograms as SVG: lengths in proportion, words escaped, nothing drawn of nothing."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from hone.run.report.html import EMPTY
from hone.run.report.svg import IntervalRow, LabelledBar, histogram, horizontal_bars, interval_plot


def widths(picture: str, size: str) -> list[float]:
    return [float(value) for value in re.findall(rf'<rect[^>]* {size}="([\d.]+)"', picture)]


def test_bars_are_as_long_as_their_values() -> None:
    bars = [LabelledBar(name="a<b", value=2.0, words="2"), LabelledBar(name="c", value=1.0, words="1", style="p4")]
    picture = horizontal_bars(bars)
    first, second = widths(picture, "width")
    assert first == pytest.approx(2 * second, abs=0.02)
    assert "a&lt;b" in picture and 'class="p4"' in picture
    assert ElementTree.fromstring(picture).tag == "svg"
    assert max(widths(horizontal_bars(bars, longest=4.0), "width")) == pytest.approx(first / 2, abs=0.02)
    assert horizontal_bars([]) == EMPTY


def test_a_histogram_has_a_bar_for_each_bin() -> None:
    picture = histogram([1, 0, 4], low=0.0, high=3.0, x_label="p")
    heights = widths(picture, "height")
    assert heights[2] == pytest.approx(4 * heights[0], abs=0.02)
    assert heights[1] == 0.0
    assert histogram([0, 0], low=0.0, high=1.0, x_label="p") == EMPTY


def test_an_interval_plot_may_leave_the_unit_axis_and_show_a_level() -> None:
    rows = [IntervalRow(label="small", mean=0.005, low=0.004, high=0.006)] * 2
    near, far = interval_plot(rows, unit_axis=False, level=0.007, emphasised=[0]), interval_plot(rows)
    assert 'class="level"' in near and 'class="level"' not in far
    assert near.count("interval now") == 1 and near.index("interval now") < near.index('"interval"')
    assert "0.007" in near and "1.0" in far
    assert ">5 in 1,000<" in interval_plot([IntervalRow(label="x", mean=5.0, low=4.0, high=6.0, words="5 in 1,000")])
