"""Values on the boundaries of the estimators: two runs are enough, half of them has arrived, a label of 1/2."""

import math

import numpy as np

from hone.estimators.across_runs import (
    improvement_probability,
    median_time,
    performance_profile,
    pooled_mean,
    stratified_bootstrap,
)
from hone.estimators.calibration import area_interval, area_under_curve


def test_two_runs_of_a_task_have_an_interval_and_one_has_none() -> None:
    two, one = [np.array([0.0, 1.0])], [np.array([0.0])]
    estimate = stratified_bootstrap(two, pooled_mean, draws=200)
    assert (estimate.mean, estimate.low, estimate.high) == (0.5, 0.0, 1.0)
    assert math.isnan(stratified_bootstrap(one, pooled_mean).low)
    better = improvement_probability([np.array([2.0, 3.0])], two, draws=50)
    assert (better.mean, better.low, better.high) == (1.0, 1.0, 1.0)
    assert math.isnan(improvement_probability(one, two).low)
    profile = performance_profile(two, np.array([-1.0, 0.5]), draws=200)
    assert profile.low.tolist() == [1.0, 0.0]
    assert np.isnan(performance_profile(one, np.array([0.5])).low).all()


def test_the_median_is_the_time_at_which_exactly_half_have_arrived() -> None:
    assert median_time(np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4, bool)) == 2.0
    assert median_time(np.array([1.0, 9.0]), np.array([True, False])) == 1.0


def test_a_label_of_one_half_is_no_good_one() -> None:
    scores, labels = np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.5, 0.0])
    assert area_under_curve(scores, labels) == 1.0
    # One good and three bad ones: the same interval as with labels of 0
    mixed, marks = np.array([3.0, 4.0, 2.0, 1.0]), np.array([1.0, 0.5, 0.0, 0.0])
    assert area_interval(mixed, marks) == area_interval(mixed, np.floor(marks))
