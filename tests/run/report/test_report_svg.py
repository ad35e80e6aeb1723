"""The pictures' geometry, against values worked out by hand."""

import math
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hone.run.report import svg
from hone.run.report.svg import IntervalRow, LinearScale, curve_plot, interval_plot, nice_ticks, tick_labels


def points(picture, style):
    found = re.search(rf'<polyline points="([^"]*)" class="{style}">', picture)
    return [tuple(map(float, pair.split(","))) for pair in found[1].split()] if found else None


def test_scale():
    assert LinearScale(0, 10, 100, 200).at(2.5) == 125
    assert LinearScale(0, 1, 110, 8).at(1) == 8  # upside down, as pictures are


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(1, 8))
def test_ticks_are_few_round_and_inside(low, size, count):
    assume(size > 1e-8 * abs(low))
    high = low + size
    ticks = nice_ticks(low, high, count)
    assert len(ticks) <= count + 1
    slack = 1e-6 * size + 1e-9 * abs(low)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    for step in np.diff(ticks)[:1]:
        digits = step / 10 ** math.floor(math.log10(step) + 1e-4)
        assert min(abs(digits - good) for good in (1, 2, 5, 10)) < 1e-2


def test_ticks_by_hand():
    assert nice_ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(3, 97, 4) == [50]  # a step of 25 is not round enough
    assert nice_ticks(0.13, 1.72, 4) == [0.5, 1.0, 1.5]
    assert nice_ticks(5, 5, 4) == [5]


def test_tick_labels_have_the_same_decimals():
    assert tick_labels([0, 0.25, 1]) == ["0.00", "0.25", "1.00"]
    assert tick_labels([1000, 2000]) == ["1,000", "2,000"]
    assert tick_labels([0.0, 2e-4]) == ["0", "2e−4"]  # noqa: RUF001


def test_curve_by_hand():
    picture = curve_plot(np.array([1, 2, 3]), np.array([0.0, 1.0, 0.5]))
    # x from 36 to 292; y from 110 (0) up to 8 (1.06: six hundredths of room above)
    assert points(picture, "line") == [(36.0, 110.0), (164.0, 13.8), (292.0, 61.9)]
    assert "step 2: 1" in picture
    assert points(picture, "raw") is None


def test_a_missing_value_is_left_out():
    picture = curve_plot(np.array([1, 2, 3]), np.array([0.0, np.nan, 1.0]))
    assert points(picture, "line") == [(36.0, 110.0), (292.0, 13.8)]
    assert curve_plot(np.array([1, 2]), np.array([np.nan, np.inf])) == ""


def test_one_point_and_constants_have_a_place():
    for values in ([3.0], [0.0, 0.0], [-2.0, -2.0]):
        picture = curve_plot(np.arange(1, len(values) + 1), np.array(values))
        assert "nan" not in picture
        assert "<circle" in picture


def test_noise_is_smoothed_and_a_schedule_is_not():
    steps = np.arange(1, 101)
    noise = np.random.default_rng(0).random(100)
    assert points(curve_plot(steps, noise), "raw")
    smooth = points(curve_plot(steps, noise), "line")
    assert smooth
    assert np.std([y for _, y in smooth]) < 0.5 * np.std([y for _, y in points(curve_plot(steps, noise), "raw") or []])
    warmup = np.minimum(steps / 10, 1.0)
    assert points(curve_plot(steps, warmup), "raw") is None


def test_smoothing_keeps_a_constant_and_thinning_keeps_the_mean():
    np.testing.assert_allclose(svg._smoothed(np.full(50, 3.0)), 3.0)
    steps, values = svg.thinned(np.arange(1000.0), np.arange(1000.0) * 2)
    assert len(values) <= 400
    np.testing.assert_allclose(values, steps * 2)
    assert values[:-1].sum() * 3 + values[-1] == pytest.approx(999000)


def test_intervals_by_hand():
    picture = interval_plot([IntervalRow(label="a", mean=0.5, low=0.25, high=1.0)])
    # the axis runs from 120 (0) to 890 (1)
    assert 'x1="312.5" x2="890"' in picture
    assert 'cx="505"' in picture
    assert "a: 0.500 (0.250 to 1)" in picture


def test_intervals_outside_the_unit_range_and_not_finite():
    picture = interval_plot(
        [IntervalRow(label="a", mean=-200, low=-250, high=-150), IntervalRow(label="b", mean=math.nan, low=0, high=1)]
    )
    assert "nan" not in picture
    assert "−200" in picture  # noqa: RUF001
    assert interval_plot([IntervalRow(label="b", mean=math.nan, low=math.nan, high=math.nan)]) == ""
