"""Estimates over seeds: by hand, by slow versions, by scipy, and what must hold for any scores."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from hone.estimators.across_runs import (
    curve_band,
    improvement_probability,
    interquartile_mean,
    median_time,
    performance_profile,
    pooled_mean,
    pooled_median,
    probability_of_improvement,
    stratified_bootstrap,
    survival,
    time_to_threshold,
)

scores = arrays(np.float64, st.integers(1, 12), elements=st.integers(-20, 20).map(float))
strata = st.lists(scores, min_size=1, max_size=4)


def test_the_interquartile_mean_by_hand():
    assert interquartile_mean([np.array([100.0, 1, 2, 3, 4, 5, 6, -50])]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean([np.array([0.0, 10.0, 50.0])]) == pytest.approx(20.0)  # nothing to drop of three
    assert interquartile_mean([np.array([1.0, 9.0]), np.array([2.0, 100.0])]) == pytest.approx(5.5)  # of all tasks


@given(strata)
def test_it_is_scipys_trimmed_mean(tasks):
    expected = stats.trim_mean(np.concatenate(tasks), 0.25)
    assert interquartile_mean(tasks) == pytest.approx(expected)


@given(strata, st.floats(0.1, 10), st.floats(-5, 5))
def test_it_moves_with_the_scores_and_one_wild_run_moves_it_no_further(tasks, scale, shift):
    moved = [scale * task + shift for task in tasks]
    assert interquartile_mean(moved) == pytest.approx(scale * interquartile_mean(tasks) + shift, abs=1e-9)
    pooled = np.concatenate(tasks)
    assert pooled.min() <= interquartile_mean(tasks) <= pooled.max()
    if len(pooled) >= 4:
        wild = pooled.copy()
        wild[wild.argmax()] = 1e12
        assert interquartile_mean([wild]) == pytest.approx(interquartile_mean([pooled]))


def test_median_and_mean_over_tasks():
    tasks = [np.array([0.0, 2.0]), np.array([10.0, 20.0]), np.array([3.0])]
    assert pooled_median(tasks) == 3.0  # of the means 1, 15, 3
    assert pooled_mean(tasks) == 7.0
    assert pooled_median(tasks[:1]) == 1.0


def test_improvement_by_hand():
    assert probability_of_improvement([np.array([1.0, 2.0])], [np.array([0.0, 2.0])]) == 0.625  # 1 + 0 + 1 + 1/2 of 4
    both = probability_of_improvement([np.array([1.0]), np.array([0.0])], [np.array([0.0]), np.array([1.0])])
    assert both == 0.5
    found = improvement_probability([np.array([3.0, 4.0, 5.0])], [np.array([0.0, 1.0, 2.0])])
    assert (found.mean, found.low, found.high, found.n) == (1.0, 1.0, 1.0, 6)


@given(scores, scores)
def test_improvement_is_the_mann_whitney_share_and_its_mirror_image(x, y):
    slow = np.mean([(a > b) + 0.5 * (a == b) for a, b in product(x, y)])
    assert probability_of_improvement([x], [y]) == pytest.approx(slow)
    statistic = stats.mannwhitneyu(x, y, method="asymptotic").statistic if np.ptp(np.append(x, y)) else None
    if statistic is not None:
        assert probability_of_improvement([x], [y]) == pytest.approx(statistic / (len(x) * len(y)))
    assert probability_of_improvement([x], [y]) + probability_of_improvement([y], [x]) == pytest.approx(1.0)


def test_the_profile_by_hand_and_against_a_loop():
    tasks = [np.array([1.0, 3.0]), np.array([2.0])]
    profile = performance_profile(tasks, np.array([0.0, 1.0, 2.5]))
    assert profile.share.tolist() == [1.0, 0.75, 0.25]
    assert np.isnan(profile.low).all()  # one task has one run
    rng = np.random.default_rng(0)
    tasks, thresholds = [rng.normal(size=5), rng.normal(size=9)], np.linspace(-3, 3, 13)
    profile = performance_profile(tasks, thresholds)
    slow = [np.mean([sum(x > at for x in task) / len(task) for task in tasks]) for at in thresholds]
    assert profile.share == pytest.approx(slow)
    assert (np.diff(profile.share) <= 0).all()
    assert (profile.low <= profile.share + 1e-12).all() and (profile.share <= profile.high + 1e-12).all()


def test_the_bootstrap_draws_within_each_task():
    # Equal runs in each task: however they are drawn, every draw is the same. Across tasks it would not be.
    apart = [np.full(5, 0.0), np.full(5, 100.0)]
    found = stratified_bootstrap(apart, pooled_mean)
    assert (found.mean, found.low, found.high, found.n) == (50.0, 50.0, 50.0, 10)
    alone = stratified_bootstrap([np.array([7.0])], interquartile_mean)
    assert alone.mean == 7.0 and math.isnan(alone.low) and math.isnan(alone.high)
    with pytest.raises(ValueError, match="no scores"):
        stratified_bootstrap([np.zeros(0)], pooled_mean)


def test_the_bootstrap_agrees_with_every_possible_draw():
    runs = np.array([1.0, 2.0, 4.0, 9.0])
    every = [interquartile_mean([np.array(draw)]) for draw in product(runs, repeat=4)]
    found = stratified_bootstrap([runs], interquartile_mean, draws=20_000)
    assert found.low == pytest.approx(np.quantile(every, 0.025), abs=0.3)
    assert found.high == pytest.approx(np.quantile(every, 0.975), abs=0.3)


def test_intervals_of_ten_runs_hold_the_truth_nearly_as_often_as_they_say():
    rng, held = np.random.default_rng(1), 0
    for trial in range(400):
        found = stratified_bootstrap([rng.normal(size=10)], interquartile_mean, draws=300, seed=trial)
        held += found.low <= 0.0 <= found.high
    assert 0.86 <= held / 400 <= 0.97  # a percentile bootstrap of ten runs is known to be a little short of 0.95


def test_curves_are_summed_up_place_by_place():
    curves = np.array([[0.0, 1.0, np.nan], [0.0, 3.0, np.nan], [0.0, 5.0, 7.0]])
    band = curve_band(curves)
    assert band.middle[:2].tolist() == [0.0, 3.0] and band.middle[2] == 7.0
    assert band.low[1] < 3.0 < band.high[1]
    assert math.isnan(band.low[2])  # one run
    assert math.isnan(curve_band(np.full((2, 1), np.nan)).middle[0])


def test_kaplan_meier_by_hand():
    # Arrivals at 1, 3, 3; one run stopped at 2 without arriving, one at 5.
    times, reached = np.array([1.0, 2.0, 3.0, 3.0, 5.0]), np.array([True, False, True, True, False])
    order, left = survival(times, reached)
    assert order.tolist() == [1.0, 3.0]
    assert left.tolist() == pytest.approx([4 / 5, 4 / 5 * (1 - 2 / 3)])
    assert median_time(times, reached) == 3.0


@given(st.lists(st.integers(1, 30), min_size=1, max_size=15))
def test_without_censoring_it_is_the_lower_median(times):
    taken = np.array(times, np.float64)
    lower = sorted(times)[math.ceil(len(times) / 2) - 1]
    assert median_time(taken, np.ones(len(times), np.bool_)) == lower


def test_runs_that_never_arrive_make_the_median_infinite_and_not_their_budget():
    times = np.array([10.0, 50.0, 50.0, 50.0])
    found = time_to_threshold(times, np.array([True, False, False, False]))
    assert found.median == math.inf and (found.reached, found.n) == (1, 4) and found.high == math.inf
    found = time_to_threshold(np.array([10.0, 12.0, 14.0, 50.0]), np.array([True, True, True, False]))
    assert found.median == 12.0 and found.low >= 10.0 and found.high == math.inf
    assert math.isnan(time_to_threshold(times[:1], np.array([True])).low)
