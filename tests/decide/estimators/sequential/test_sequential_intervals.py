"""Confidence sequences, the sample-ratio test and the detectable effect, each beside a slow or independent version."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import gammaln

from hone.decide.estimators.sequential import (
    CONCENTRATION,
    AsymptoticSequence,
    BernsteinSequence,
    SampleRatio,
    asymptotic_width,
    detectable_fall,
    detection_power,
    events_to_detect,
    matched_scores,
    mixture_paths,
    ratio_paths,
)

UNIT = arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1))


def closed_form(counts: np.ndarray, shares: tuple[float, ...]) -> float:
    """log of the Dirichlet-multinomial probability over the multinomial one."""
    prior = CONCENTRATION * np.array(shares)
    among = gammaln(CONCENTRATION) - gammaln(CONCENTRATION + counts.sum())
    return float(among + (gammaln(prior + counts) - gammaln(prior)).sum() - (counts * np.log(shares)).sum())


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(0, 40))
def test_the_sample_ratio_equals_its_closed_form_in_any_batches(arms: list[int], cut: int) -> None:
    shares, given_arms = (0.2, 0.3, 0.5), np.array(arms, dtype=np.int64)
    state = SampleRatio(shares=shares, counts=(0, 0, 0))
    for batch in (given_arms[:cut], given_arms[cut:]):
        state, _ = state.advance(batch)
    assert state.counts == tuple(np.bincount(given_arms, minlength=3))
    assert state.log_e == pytest.approx(closed_form(np.array(state.counts), shares), abs=1e-9)


def test_the_sample_ratio_has_mean_one_by_enumeration() -> None:
    sums = np.zeros(6)
    for arms in itertools.product([0, 1], repeat=6):
        chance = math.prod(0.3 if arm == 0 else 0.7 for arm in arms)
        sums += chance * np.exp(ratio_paths(np.array(arms), (0.3, 0.7)))
    assert sums == pytest.approx(np.ones(6), abs=1e-12)


def test_the_first_unit_says_nothing_and_the_second_by_hand() -> None:
    path = ratio_paths(np.array([0, 0]), (0.5, 0.5))
    assert path[0] == 0
    assert math.exp(path[1]) == pytest.approx((CONCENTRATION / 2 + 1) / ((CONCENTRATION + 1) * 0.5))


def test_a_mismatch_is_found_and_fair_coins_are_not() -> None:
    random = np.random.default_rng(5)
    skewed = (random.random((50, 25_000)) < 0.52).astype(np.int64)
    fair = (random.random((100, 8_000)) < 0.5).astype(np.int64)
    assert np.mean(ratio_paths(skewed, (0.5, 0.5)).max(axis=1) >= math.log(200)) >= 0.95
    assert np.mean(ratio_paths(fair, (0.5, 0.5)).max(axis=1) >= math.log(200)) <= 0.03


@pytest.mark.parametrize("shares", [(0.5, 0.6), (1.0, 0.0), (-0.5, 1.5)])
def test_shares_that_are_no_distribution_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        ratio_paths(np.array([0]), shares)


# ----------------------------------------------------------------------------------- confidence sequences


def slow_bernstein(values: np.ndarray, alpha: float) -> tuple[float, float]:
    """The formulas of the docstring, value by value."""
    weight = weighted = cost = 0.0
    mean, squares, total = 0.5, 0.0, 0.0
    for place, value in enumerate(values, start=1):
        variance = (0.25 + squares) / place
        bet = min(0.5, math.sqrt(2 * math.log(2 / alpha) / (variance * place * math.log(1 + place))))
        weight += bet
        weighted += bet * value
        cost += 4 * (value - mean) ** 2 * (-math.log(1 - bet) - bet) / 4
        total += value
        mean = (0.5 + total) / (place + 1)
        squares += (value - mean) ** 2
    half = (math.log(2 / alpha) + cost) / weight
    return max(0.0, weighted / weight - half), min(1.0, weighted / weight + half)


@given(UNIT, st.integers(0, 30))
def test_the_bernstein_sequence_equals_the_slow_one_in_any_batches(values: np.ndarray, cut: int) -> None:
    interval = BernsteinSequence(alpha=0.1).advance(values[:cut]).advance(values[cut:]).interval()
    assert (interval.low, interval.high) == pytest.approx(slow_bernstein(values, 0.1), abs=1e-9)


@given(UNIT, st.integers(0, 30))
def test_the_asymptotic_sequence_equals_its_formula_in_any_batches(values: np.ndarray, cut: int) -> None:
    interval = AsymptoticSequence().advance(values[:cut]).advance(values[cut:]).interval()
    if len(values) < 2:
        assert interval.low == -math.inf
        return
    half = values.std() * asymptotic_width(len(values), 0.05)
    # the variance is a difference of two sums, good to about 1e-8
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=1e-6)


def test_sequences_cover_the_mean_at_every_look_and_narrow() -> None:
    random = np.random.default_rng(7)
    missed = {"bernstein": 0, "asymptotic": 0}
    for _ in range(60):
        values = random.beta(2, 2, 1500)
        for name, state in (("bernstein", BernsteinSequence()), ("asymptotic", AsymptoticSequence())):
            outside = False
            for batch in values.reshape(15, 100):
                state = state.advance(batch)
                outside |= not state.interval().low <= 0.5 <= state.interval().high
            missed[name] += outside
            assert state.interval().high - state.interval().low < 0.2
    assert max(missed.values()) <= 5


def test_sequences_begin_with_everything() -> None:
    assert (BernsteinSequence().interval().low, BernsteinSequence().interval().high) == (0, 1)
    assert BernsteinSequence().advance(np.zeros(0)) == BernsteinSequence()
    with pytest.raises(ValueError, match="lie in"):
        BernsteinSequence().advance(np.array([2.0]))
    assert asymptotic_width(1000, 0.05) * math.sqrt(1000) == pytest.approx(3.1, abs=0.3)  # 1.96 for a single look


# ------------------------------------------------------------------------------------- detectable effects


def test_predicted_power_is_that_of_simulated_rollouts() -> None:
    random = np.random.default_rng(11)
    for rate, share, events in ((0.3, 0.2, 2000), (0.02, 0.5, 6000)):
        coins = random.random((120, events)) < 0.5
        values = (random.random((120, events)) < np.where(coins, rate * (1 - share), rate)).astype(np.float64)
        found = np.mean(mixture_paths(matched_scores(values, coins)).max(axis=1) >= math.log(20))
        sd = math.sqrt(rate * (1 - share / 2) * (1 - rate))
        assert detection_power(rate * share, sd=sd, events=events, alpha=0.05) == pytest.approx(found, abs=0.15)


def test_detectable_falls_and_events_agree_and_order() -> None:
    fall = detectable_fall(sd=0.22, events=8100, alpha=0.05)
    assert fall is not None
    assert detection_power(fall, sd=0.22, events=8100, alpha=0.05) == pytest.approx(0.8, abs=1e-6)
    needed = events_to_detect(fall, sd=0.22, alpha=0.05)
    assert needed is not None
    assert abs(needed - 8100) <= 1
    wider = detectable_fall(sd=0.22, events=810, alpha=0.05)
    assert wider is not None
    assert wider > fall


def test_nobody_finds_a_tenth_of_two_percent_in_a_short_rollout() -> None:
    sd = math.sqrt(0.02 * 0.98)
    assert detection_power(0.002, sd=sd, events=8100, alpha=0.05) < 0.1
    needed = events_to_detect(0.002, sd=sd, alpha=0.05)
    assert needed is not None
    assert needed > 100_000
    assert detectable_fall(sd=sd, events=20, alpha=0.05, most=0.02) is None
    assert events_to_detect(0.0, sd=sd, alpha=0.05) is None
