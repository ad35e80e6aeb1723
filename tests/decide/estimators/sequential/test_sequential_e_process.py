"""The mixture e-process and its scores of matched arms: by hand, by enumeration, by a slow version, by simulation."""

import itertools
import math

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hone.decide.estimators.sequential import (
    STAKES,
    MatchedArms,
    MixtureProcess,
    alarm_at,
    effects_from_scores,
    log_mean_exp,
    matched_scores,
    mixture_paths,
    mixture_wealth,
    shared_log_e,
)

BOUNDED = arrays(np.float64, st.integers(1, 40), elements=st.floats(-1, 1))


def slow_e(scores: np.ndarray) -> float:
    """Product by product, stake by stake."""
    total = 0.0
    for stake in STAKES:
        wealth = 1.0
        for score in scores:
            wealth *= 1 + stake * score
        total += wealth
    return total / len(STAKES)


def test_one_score_by_hand() -> None:
    process, path = MixtureProcess().advance(np.array([0.5]))
    # 1 + 0.5 * mean(stakes): a line in the score
    assert process.log_e == pytest.approx(math.log(1 + 0.5 * sum(STAKES) / 8))
    assert path[-1] == process.log_e
    assert process.count == 1
    assert STAKES[0] == 0.02
    assert STAKES[-1] == 0.9


def test_two_scores_by_hand() -> None:
    wealth = mixture_wealth(np.array([1.0, -1.0]))
    assert np.exp(wealth[-1]) == pytest.approx([1 - stake**2 for stake in STAKES])


@examples(30)
@given(BOUNDED)
def test_the_process_equals_the_product_taken_slowly(scores: np.ndarray) -> None:
    process, path = MixtureProcess().advance(scores)
    assert math.exp(process.log_e) == pytest.approx(slow_e(scores), rel=1e-9)
    assert [math.exp(value) for value in path] == pytest.approx(
        [slow_e(scores[: end + 1]) for end in range(len(scores))], rel=1e-9
    )


@given(BOUNDED, st.integers(0, 40))
def test_batches_make_no_difference(scores: np.ndarray, cut: int) -> None:
    whole, _ = MixtureProcess().advance(scores)
    half, _ = MixtureProcess().advance(scores[:cut])
    both, _ = half.advance(scores[cut:])
    assert both.log_wealth == pytest.approx(whole.log_wealth, rel=1e-12, abs=1e-14)
    assert both.count == whole.count


@pytest.mark.parametrize("bad", [1.0000001, -1.5, math.nan, math.inf])
def test_scores_beyond_their_bounds_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"lie in \[-1, 1\]"):
        MixtureProcess().advance(np.array([0.0, bad]))


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("tolerance", [0.0, 0.2])
def test_the_mean_e_value_is_at_most_one_by_enumeration(rate: float, tolerance: float) -> None:
    """Every sequence of coins and Bernoulli values of equal rates, with its probability: E[e_t] = 1 at each t.

    With a tolerance equal rates are well inside the null, and E[e_t] < 1; at its edge E[e_t] = 1 again.
    """
    edge = max(rate - tolerance, 0.0)
    for new_rate, exact in ((rate, tolerance == 0), (edge, rate - tolerance == edge)):
        sums = np.zeros(4)
        for coins in itertools.product([True, False], repeat=4):
            for values in itertools.product([0.0, 1.0], repeat=4):
                chance = math.prod(
                    0.5 * (p if value else 1 - p)
                    for coin, value in zip(coins, values, strict=True)
                    for p in [new_rate if coin else rate]
                )
                scores = matched_scores(np.array(values), np.array(coins), tolerance=tolerance)
                sums += chance * np.exp(mixture_paths(scores))
        if exact:
            assert sums == pytest.approx(np.ones(4), abs=1e-12)
        assert np.all(sums <= 1 + 1e-12)


def test_the_mean_at_a_stopping_time_is_one_and_a_drift_of_both_arms_changes_nothing() -> None:
    """Stop when e is largest so far beyond 1.2, else at the end; the rate rises from .1 to .9 in both arms."""
    total = 0.0
    rates = (0.1, 0.4, 0.6, 0.9)
    for coins in itertools.product([True, False], repeat=4):
        for values in itertools.product([0.0, 1.0], repeat=4):
            chance = math.prod(0.5 * (p if v else 1 - p) for p, v in zip(rates, values, strict=True))
            path = np.exp(mixture_paths(matched_scores(np.array(values), np.array(coins))))
            stop = next((at for at, e in enumerate(path) if e > 1.2), 3)
            total += chance * path[stop]
    assert total == pytest.approx(1.0, abs=1e-12)


def test_a_returning_unit_is_no_coin() -> None:
    """Negative control: one heavy unit that returns in a known arm makes the mean e-value larger than 1."""
    sums = 0.0
    for coin in (True, False):
        scores = matched_scores(np.zeros(6), np.full(6, coin))  # the unit's value is 0, the centre begins at 1/2
        sums += 0.5 * math.exp(mixture_paths(scores)[-1])
    assert sums > 1.05


@examples(40)
@given(
    arrays(np.float64, 30, elements=st.floats(0, 1)),
    arrays(np.bool_, 30),
    st.integers(0, 30),
    st.floats(0, 0.5),
)
def test_matched_arms_count_and_score_alike_in_batches(values, is_new, cut, tolerance) -> None:
    whole, scores = MatchedArms(tolerance=tolerance).advance(values, is_new)
    first, before = MatchedArms(tolerance=tolerance).advance(values[:cut], is_new[:cut])
    both, after = first.advance(values[cut:], is_new[cut:])
    assert np.concatenate([before, after]) == pytest.approx(scores, abs=1e-12)
    assert (both.new_count, both.control_count) == (whole.new_count, whole.control_count)
    assert np.all(np.abs(scores) <= 1)
    centre = 0.5
    for at in range(30):  # one by one
        signed = (centre - values[at]) if is_new[at] else (values[at] - centre)
        assert scores[at] == pytest.approx((signed - tolerance / 2) / (1 + tolerance / 2), abs=1e-12)
        centre = (0.5 + values[: at + 1].sum()) / (at + 2)


def test_effects_are_unbiased_by_enumeration() -> None:
    total = 0.0
    for coins in itertools.product([True, False], repeat=3):
        for values in itertools.product([0.0, 1.0], repeat=3):
            chance = math.prod(
                0.5 * (p if v else 1 - p) for c, v in zip(coins, values, strict=True) for p in [0.2 if c else 0.7]
            )
            scores = matched_scores(np.array(values), np.array(coins), tolerance=0.1)
            total += chance * effects_from_scores(scores, 0.1).mean()
    assert total == pytest.approx(-0.5)


def test_values_and_tolerances_beyond_their_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
        matched_scores(np.array([1.1]), np.array([True]))
    with pytest.raises(ValueError, match="tolerance"):
        matched_scores(np.array([1.0]), np.array([True]), tolerance=1.5)


def test_means_of_no_events_are_missing() -> None:
    assert math.isnan(MatchedArms().new_mean)
    arms, _ = MatchedArms().advance(np.array([1.0, 0.0, 0.5]), np.array([True, True, False]))
    assert (arms.new_mean, arms.control_mean, arms.count) == (0.5, 0.5, 3)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=6))
def test_guardrails_share_alpha_by_the_mean_of_their_e_values(log_e: list[float]) -> None:
    assert math.exp(shared_log_e(log_e)) == pytest.approx(sum(map(math.exp, log_e)) / len(log_e), rel=1e-9)
    assert shared_log_e(log_e) <= max(log_e) + 1e-12


def test_no_guardrail_is_no_evidence() -> None:
    assert shared_log_e([]) == 0.0
    assert log_mean_exp(np.array([1000.0, 1000.0])) == 1000.0


def test_alarms_are_the_first_to_reach_the_level() -> None:
    assert alarm_at(np.array([0.0, 2.9, math.log(20), 5.0]), 0.05) == 2
    assert alarm_at(np.array([0.0, 2.9]), 0.05) is None
    assert alarm_at(np.zeros(0), 0.05) is None


@examples(5)
@given(st.integers(0, 99))
def test_the_level_holds_with_a_look_at_every_event(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = (random.random((400, 400)) < 0.3).astype(np.float64)
    paths = mixture_paths(matched_scores(values, random.random((400, 400)) < 0.5))
    assert np.mean(paths.max(axis=1) >= math.log(10)) <= 0.1
