"""Intervals of off-policy estimates: by hand, by plain loops, exact coverage by enumeration."""

import itertools
import math

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.decide.estimators.terms import (
    EstimatorTerms,
    bernstein_interval,
    bootstrap_interval,
    normal_interval,
    standard_error,
)


def plain_terms(values: np.ndarray, weights: np.ndarray | None = None) -> EstimatorTerms:
    below = np.ones(len(values)) if weights is None else weights
    return EstimatorTerms(base=np.zeros(len(values)), numerator=values[:, None], denominator=below[:, None])


def test_a_standard_error_by_hand() -> None:
    """Deviations -1, 0, 1: variance 1 over 3 rows."""
    values = np.array([1.0, 2.0, 3.0])
    assert standard_error(values, np.arange(3)) == pytest.approx(math.sqrt(1 / 3))
    assert normal_interval(values, np.arange(3), level=0.95).high == pytest.approx(2 + 1.959964 * math.sqrt(1 / 3))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20), st.integers(1, 4))
def test_rows_of_one_unit_are_worth_one_row(values: list[float], copies: int) -> None:
    """Copies of a row within its unit change neither the estimate nor its error."""
    once, units = np.array(values), np.arange(len(values))
    again = np.repeat(once, copies)
    clustered = standard_error(again, np.repeat(units, copies))
    assert clustered == pytest.approx(standard_error(once, units), abs=1e-12)
    assert standard_error(once, units * 3 + 1) == pytest.approx(standard_error(once, units))  # numbers may have gaps


@given(st.integers(0, 1000))
@examples(30)
def test_the_clustered_error_equals_plain_loops(seed: int) -> None:
    random = np.random.default_rng(seed)
    values, unit = random.normal(size=15), random.integers(0, 5, 15)
    mean, groups = sum(values) / 15, sorted(set(unit.tolist()))
    squares = sum(sum(v - mean for v, u in zip(values, unit, strict=True) if u == g) ** 2 for g in groups)
    slow = math.sqrt(len(groups) / (len(groups) - 1) * squares) / 15 if len(groups) > 1 else math.inf
    assert standard_error(values, unit) == pytest.approx(slow)


def test_one_unit_has_no_interval() -> None:
    same = np.zeros(3, np.int64)
    assert standard_error(np.ones(3), same) == math.inf
    assert bernstein_interval(np.ones(3), same, level=0.9, span=1.0).low == -math.inf


def test_bernstein_by_hand_and_its_coverage_by_enumeration() -> None:
    """n = 4 of range 1 at 90%: half = sqrt(2 V ln 40 / 4) + 7 ln 40 / 9; over coins of any bias it covers always."""
    found = bernstein_interval(np.array([0.0, 0, 1, 1]), np.arange(4), level=0.9, span=1.0)
    half = math.sqrt(2 * (1 / 3) * math.log(40) / 4) + 7 * math.log(40) / 9
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half))
    n = 12
    intervals = {
        k: bernstein_interval(np.repeat([1.0, 0.0], [k, n - k]), np.arange(n), level=0.5, span=1.0)
        for k in range(n + 1)
    }
    for p in np.linspace(0.02, 0.98, 25):
        covered = sum(
            math.comb(n, k) * p**k * (1 - p) ** (n - k) for k, one in intervals.items() if one.low <= p <= one.high
        )
        assert covered >= 0.5


def test_bernstein_counts_units_not_rows() -> None:
    values, unit = np.array([0.0, 1.0, 1.0, 0.0]), np.array([0, 0, 1, 1])
    means = bernstein_interval(np.array([0.5, 0.5]), np.arange(2), level=0.9, span=1.0)
    found = bernstein_interval(values, unit, level=0.9, span=1.0)
    assert (found.low, found.high) == pytest.approx((means.low, means.high))


def test_the_bootstrap_approaches_all_resamples() -> None:
    """Three units have 27 resamples: the quantiles of their ratios, enumerated."""
    above, below, unit = np.array([1.0, 2.0, 6.0, 3.0]), np.array([1.0, 1.0, 2.0, 4.0]), np.array([0, 0, 1, 2])
    sums = np.array([[3.0, 2.0], [6.0, 2.0], [3.0, 4.0]])
    all_values = [sums[list(picks)].sum(axis=0) for picks in itertools.product(range(3), repeat=3)]
    exact = np.quantile([a / b for a, b in all_values], [0.1, 0.9])
    found = bootstrap_interval(plain_terms(above, below), unit, level=0.8, draws=4000)
    assert found.low == pytest.approx(exact[0], abs=0.08)
    assert found.high == pytest.approx(exact[1], abs=0.08)
    assert bootstrap_interval(plain_terms(above, below), unit, level=0.8, draws=4000) == found  # the same seed


def test_the_bootstrap_agrees_with_the_normal_interval_for_many_rows() -> None:
    values = np.random.default_rng(3).normal(2.0, 1.0, 600)
    drawn = bootstrap_interval(plain_terms(values), np.arange(600), level=0.95)
    normal = normal_interval(values, np.arange(600), level=0.95)
    assert drawn.low == pytest.approx(normal.low, abs=0.02)
    assert drawn.high == pytest.approx(normal.high, abs=0.02)
