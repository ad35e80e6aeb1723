"""Values on the boundaries of sequential tests and of what they can detect."""

import math

import numpy as np
import pytest

from hone.decide.estimators.sequential import (
    AsymptoticSequence,
    DeadlineBet,
    _ridge_coefficients,
    detectable_fall,
    detection_power,
    events_to_detect,
    matched_scores,
)


def test_a_tolerance_of_all_of_the_range_is_one_and_more_is_none() -> None:
    values, arms = np.array([0.5]), np.array([True])
    assert matched_scores(values, arms, tolerance=1.0) == pytest.approx([-1 / 3])  # (0 - 1/2) / (1 + 1/2)
    assert matched_scores(values, arms, tolerance=0.0) == pytest.approx([0.0])
    for tolerance in (-0.01, 1.01):
        with pytest.raises(ValueError, match="0 to 1"):
            matched_scores(values, arms, tolerance=tolerance)


def test_two_values_have_an_interval_and_one_has_none() -> None:
    one = AsymptoticSequence().advance(np.array([0.5]))
    assert math.isinf(one.interval().high)
    assert math.isfinite(one.advance(np.array([0.7])).interval().high)


def test_nothing_is_found_without_a_fall_a_spread_or_an_event() -> None:
    assert detection_power(0.0, sd=0.5, events=100, alpha=0.05) == 0.05
    assert detection_power(0.1, sd=0.0, events=100, alpha=0.05) == 0.05
    assert detection_power(0.1, sd=0.5, events=0, alpha=0.05) == 0.0
    assert detection_power(0.0, sd=0.5, events=1, alpha=0.05) == 0.05
    assert detection_power(2.0, sd=0.5, events=1, alpha=0.5) != 0.5  # one event is judged


def test_the_largest_fall_may_have_the_power_that_is_asked_for() -> None:
    power = detection_power(1.0, sd=0.5, events=200, alpha=0.05)
    assert detectable_fall(sd=0.5, events=200, alpha=0.05, power=power) is not None
    assert detectable_fall(sd=0.5, events=200, alpha=0.05, power=math.nextafter(power, 2)) is None


def test_the_events_are_the_fewest_that_have_the_power() -> None:
    for events in (64, 100):
        power = detection_power(0.4, sd=0.5, events=events, alpha=0.05)
        assert detection_power(0.4, sd=0.5, events=events - 1, alpha=0.05) < power
        assert events_to_detect(0.4, sd=0.5, alpha=0.05, power=power) == events


def test_a_gambler_who_holds_the_goal_stakes_nothing() -> None:
    # (1 - 2/5) / (3/5) = 1: at a level of 1 the first wealth is the goal
    for level, stakes in ((1.0, False), (0.999, True)):
        _, path = DeadlineBet(horizon=100, level=level).advance(np.array([0.5]), np.zeros(1))
        assert (path[0] > 0) == stakes


def test_a_covariate_of_the_least_variance_has_no_slope() -> None:
    # 64 values of mean 0: the sum of squares is 64 variances
    for variance, slopes in ((1e-12, False), (math.nextafter(1e-12, 1), True)):
        products = np.array([[64.0, 0.0], [0.0, 64.0 * variance]])
        assert bool(_ridge_coefficients(products, np.array([0.0, 1e-6]))[1]) == slopes
