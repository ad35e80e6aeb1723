"""Maclaurin estimators of log p: by hand, over all subsets, and unbiased by enumeration; MaxRL's side types.

The literal weights are those of the authors' code (`maclaurin.py` of MaxRL, 2026), times N.
"""

import itertools
import math
import statistics

import numpy as np
import pytest
from credit_batches import answers, binary_scores, by_group, nan, of
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES
from hone.core.errors import ConfigError, UserCodeError
from hone.credit.passk import maclaurin, max_rl, subset_maclaurin


def weights(credit, right: int, count: int) -> tuple[float, float]:
    """Advantages of a right and of a wrong answer of `right` among `count`; nan where there is none."""
    found = credit(answers([1.0] * right + [0.0] * (count - right))).advantage
    return (float(found[0]) if right else nan, float(found[-1]) if right < count else nan)


def test_by_hand() -> None:
    """One right of four, two terms: a pair of two wrong ones among three others has probability 2/3."""
    two = weights(lambda e: maclaurin(e, NO_VALUES, terms=2), 1, 4)
    assert two == pytest.approx((1.0, -2 / 3))
    # three terms: C(2, 2) / C(3, 2) = 1/3 more
    assert weights(lambda e: maclaurin(e, NO_VALUES, terms=3), 1, 4) == pytest.approx((1.0, -1.0))
    assert weights(lambda e: maclaurin(e, NO_VALUES, terms=1), 1, 4) == pytest.approx((1.0, 0.0))
    # all pairs of four: three hold the right answer, alone in each: c = 3/6
    assert weights(lambda e: subset_maclaurin(e, NO_VALUES, terms=2), 1, 4) == pytest.approx((1.0, -1.0))
    free = weights(lambda e: subset_maclaurin(e, NO_VALUES, terms=2, baseline_weight=0.0), 1, 4)
    assert free == pytest.approx((2.0, 0.0))


def expected_slope(credit, count: int, p: float) -> float:
    """E[(1/N) sum A_i d log pi(answer i)] with respect to the logit of being right."""
    total = 0.0
    for right in range(count + 1):
        chance = math.comb(count, right) * p**right * (1 - p) ** (count - right)
        won, lost = weights(credit, right, count)
        total += chance * (np.nan_to_num(won) * right * (1 - p) - np.nan_to_num(lost) * (count - right) * p)
    return total / count


UNBIASED = {
    "none": lambda e, terms: maclaurin(e, NO_VALUES, terms=terms),
    "cross_fitted": lambda e, terms: maclaurin(e, NO_VALUES, terms=terms, baseline="cross_fitted"),
    "subset": lambda e, terms: subset_maclaurin(e, NO_VALUES, terms=terms),
    "subset half": lambda e, terms: subset_maclaurin(e, NO_VALUES, terms=terms, baseline_weight=0.5),
}


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize(("count", "terms"), [(2, 1), (2, 2), (3, 2), (4, 2), (4, 4), (6, 3), (7, 3)])
def test_unbiased_for_the_first_terms(name: str, count: int, terms: int) -> None:
    for p in (0.1, 0.5, 0.8):
        meant = p * (1 - p) * sum((1 - p) ** (m - 1) for m in range(1, terms + 1))
        found = expected_slope(lambda e: UNBIASED[name](e, terms), count, p)
        assert found == pytest.approx(meant, rel=1e-6)


def test_leave_one_out_is_biased_and_said_to_be() -> None:
    p, count, terms = 0.3, 5, 4
    meant = p * (1 - p) * sum((1 - p) ** (m - 1) for m in range(1, terms + 1))
    found = expected_slope(lambda e: maclaurin(e, NO_VALUES, terms=terms, baseline="leave_one_out"), count, p)
    assert found == pytest.approx(0.698853 * meant, rel=1e-5)


@given(binary_scores, st.integers(1, 5))
def test_the_plain_form_counts_subsets(batch, terms: int) -> None:
    """Slowly: a wrong answer pays for each subset of k wrong ones that it is in, a k-th share of its probability."""
    found = maclaurin(of(batch), NO_VALUES, terms=terms).advantage
    slow: dict[int, list[float]] = {}
    for group, scores in by_group(batch).items():
        count = len(scores)
        slow[group] = []
        for i, score in enumerate(scores):
            cost = 0.0
            for k in range(2, min(terms, count) + 1):
                subsets = list(itertools.combinations(range(count), k))
                wrong = [s for s in subsets if i in s and not any(scores[j] for j in s)]
                cost += count * len(wrong) / (k * len(subsets))
            slow[group].append(1.0 if score else -cost)
    queue = {group: iter(values) for group, values in slow.items()}
    expected = [0.0 if math.isnan(score) else next(queue[group]) for group, score in batch]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@given(binary_scores, st.integers(1, 4))
def test_subsets_slowly(batch, terms: int) -> None:
    """The mean over subsets of T of the right answers' share, times N, less the constant."""
    found = subset_maclaurin(of(batch), NO_VALUES, terms=terms, baseline_weight=0.3).advantage
    queue = {}
    for group, scores in by_group(batch).items():
        count, drawn = len(scores), min(terms, len(scores))
        subsets = list(itertools.combinations(range(count), drawn))
        shares = [
            statistics.fmean(
                [(scores[i] / sum(scores[j] for j in s)) if i in s and scores[i] else 0.0 for s in subsets]
            )
            for i in range(count)
        ]
        queue[group] = iter([count * share - 0.3 for share in shares])
    expected = [0.0 if math.isnan(score) else next(queue[group]) for group, score in batch]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_all_answers_as_one_subset_is_max_rl_of_order_n() -> None:
    episodes = answers([0, 1, 0, 1, 0, 0, 1.0], [0, 0, 0, 0, 1, 1, 2])
    whole = subset_maclaurin(episodes, NO_VALUES, terms=4).advantage
    np.testing.assert_allclose(whole, max_rl(episodes, NO_VALUES, order="n", epsilon=0.0).advantage, atol=1e-6)


def test_side_types_by_hand() -> None:
    """One of four right: mean 1/4, population deviation sqrt(3)/4."""
    episodes = answers([0, 1, 0, 0.0])

    def found(**options) -> list[float]:
        return max_rl(episodes, NO_VALUES, epsilon=0.0, **options).advantage.tolist()

    assert found(centered=False) == pytest.approx([0, 4, 0, 0])
    assert found(power=0.5) == pytest.approx([-0.5, 1.5, -0.5, -0.5])
    assert found(mean_floor=0.5) == pytest.approx([-0.5, 1.5, -0.5, -0.5])
    root = math.sqrt(3) / 4
    assert found(standardised=True) == pytest.approx([-1 / root, 3 / root, -1 / root, -1 / root])
    for options in ({}, {"centered": False}, {"power": 0.5}, {"mean_floor": 0.5}, {"standardised": True}):
        assert np.isfinite(
            max_rl(answers([0, 0, 1, 1.0], [0, 0, 1, 1]), NO_VALUES, epsilon=0.0, **options).advantage
        ).all()


def test_what_is_refused() -> None:
    with pytest.raises(UserCodeError, match=r"maclaurin needs scores of 0 or 1"):
        maclaurin(answers([0.5, 1.0]), NO_VALUES, terms=2)
    for credit in (maclaurin, subset_maclaurin):
        with pytest.raises(ConfigError, match="terms = 0"):
            credit(answers([1.0, 0.0]), NO_VALUES, terms=0)
