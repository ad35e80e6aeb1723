"""The gambler with a deadline, and covariates in the centre of matched scores: valid, and worth what they cost."""

import itertools
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.decide.estimators.sequential import (
    DEADLINE_PART,
    DeadlineBet,
    MatchedArms,
    MixtureProcess,
    OutcomeRegression,
    detection_power,
    events_to_detect,
    matched_scores,
)

ALPHA = 0.05


def process(horizon: int, level: float = ALPHA) -> MixtureProcess:
    return MixtureProcess(deadline=DeadlineBet(horizon=horizon, level=level))


def test_the_first_stake_by_hand() -> None:
    """100 scores to come of variance .1: R = 10. The goal is (20 - .4) / .6 = 32.67, so q = 1 / 32.67, d = -1.871."""
    bet, path = DeadlineBet(horizon=100, level=0.05).advance(np.array([0.5]), np.zeros(1))
    share = 0.6 / (20 - 0.4)
    normal = NormalDist()
    stake = normal.pdf(normal.inv_cdf(share)) / (share * math.sqrt(10))
    assert bet.stake == pytest.approx(stake)
    assert 0.7 < stake < 0.73
    assert path[0] == pytest.approx(math.log1p(stake * 0.5))
    assert (bet.seen, bet.squares) == (1, 0.25)


def test_nothing_is_staked_after_the_deadline_or_with_the_goal_in_hand() -> None:
    late = DeadlineBet(horizon=10, level=0.05, seen=10, squares=1.0)
    assert late.advance(np.ones(5), np.zeros(5))[0].log_wealth == 0.0
    rich = DeadlineBet(horizon=10, level=0.05, log_wealth=math.log(33), squares=1.0)
    assert rich.advance(-np.ones(3), np.zeros(3))[0].log_wealth == math.log(33)
    assert DEADLINE_PART * 33 + (1 - DEADLINE_PART) >= 20


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_the_mean_e_value_is_one_by_enumeration(rate: float) -> None:
    """Every sequence of coins and Bernoulli values of equal rates: E[e_t] = 1 at each t, with a covariate that knows
    the value. The regression is there from the first value on, so that its centre is far from the mean."""
    sums = np.zeros(5)
    known = OutcomeRegression(count=50, products=(50.0, 25.0, 25.0), sides=(25.0, 25.0), coefficients=(0.1, 0.7))
    for coins in itertools.product([True, False], repeat=5):
        for values in itertools.product([0.0, 1.0], repeat=5):
            chance = math.prod(0.5 * (rate if value else 1 - rate) for value in values)
            arms = MatchedArms(regression=known)
            _, scores = arms.advance(np.array(values), np.array(coins), np.array(values)[:, None])
            sums += chance * np.exp(process(5).advance(scores)[1])
    assert sums == pytest.approx(np.ones(5), abs=1e-12)


@examples(30)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 700), max_size=5))
def test_batches_make_no_difference(seed: int, cuts: list[int]) -> None:
    random = np.random.default_rng(seed)
    covariates, is_new = random.normal(size=(700, 3)), random.random(700) < 0.5
    values = np.clip(0.5 + 0.2 * covariates[:, 0] + 0.2 * random.normal(size=700), 0, 1)
    covariates[random.random(700) < 0.05, 1] = np.nan
    arms, scores = MatchedArms(tolerance=0.1).advance(values, is_new, covariates)
    whole, path = process(600).advance(scores)
    part_arms, part, paths, all_scores = (
        MatchedArms(tolerance=0.1),
        process(600),
        list[np.ndarray](),
        list[np.ndarray](),
    )
    for rows in np.split(np.arange(700), sorted(cuts)):
        part_arms, own = part_arms.advance(values[rows], is_new[rows], covariates[rows])
        part, own_path = part.advance(own)
        all_scores.append(own)
        paths.append(own_path)
    assert np.concatenate(all_scores) == pytest.approx(scores, abs=1e-9)
    assert np.concatenate(paths) == pytest.approx(path, abs=1e-6)
    assert part.log_e == pytest.approx(whole.log_e, abs=1e-6)
    assert part_arms.regression.count == arms.regression.count == 700
    assert np.all(np.abs(scores) <= 1)


def test_predictions_are_a_ridge_regression_of_the_values_before() -> None:
    random = np.random.default_rng(1)
    covariates = random.normal(size=(170, 2)) * np.array([1.0, 1000.0]) + np.array([5.0, 0.0])
    values = random.random(170)
    _, predicted = OutcomeRegression().advance(covariates, values)
    assert np.isnan(predicted[:50]).all()
    for at in (50, 99, 100, 169):
        used = at // 50 * 50
        mean, spread = covariates[:used].mean(axis=0), covariates[:used].std(axis=0)
        x = (covariates - mean) / spread
        tall = np.vstack([np.column_stack([np.ones(used), x[:used]]), math.sqrt(20) * np.eye(3)[1:]])
        slow = np.linalg.lstsq(tall, np.append(values[:used], np.zeros(2)), rcond=None)[0]
        assert predicted[at] == pytest.approx(slow[0] + x[at] @ slow[1:])


def test_covariates_that_are_constant_or_not_finite_change_nothing() -> None:
    random = np.random.default_rng(2)
    values, is_new = random.random(300), random.random(300) < 0.5
    constant = np.full((300, 2), 3.0)
    predicted = OutcomeRegression().advance(constant, values)[1]
    assert predicted[50:100] == pytest.approx(np.full(50, values[:50].mean()))
    nothing = MatchedArms().advance(values, is_new, np.full((300, 2), np.nan))[1]
    assert nothing.tolist() == matched_scores(values, is_new).tolist()
    assert MatchedArms().advance(values, is_new, np.zeros((300, 0)))[1].tolist() == nothing.tolist()


def share_found(change: float, *, runs: int, slope: float, units: int, seed: int, drift: float = 0.0) -> float:
    """Share of runs of 30% conversions that are found by `units` units; `slope`: of a covariate's logistic curve."""
    found = 0
    for run in range(runs):
        random = np.random.default_rng([seed, run])
        is_new, covariate = random.random(units) < 0.5, random.normal(size=units)
        rate = 1 / (
            1 + np.exp(0.85 * math.sqrt(1 + slope**2 / 3) + slope * covariate + drift * np.linspace(-1, 1, units))
        )
        values = (random.random(units) < rate * np.where(is_new, 1 + change, 1.0)).astype(np.float64)
        _, scores = MatchedArms().advance(values, is_new, covariate[:, None])
        found += bool(process(units).advance(scores)[1].max() >= -math.log(ALPHA))
    return found / runs


@pytest.mark.parametrize(("slope", "drift"), [(0.0, 0.0), (2.0, 0.0), (2.0, 2.0)])
def test_equal_versions_are_rolled_back_at_most_at_the_level(slope: float, drift: float) -> None:
    """Of 250 runs, at each look: at most 5% and three standard errors of it, with and without a covariate and drift."""
    assert share_found(0.0, runs=140, slope=slope, units=1500, seed=7, drift=drift) <= 0.05 + 3 * math.sqrt(
        0.05 * 0.95 / 140
    )


def test_a_deadline_and_a_covariate_find_more() -> None:
    """A fall of 22% in 1,600 units, the same difficulty as one of 10% in 8,100: fixed stakes find about 60%."""
    plain = share_found(-0.22, runs=90, slope=0.0, units=1600, seed=8)
    helped = share_found(-0.22, runs=90, slope=2.0, units=1600, seed=8)
    assert plain > 0.65
    assert helped > plain + 0.08


@pytest.mark.slow
def test_a_thousand_equal_versions_hold_the_level() -> None:
    for slope, drift in ((0.0, 0.0), (2.0, 0.0), (2.0, 2.0)):
        assert share_found(0.0, runs=1000, slope=slope, units=2000, seed=9, drift=drift) <= 0.05


def test_the_power_with_a_deadline_is_that_of_simulated_runs() -> None:
    sd = math.sqrt(0.3 * 0.7)
    for change in (-0.15, -0.22, -0.3):
        found = share_found(change, runs=100, slope=0.0, units=1600, seed=10)
        power = detection_power(-0.3 * change, sd=sd, events=1600, alpha=ALPHA, deadline=1600)
        assert power == pytest.approx(found, abs=0.05 + 2 * math.sqrt(found * (1 - found) / 100))
    early = detection_power(0.066, sd=sd, events=800, alpha=ALPHA, deadline=1600)
    assert early < detection_power(0.066, sd=sd, events=800, alpha=ALPHA)  # a part of the wealth waits
    with_deadline = events_to_detect(0.066, sd=sd, alpha=ALPHA, by_deadline=True)
    without = events_to_detect(0.066, sd=sd, alpha=ALPHA)
    assert with_deadline is not None and without is not None and with_deadline < 0.8 * without


def test_a_process_without_a_deadline_is_the_mixture_of_fixed_stakes() -> None:
    scores = np.random.default_rng(3).uniform(-1, 1, 50)
    plain, path = MixtureProcess().advance(scores)
    late, other = replace(process(0)).advance(scores)  # its deadline has passed: three fifths of the wealth lie idle
    assert plain.log_e == pytest.approx(path[-1])
    assert np.exp(other) == pytest.approx(0.4 * np.exp(path) + 0.6)
    assert late.log_e == pytest.approx(other[-1])
