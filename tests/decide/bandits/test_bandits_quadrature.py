"""Probabilities of Thompson sampling: against scipy, by hand, by enumeration of draws, and for very narrow arms."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr

from hone.core.errors import DataError
from hone.decide.bandits.greedy import beta_best, normal_best, normal_best_rows, normal_cdf


def adaptive_best(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Independent slow version: Gauss-Legendre of the density times the others' distribution functions."""
    nodes, weights = np.polynomial.legendre.leggauss(5)
    edges = np.unique(mean[:, None] + spread[:, None] * np.linspace(-9, 9, 801))
    half = np.diff(edges)[:, None] / 2
    x, weight = (half * nodes + edges[:-1, None] + half).ravel(), (half * weights).ravel()
    logs = stats.norm.logcdf(x, mean[:, None], spread[:, None])
    with np.errstate(over="ignore"):
        others = np.exp(logs.sum(axis=0) - logs)
    return (stats.norm.pdf(x, mean[:, None], spread[:, None]) * others) @ weight


def test_the_distribution_function_is_scipys_everywhere() -> None:
    z = np.concatenate([np.linspace(-37, 9, 20_001), [-1e-300, 0.0, 1e-300]])
    np.testing.assert_allclose(normal_cdf(z), ndtr(z), rtol=1e-6)


@examples(40)
@given(arms=st.lists(st.tuples(st.floats(-3, 3), st.floats(-8, 1)), min_size=2, max_size=10), narrow=st.booleans())
def test_probabilities_are_those_of_adaptive_integration(arms: list[tuple[float, float]], narrow: bool) -> None:
    mean, spread = np.array([arm[0] for arm in arms]), np.exp([arm[1] for arm in arms])
    spread[0] = 1e-6 if narrow else spread[0]
    expected, found = adaptive_best(mean, spread), normal_best(mean, spread**2)
    assert abs(expected.sum() - 1) < 1e-3  # the witness is itself exact to a thousandth where arms are narrow
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-3)
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert (found >= 0).all()


def test_arms_of_like_widths_are_right_to_a_ten_thousandth() -> None:
    rng = np.random.default_rng(1)
    for arms in (2, 3, 10):
        mean, spread = rng.normal(size=(8, arms)), np.exp(rng.uniform(-1.0, 0.5, size=(8, arms)))
        found = normal_best_rows(mean, spread**2)
        for row in range(8):
            expected = adaptive_best(mean[row], spread[row])
            np.testing.assert_allclose(found[row], expected / expected.sum(), atol=1e-4)


def test_two_arms_by_hand() -> None:
    """P(a > b) = Phi((mean_a - mean_b) / sqrt(var_a + var_b))."""
    mean, variance = np.array([0.3, -0.4]), np.array([0.5, 2.0])
    expected = float(ndtr(0.7 / np.sqrt(2.5)))
    np.testing.assert_allclose(normal_best(mean, variance), [expected, 1 - expected], atol=4e-4)
    one = normal_best(np.array([0.0, 0.0, 0.0, 0.0]), np.ones(4))
    np.testing.assert_allclose(one, 0.25, rtol=1e-12)
    np.testing.assert_allclose(normal_best(mean + 1e6, variance), normal_best(mean, variance), atol=1e-8)


def test_a_very_narrow_arm_is_not_missed() -> None:
    """An arm that is sure of 1 beats a standard normal with probability Phi(1)."""
    found = normal_best(np.array([1.0, 0.0]), np.array([1e-20, 1.0]))
    np.testing.assert_allclose(found, [ndtr(1.0), 1 - ndtr(1.0)], atol=3e-4)
    sure = normal_best(np.array([1.0, 0.5, 0.0]), np.zeros(3))
    np.testing.assert_allclose(sure, [1, 0, 0], atol=1e-9)


def test_rows_are_the_single_ones() -> None:
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(60, 4)), rng.gamma(1.0, size=(60, 4)) ** rng.integers(0, 9, size=(60, 1))
    rows = normal_best_rows(mean, variance)
    assert all((rows[row] == normal_best(mean[row], variance[row])).all() for row in range(60))
    assert normal_best_rows(mean[:0], variance[:0]).shape == (0, 4)


@examples(40)
@given(arms=st.lists(st.tuples(st.floats(-3, 6), st.floats(-3, 6)), min_size=2, max_size=6))
def test_beta_probabilities_are_those_of_scipys_distribution_functions(arms: list[tuple[float, float]]) -> None:
    alpha, beta = np.exp([arm[0] for arm in arms]), np.exp([arm[1] for arm in arms])
    grid = stats.beta.ppf(
        np.concatenate([np.linspace(0, 1, 3001), 1 - 2.0 ** -np.arange(12, 50)]), alpha[:, None], beta[:, None]
    )
    edges = np.unique(np.clip(grid, 0, 1))
    cdf = stats.beta.cdf(edges, alpha[:, None], beta[:, None])
    others = np.array([np.delete(cdf, arm, axis=0).prod(axis=0) for arm in range(len(arms))])
    expected = (np.diff(cdf, axis=1) * (others[:, 1:] + others[:, :-1]) / 2).sum(axis=1)  # Stieltjes, by trapezoids
    np.testing.assert_allclose(beta_best(alpha, beta), expected / expected.sum(), atol=2e-3)


def test_beta_by_hand() -> None:
    """Uniform against Beta(2, 1): P(first is greater) = int (1 - x) 2 x dx = 1 / 3."""
    np.testing.assert_allclose(beta_best(np.array([1.0, 2.0]), np.array([1.0, 1.0])), [1 / 3, 2 / 3], atol=1e-4)
    narrow = beta_best(np.array([7e8, 1.0]), np.array([3e8, 1.0]))  # an arm that is sure of 0.7, against a uniform one
    np.testing.assert_allclose(narrow, [0.7, 0.3], atol=3e-4)


def test_numbers_that_are_none_are_refused() -> None:
    with np.errstate(invalid="ignore"), pytest.raises(DataError, match="sum to nan over 2 arms"):
        normal_best(np.array([np.nan, 0.0]), np.ones(2))
