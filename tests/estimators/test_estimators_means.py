"""Intervals and tests: published values, inversion, exact coverage by enumeration, slow versions."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.estimators import means
from hone.estimators.means import bootstrap_mean, mean_interval, paired_difference, sign_test, wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (
            81,
            263,
            0.2553,
            0.3662,
        ),  # Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(successes: int, n: int, low: float, high: float) -> None:
    found = wilson_interval(successes, n)
    assert found.mean == successes / n
    assert found.n == n
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


@given(st.integers(1, 400), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_inverts_the_score_test(n: int, data: st.DataObject, level: float) -> None:
    """Its ends are the proportions that the score test just does not reject: found here by bisection."""
    successes = data.draw(st.integers(0, n))
    z, p = NormalDist().inv_cdf(0.5 + level / 2), successes / n

    def rejected(truth: float) -> bool:
        return abs(p - truth) > z * math.sqrt(truth * (1 - truth) / n)

    found = wilson_interval(successes, n, level=level)
    for outside, inside, end in ((0.0, p, found.low), (1.0, p, found.high)):
        far, near = outside, inside
        for _ in range(60):
            middle = (far + near) / 2
            far, near = (middle, near) if rejected(middle) else (far, middle)
        assert end == pytest.approx(near, abs=1e-9)


@given(st.integers(0, 50))
def test_wilson_is_symmetric_and_inside_its_range(successes: int) -> None:
    one, other = wilson_interval(successes, 50), wilson_interval(50 - successes, 50)
    assert one.low == pytest.approx(1 - other.high)
    assert 0 <= one.low <= one.mean <= one.high <= 1


@pytest.mark.parametrize("n", [1, 7, 80, 1000])
def test_wilson_ends_exactly_at_0_and_1(n: int) -> None:
    none, all_, one = wilson_interval(0, n), wilson_interval(n, n), wilson_interval(1, n + 1)
    assert (none.low, all_.high) == (0.0, 1.0)
    assert 0 < none.high < 1
    assert 0 < all_.low < 1
    assert 0 < one.low < one.high < 1


def test_wilson_covers_at_n_20_by_enumeration() -> None:
    """Over a grid of truths: 95% on average, never below 83% (its known worst case near 0 and 1)."""
    intervals = [wilson_interval(k, 20) for k in range(21)]
    truths = np.linspace(0.005, 0.995, 199)
    coverage = [
        sum(
            math.comb(20, k) * p**k * (1 - p) ** (20 - k)
            for k in range(21)
            if intervals[k].low <= p <= intervals[k].high
        )
        for p in truths
    ]
    assert 0.945 < float(np.mean(coverage)) < 0.965
    assert min(coverage) > 0.83


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 5), (0, 0)])
def test_what_is_no_proportion_is_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="make no proportion"):
        wilson_interval(successes, n)


def test_the_bootstrap_agrees_with_every_resample_of_three() -> None:
    """All 27 resamples of 0, 3, 6 enumerated: the percentiles of their means."""
    scores = np.array([0.0, 3.0, 6.0])
    exact = sorted(sum(one) / 3 for one in itertools.product(scores, repeat=3))
    found = bootstrap_mean(scores, level=0.8, draws=20_000)
    assert found.mean == 3.0
    assert (found.low, found.high) == (np.quantile(exact, 0.1), np.quantile(exact, 0.9))


def test_the_bootstrap_draws_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).normal(size=37)
    whole = bootstrap_mean(scores)
    monkeypatch.setattr(means, "_PICKS", 100)
    assert bootstrap_mean(scores) == whole


def test_the_bootstrap_covers_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        found = bootstrap_mean(rng.exponential(size=60), draws=500)
        covered += found.low <= 1.0 <= found.high
    assert 0.87 <= covered / 200 <= 0.99


def test_the_bootstrap_is_the_same_every_time_and_follows_shift_and_scale() -> None:
    scores = np.array([0.3, 0.9, 0.1, 0.4, 0.75])
    one, again, moved = bootstrap_mean(scores), bootstrap_mean(scores), bootstrap_mean(2 * scores + 1)
    assert one == again
    np.testing.assert_allclose([moved.mean, moved.low, moved.high], np.array([one.mean, one.low, one.high]) * 2 + 1)
    with pytest.raises(ValueError, match="no scores"):
        bootstrap_mean(np.zeros(0))


def test_zeros_and_ones_are_a_proportion_and_anything_else_is_not() -> None:
    assert mean_interval(np.array([1.0, 0.0, 1.0])) == wilson_interval(2, 3)
    scores = np.array([1.0, 0.0, 0.5])
    assert mean_interval(scores) == bootstrap_mean(scores)


def slow_sign_test(better: int, worse: int) -> float:
    """Every sequence of fair coins, one by one: those at least as lopsided as what was seen."""
    n = better + worse
    seen = abs(better - worse)
    return sum(abs(2 * sum(coins) - n) >= seen for coins in itertools.product((0, 1), repeat=n)) / 2**n


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 5), (8, 2), (0, 6), (3, 4), (10, 1)])
def test_the_sign_test_counts_coins(better: int, worse: int) -> None:
    assert sign_test(better, worse) == pytest.approx(slow_sign_test(better, worse))
    assert sign_test(worse, better) == sign_test(better, worse)


def test_the_sign_test_by_hand() -> None:
    """8 against 2: 2 (1 + 10 + 45) / 1024."""
    assert sign_test(8, 2) == 112 / 1024
    assert sign_test(500, 0) == pytest.approx(2.0**-499)
    assert 0 <= sign_test(3000, 0) < 1e-300, "thousands of questions are no overflow"


@given(st.integers(0, 30), st.integers(0, 30))
def test_p_values_are_uniform_or_larger_when_nothing_differs(better: int, worse: int) -> None:
    n = better + worse
    level = sign_test(better, worse)
    chance = sum(math.comb(n, k) for k in range(n + 1) if sign_test(k, n - k) <= level) / 2**n
    assert chance <= level + 1e-12


def test_paired_by_hand() -> None:
    """Ten questions: four turn right, one turns wrong, five stay."""
    before = np.array([0, 0, 0, 0, 1, 1, 1, 1, 0, 0], dtype=np.float64)
    after = np.array([1, 1, 1, 1, 0, 1, 1, 1, 0, 0], dtype=np.float64)
    found = paired_difference(before, after)
    assert found.difference == pytest.approx(0.3)
    assert found.p_value == 2 * (1 + 5) / 32
    assert found.n == 10
    assert found.low <= 0.3 <= found.high
    back = paired_difference(after, before)
    assert back.difference == pytest.approx(-0.3)
    assert back.p_value == found.p_value


def test_paired_with_nothing_to_tell_apart() -> None:
    same = np.array([0.0, 1.0, 1.0])
    found = paired_difference(same, same)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)
    with pytest.raises(ValueError, match="not pairs"):
        paired_difference(same, np.zeros(2))
