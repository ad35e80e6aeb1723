"""Equilibria of matrix games and rank correlation: values by hand, and slow versions by enumeration."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import rankdata

from hone.core.random import generator
from hone.estimators.ratings import Floats, nash_mixture, rank_agreement


def slow_value(payoffs: Floats) -> float:
    """The value by all supports: a pair of mixtures that equalise is an equilibrium where nobody gains elsewhere."""
    m, n = payoffs.shape
    for size in range(1, min(m, n) + 1):
        for rows, columns in itertools.product(
            itertools.combinations(range(m), size), itertools.combinations(range(n), size)
        ):
            part = payoffs[np.ix_(rows, columns)]
            ones = np.ones((size, 1))
            try:
                x = np.linalg.solve(np.block([[part.T, -ones], [ones.T, np.zeros((1, 1))]]), [0] * size + [1])
                y = np.linalg.solve(np.block([[part, -ones], [ones.T, np.zeros((1, 1))]]), [0] * size + [1])
            except np.linalg.LinAlgError:
                continue
            row, column = np.zeros(m), np.zeros(n)
            row[list(rows)], column[list(columns)] = x[:-1], y[:-1]
            fair = min(row.min(), column.min()) > -1e-9
            if fair and (payoffs @ column).max() <= x[-1] + 1e-9 and (row @ payoffs).min() >= x[-1] - 1e-9:
                return float(x[-1])
    raise AssertionError("no equilibrium")


def test_rock_paper_scissors_and_pennies() -> None:
    rock = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    result = nash_mixture(rock)
    np.testing.assert_allclose(result.row, [1 / 3] * 3)
    np.testing.assert_allclose(result.column, [1 / 3] * 3)
    assert result.value == pytest.approx(0, abs=1e-12)
    # Matching pennies with a doubled head: x = (2, 3) / 5, value 1/5
    pennies = nash_mixture(np.array([[2.0, -1], [-1, 1]]))
    np.testing.assert_allclose(pennies.row, [0.4, 0.6])
    assert pennies.value == pytest.approx(0.2)


def test_a_player_who_beats_all_is_the_mixture() -> None:
    chances = np.array([[0.5, 0.9, 0.8], [0.1, 0.5, 0.6], [0.2, 0.4, 0.5]])
    result = nash_mixture(chances)
    assert result.row.tolist() == result.column.tolist() == [1.0, 0.0, 0.0]
    assert result.value == pytest.approx(0.5)
    assert nash_mixture(np.full((3, 2), 7.0)).value == 7.0
    assert nash_mixture(np.array([[4.0]])).row.tolist() == [1.0]


def test_random_games_have_the_value_of_the_enumeration_and_nobody_gains_by_leaving() -> None:
    for number in range(40):
        random = generator(11, "payoffs", number)
        payoffs = np.round(random.normal(size=(1 + number % 4, 1 + number // 4 % 5)), number % 3) * 10.0 ** (number % 4)
        result, scale = nash_mixture(payoffs), float(np.abs(payoffs).max()) + 1
        assert result.value == pytest.approx(slow_value(payoffs), abs=1e-9 * scale)
        assert result.row.sum() == pytest.approx(1) and result.column.sum() == pytest.approx(1)
        assert (payoffs @ result.column).max() <= result.value + 1e-9 * scale
        assert (result.row @ payoffs).min() >= result.value - 1e-9 * scale


def test_a_large_league_with_copies_ends() -> None:
    random = generator(12, "league")
    half = random.normal(size=(30, 30))
    once = half - half.T
    copies = np.repeat(np.repeat(once, 4, axis=0), 4, axis=1)
    result = nash_mixture(copies)
    assert result.value == pytest.approx(0, abs=1e-9)
    assert (result.row @ copies).min() >= -1e-9
    np.testing.assert_allclose(result.row.reshape(30, 4).sum(axis=1), nash_mixture(once).row, atol=1e-9)


def test_tables_that_are_none_are_refused() -> None:
    for wrong in (np.zeros((0, 3)), np.zeros(3), np.array([[math.nan]])):
        with pytest.raises(ValueError, match="finite table"):
            nash_mixture(wrong)


def test_rank_agreement_is_spearmans() -> None:
    # One exchange of neighbours among 4: 1 - 6 * 2 / (4 * 15) = .8
    assert rank_agreement(np.array([1.0, 2, 3, 4]), np.array([10.0, 30, 20, 99])) == pytest.approx(0.8)
    assert rank_agreement(np.array([1.0, 2]), np.array([5.0, 4])) == -1
    random = generator(13, "ranks")
    for _ in range(20):
        one, other = random.integers(0, 5, 12).astype(float), random.normal(size=12)
        slow = np.corrcoef(rankdata(one), rankdata(other))[0, 1]
        assert rank_agreement(one, other) == pytest.approx(slow, abs=1e-12)
    assert math.isnan(rank_agreement(np.zeros(3), np.arange(3.0)))
    with pytest.raises(ValueError, match="columns of 1 and 1"):
        rank_agreement(np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="columns of 2 and 3"):
        rank_agreement(np.zeros(2), np.zeros(3))
