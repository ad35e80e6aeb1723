"""Windows of features and health checks: a library and hand values as witnesses, false alarms, restarts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hone.core.errors import DataError
from hone.core.random import generator
from hone.decide.estimators.drift.health import (
    ActionEntropy,
    FeatureWindows,
    GrowthCheck,
    NonFiniteCheck,
    StalenessCheck,
    kolmogorov_tail,
    ks_distance,
    stability_index,
)


def test_distance_and_p_value_beside_scipy() -> None:
    for seed in range(5):
        draws = generator(seed, "ks")
        first, second = np.sort(draws.standard_normal(800)), np.sort(draws.standard_normal(300) + 0.1 * seed)
        witness = stats.ks_2samp(first, second, method="asymp")
        distance = ks_distance(first, second)
        assert distance == pytest.approx(witness.statistic)
        assert kolmogorov_tail(distance, 800, 300) == pytest.approx(witness.pvalue, rel=0.15, abs=1e-9)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_distance_is_the_largest_over_all_values_with_ties(first: list[int], second: list[int]) -> None:
    def share(sample: list[int], value: float) -> float:
        return sum(one <= value for one in sample) / len(sample)

    slow = max(abs(share(first, value) - share(second, value)) for value in range(-1, 8))
    found = ks_distance(np.sort(np.array(first, np.float64)), np.sort(np.array(second, np.float64)))
    assert found == pytest.approx(slow, abs=1e-12)


def test_distance_worked_out_by_hand() -> None:
    """{1, 2, 3, 4} and {3, 4, 5}: at 2 the shares below are 1/2 and 0; at 4 they are 1 and 2/3."""
    assert ks_distance(np.array([1.0, 2, 3, 4]), np.array([3.0, 4, 5])) == pytest.approx(0.5)


def test_stability_index_worked_out_by_hand() -> None:
    """One edge at 0; reference 1/2, 1/2; of 8 values 7 are below: shares 7.5/9 and 1.5/9."""
    window = np.array([-1.0] * 7 + [1.0])
    p, q = np.array([7.5 / 9, 1.5 / 9]), np.array([0.5, 0.5])
    expected = float(((p - q) * np.log(p / q)).sum())
    assert stability_index(np.array([0.0]), q, window) == pytest.approx(expected)


def windows(draws: np.random.Generator, alpha: float = 0.05) -> FeatureWindows:
    return FeatureWindows(draws.standard_normal((2000, 3)), ("age", "price", "hour"), window=100, alpha=alpha)


def test_windows_without_a_change_keep_alpha_and_a_shift_names_its_feature() -> None:
    draws = generator(4, "features")
    tests = windows(draws)
    rows = draws.standard_normal((20_000, 3))
    found = [shifts for row in rows if (shifts := tests.update(row))]
    assert len(found) == 200
    wrong = sum(any(shift.changed for shift in shifts) for shifts in found)
    assert wrong / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    rows = draws.standard_normal((100, 3)) + np.array([0.0, 1.5, 0.0])
    (last,) = [shifts for row in rows if (shifts := tests.update(row))]
    assert [shift.feature for shift in last if shift.changed] == ["price"]
    assert last[1].psi > 0.25 > last[0].psi


def test_an_open_window_survives_a_restart() -> None:
    rows = generator(1, "rows").standard_normal((100, 3))
    first, second = windows(generator(2, "reference")), windows(generator(2, "reference"))
    for row in rows[:60]:
        assert first.update(row) == ()
    second.restore(first.state())
    expected, found = (), ()
    for row in rows[60:]:
        expected, found = first.update(row), second.update(row)
    assert found == expected != ()
    with pytest.raises(DataError, match="saved window has 100"):
        FeatureWindows(np.zeros((9, 1)), ("age",), window=9).restore(first.state())


def test_rows_with_holes_are_counted_and_skipped() -> None:
    tests, check = windows(generator(2, "reference")), NonFiniteCheck()
    for row in (np.array([0.0, math.nan, 0.0]), np.array([math.inf, 0.0, 0.0])):
        assert check.update(row)
        assert tests.update(row) == ()
    assert not check.update(np.zeros(3))
    other = NonFiniteCheck()
    other.restore(check.state())
    assert (other.count, other.seen, other.budget.value) == (2, 3, 0.0)


def test_a_gap_is_told_once() -> None:
    check = StalenessCheck(60.0, since_s=0.0)
    assert [check.check(now) for now in (59.0, 61.0, 62.0)] == [False, True, False]
    check.arrived(70.0)
    other = StalenessCheck(60.0, since_s=0.0)
    other.restore(check.state())
    assert [other.check(now) for now in (100.0, 131.0)] == [False, True]
    assert check.false_alarm(0.1).value == pytest.approx(math.exp(-6))


def test_actions_that_collapse_are_found_and_others_keep_alpha() -> None:
    draws, check = generator(3, "actions"), ActionEntropy(least_nats=math.log(3), window=200, alpha=0.01)
    even = [check.update(int(action)) for action in draws.integers(0, 3, 60_000)]
    assert sum(even) / 300 <= 0.01 + 3 * math.sqrt(0.01 / 300)
    found = [check.update(int(draws.random() < 0.1)) for _ in range(200)]
    assert found[-1]
    assert check.entropy == pytest.approx(-0.9 * math.log(0.9) - 0.1 * math.log(0.1), abs=0.1)


def test_entropy_after_a_restart() -> None:
    first, second = (ActionEntropy(least_nats=1.0, window=10) for _ in range(2))
    for action in (0, 1, 1, 0, 0, 0):
        first.update(action)
    second.restore(first.state())
    assert [first.update(0) for _ in range(4)] == [second.update(0) for _ in range(4)]
    assert first.entropy == second.entropy == pytest.approx(0.5004 + 1 / 20, abs=1e-4)


def test_growth_is_found_above_its_bound_only() -> None:
    draws = generator(5, "memory")
    check = GrowthCheck(bound=1000.0, samples=50)
    slow = [check.update(k, 900.0 * k + 3000 * draws.standard_normal()) for k in range(2000)]
    assert not any(slow)
    other = GrowthCheck(bound=1000.0, samples=50)
    fast = [1500.0 * k + 3000 * draws.standard_normal() for k in range(50)]
    for k in range(20):
        check.update(k, fast[k])
    other.restore(check.state())
    assert [other.update(k, fast[k]) for k in range(20, 50)][-1]
    assert other.slope == pytest.approx(1500, rel=0.1)
