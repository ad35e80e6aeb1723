"""Choices over a whole batch: by hand, against slow versions, and equal for every order of the batch."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hone.objectives import selection

Columns = dict[str, NDArray[np.float64]]


def columns(seed: int, count: int) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        "now": rng.normal(-1, 1, count),
        "then": rng.normal(-1, 1, count),
        "advantage": rng.normal(0, 2, count),
        "uniform": rng.random(count),
        "entropy": rng.exponential(1.0, count),
    }


def dropped(c: Columns, *, share: float = 0.1) -> NDArray[np.bool_]:
    stopped = selection.clipped_mask(c["now"], c["then"], c["advantage"])
    return selection.clip_cov_mask(c["now"], c["advantage"], stopped, c["uniform"], fraction=share, min_covariance=0.1)


CHOICES: dict[str, Callable[[Columns], NDArray[np.generic]]] = {
    "clip_cov": dropped,
    "kl_cov": lambda c: selection.kl_cov_mask(c["now"], c["advantage"], fraction=0.1),
    "second moment": lambda c: selection.second_moment_mask(c["now"], c["then"], max_second_moment=0.5),
    "high entropy": lambda c: selection.high_entropy_mask(c["entropy"]),
}


@pytest.mark.parametrize("name", CHOICES)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 40).filter(lambda count: count != 2))  # two always tie
def test_the_order_of_a_batch_chooses_nothing(name: str, seed: int, count: int) -> None:
    c = columns(seed, count)
    order = np.random.default_rng(seed + 1).permutation(count)
    found = CHOICES[name](c)
    assert found.shape == (count,)
    np.testing.assert_array_equal(CHOICES[name]({key: value[order] for key, value in c.items()}), found[order])


def test_covariance_by_hand() -> None:
    """A - mean = -1, 1, 0 and log p - mean = -1, 0, 1: only the first varies together."""
    found = selection.covariances(np.array([-3.0, -2.0, -1.0]), np.array([0.0, 2.0, 1.0]))
    np.testing.assert_allclose(found, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(found.mean(), np.cov([-3, -2, -1], [0, 2, 1], ddof=0)[0, 1])
    assert selection.kl_cov_mask(np.array([-3.0, -2.0, -1.0]), np.array([0.0, 2.0, 1.0])).tolist() == [1, 0, 0]


@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.05, 0.3, 1.0]))
def test_clip_cov_draws_among_the_candidates_only(seed: int, share: float) -> None:
    c = columns(seed, 40)
    covariance = selection.covariances(c["now"], c["advantage"])
    r = np.exp(c["now"] - c["then"])
    free = ~(((c["advantage"] > 0) & (r > 1.2)) | ((c["advantage"] < 0) & (r < 0.8)))
    candidates = [n for n in range(40) if 0.1 < covariance[n] < 5 and free[n]]
    wanted = sorted(candidates, key=lambda n: c["uniform"][n])[: max(1, int(share * 40))]
    assert np.flatnonzero(dropped(c, share=share)).tolist() == sorted(wanted)


def test_every_candidate_is_drawn_as_often() -> None:
    """Four candidates, one is dropped: each by a quarter of the draws."""
    now, advantage = np.array([-1.0, -1.1, -1.2, -1.3, -9.0]), np.array([2.0, 2.0, 2.0, 2.0, -8.0])
    counts = np.zeros(5)
    for seed in range(2000):
        uniform = np.random.default_rng(seed).random(5)
        counts += selection.clip_cov_mask(
            now, advantage, np.zeros(5, bool), uniform, fraction=0.0, min_covariance=1, max_covariance=9
        )
    np.testing.assert_allclose(counts[:4] / 2000, 0.25, atol=0.04)
    assert counts[4] == 0


def test_the_second_moment_by_hand() -> None:
    """Squares 0.01, 0.04, 1, 0: means of the smallest k are 0, 0.005, 0.0167, 0.2625; under 0.04 three stay."""
    then = np.zeros(4)
    kept = selection.second_moment_mask(np.array([0.1, -0.2, 1.0, 0.0]), then)
    assert kept.tolist() == [True, True, False, True]
    assert not selection.second_moment_mask(np.array([5.0]), np.zeros(1)).any()


@given(seed=st.integers(0, 10_000), most=st.floats(0.001, 3))
def test_as_few_as_possible_are_dropped(seed: int, most: float) -> None:
    c = columns(seed, 25)
    square = np.sort((c["now"] - c["then"]) ** 2)
    kept = selection.second_moment_mask(c["now"], c["then"], max_second_moment=most)
    count = int(kept.sum())
    assert count == 0 or square[:count].mean() < most
    assert count == 25 or square[: count + 1].mean() >= most
    np.testing.assert_allclose(np.sort((c["now"] - c["then"])[kept] ** 2), square[:count])


def test_high_entropy_keeps_its_share() -> None:
    entropy = np.random.default_rng(0).permutation(100).astype(np.float64)
    kept = selection.high_entropy_mask(entropy)
    assert sorted(entropy[kept].tolist()) == list(range(80, 100))
    assert selection.high_entropy_mask(entropy, fraction=1.0).all()
    assert selection.high_entropy_mask(np.ones(7)).all(), "of equal ones none is left out"


def test_clips_stop_where_the_loss_says() -> None:
    now = np.log([1.29, 1.27, 0.79, 0.81, 1.29])
    stopped = selection.clipped_mask(now, np.zeros(5), np.array([1.0, 1, -1, -1, -1]), low=0.2, high=0.28)
    assert stopped.tolist() == [True, False, True, False, False]
