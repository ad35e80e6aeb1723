"""Calibration: values worked out by hand, properties, and slow versions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.estimators.calibration import (
    area_interval,
    area_under_curve,
    cross_entropy,
    expected_calibration_error,
    fitted_temperature,
    mean_ranks,
    probabilities,
    rank_correlation,
    reliability_table,
)

SCORES = st.lists(st.integers(-4, 4), min_size=2, max_size=12)


def test_a_reliability_table_by_hand() -> None:
    table = reliability_table(np.array([0.1, 0.2, 0.6, 1.0]), np.array([0.0, 1.0, 1.0, 1.0]), bins=2)
    assert [(one.low, one.high, one.n) for one in table] == [(0.0, 0.5, 2), (0.5, 1.0, 2)]
    assert [one.predicted for one in table] == pytest.approx([0.15, 0.8])
    assert [one.observed for one in table] == pytest.approx([0.5, 1.0])
    assert expected_calibration_error(table) == pytest.approx(0.5 * 0.35 + 0.5 * 0.2)


def test_an_empty_bin_counts_nothing_and_no_scores_have_no_error() -> None:
    table = reliability_table(np.array([0.9]), np.array([1.0]), bins=4)
    assert math.isnan(table[0].predicted)
    assert expected_calibration_error(table) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no scores"):
        expected_calibration_error(reliability_table(np.zeros(0), np.zeros(0)))


@given(SCORES, st.integers(0, 999))
def test_the_area_is_that_of_all_pairs(values: list[int], seed: int) -> None:
    scores = np.array(values, np.float64)
    labels = np.random.default_rng(seed).integers(0, 2, len(scores)).astype(np.float64)
    pairs = [(good > bad) + 0.5 * (good == bad) for good in scores[labels > 0.5] for bad in scores[labels <= 0.5]]
    found = area_under_curve(scores, labels)
    assert math.isnan(found) if not pairs else found == pytest.approx(np.mean(pairs))
    interval = area_interval(scores, labels)
    assert math.isnan(found) or interval.low <= found <= interval.high
    assert math.isnan(found) or area_under_curve(-scores, labels) == pytest.approx(1 - found)


def test_the_interval_of_an_area_covers_it_95_times_of_100() -> None:
    draws = np.random.default_rng(0)
    labels = np.repeat([1.0, 0.0], [60, 120])
    truth = 0.7602  # P(N(1, 1) > N(0, 1))
    found = [area_interval(draws.normal(size=180) + labels, labels) for _ in range(300)]
    assert 0.92 <= np.mean([one.low <= truth <= one.high for one in found]) <= 0.98


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_that_made_the_labels_is_found(temperature: float) -> None:
    draws = np.random.default_rng(1)
    logits = draws.normal(0, 3, 20_000)
    labels = (draws.random(20_000) < probabilities(logits / temperature)).astype(np.float64)
    found = fitted_temperature(logits, labels)
    assert found == pytest.approx(temperature, rel=0.1)
    grid = np.exp(np.linspace(-2, 3, 400))
    slow = min(grid, key=lambda one: cross_entropy(logits / one, labels))
    assert cross_entropy(logits / found, labels) <= cross_entropy(logits / slow, labels) + 1e-9
    table = reliability_table(probabilities(logits / found), labels)
    assert expected_calibration_error(table) < 0.02


def test_scores_that_separate_perfectly_or_know_nothing_end_at_the_range() -> None:
    logits = np.array([-2.0, -1.0, 1.0, 2.0])
    assert fitted_temperature(logits, (logits > 0).astype(np.float64)) == pytest.approx(math.exp(-5), rel=0.01)
    assert fitted_temperature(logits, (logits < 0).astype(np.float64)) == pytest.approx(math.exp(5), rel=0.01)


@given(SCORES)
def test_ranks_share_their_mean_among_equals(values: list[int]) -> None:
    column = np.array(values, np.float64)
    slow = [1 + sum(other < one for other in values) + (values.count(one) - 1) / 2 for one in values]
    np.testing.assert_allclose(mean_ranks(column), slow)
    correlation = rank_correlation(column, 3 * column + 1)
    assert math.isnan(correlation) if len(set(values)) == 1 else correlation == pytest.approx(1)


def test_no_logit_overflows() -> None:
    assert cross_entropy(np.array([1e4, -1e4]), np.array([0.0, 1.0])) == pytest.approx(1e4)
    np.testing.assert_array_equal(probabilities(np.array([-1e4, 1e4])), [0.0, 1.0])
