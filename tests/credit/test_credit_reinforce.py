"""REINFORCE on tokens: whitening, REINFORCE++, ReMax, the optimal token baseline."""

import math
import statistics
from functools import partial

import numpy as np
import pytest
from credit_batches import Batch, answers, any_scores, by_group, column, nan, of
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.credit.group import group_relative
from hone.credit.reinforce import (
    optimal_token_baseline,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    whiten,
    whitened,
)
from hone.credit.returns import discounted_returns

ZERO = "reward/zero_variance_groups"
lengths_of = st.lists(st.integers(0, 4), min_size=14, max_size=14)


def slow_whiten(values: list[float], ddof: int = 1) -> list[float]:
    if len(values) < 2 or max(values) - min(values) < 1e-6 * max(map(abs, values)):
        return [0.0] * len(values)
    deviation = statistics.stdev(values) if ddof else statistics.pstdev(values)
    return [(value - statistics.fmean(values)) / (deviation + 1e-8) for value in values]


def test_whiten_by_hand() -> None:
    np.testing.assert_allclose(whiten(np.array([1.0, 2, 3])), [-1, 0, 1], atol=1e-7)
    np.testing.assert_allclose(whiten(np.array([1.0, 3]), ddof=0), [-1, 1], atol=1e-7)
    assert not whiten(np.full(5, 1e9 + 0.1)).any()
    assert not whiten(np.array([3.0])).any()
    assert len(whiten(np.zeros(0))) == 0


def test_reinforce_plus_plus_by_hand() -> None:
    """Answers of 1 and 2 decisions, scores 3 and 0, discount 1/2: returns 3, 0, 0; mean 1, sample deviation sqrt(3)."""
    found = reinforce_plus_plus(answers([3, 0, nan], lengths=[1, 2, 4]), NO_VALUES, discount=0.5).advantage
    np.testing.assert_allclose(found, np.array([2, -1, -1, 0, 0, 0, 0]) / math.sqrt(3), rtol=1e-6)


@given(any_scores, lengths_of, st.sampled_from([0, 1]))
def test_reinforce_plus_plus_is_the_whitened_return(batch: Batch, lengths: list[int], ddof) -> None:
    episodes = of(batch, lengths=lengths[: len(batch)])
    heard = np.repeat(episodes.scored, episodes.lengths)
    ahead = discounted_returns(episodes, NO_VALUES, discount=0.7).advantage.astype(np.float64)
    found = reinforce_plus_plus(episodes, NO_VALUES, discount=0.7, ddof=ddof).advantage
    assert not found[~heard].any()
    np.testing.assert_allclose(found[heard], slow_whiten(ahead[heard].tolist(), ddof), atol=1e-4)
    undiscounted = whitened(episodes, NO_VALUES, credit=lambda e, v: discounted_returns(e, v, discount=0.7), ddof=ddof)
    np.testing.assert_allclose(undiscounted.advantage, found, atol=1e-4)


@given(any_scores, lengths_of)
def test_the_baseline_form_is_the_whitened_centred_score(batch: Batch, lengths: list[int]) -> None:
    episodes = of(batch, lengths=lengths[: len(batch)])
    groups = by_group(batch)
    flat: list[float] = []
    live: list[bool] = []
    for (group, score), length in zip(batch, lengths, strict=False):
        if not math.isnan(score):
            alive = len(set(groups[group])) > 1
            flat += [score - statistics.fmean(groups[group]) if alive else 0.0] * length
            live += [alive] * length
    expected = np.where(live, slow_whiten(flat), 0.0)
    credits = reinforce_plus_plus_baseline(episodes, NO_VALUES)
    heard = np.repeat(episodes.scored, episodes.lengths)
    np.testing.assert_allclose(credits.advantage[heard], expected, atol=1e-5)
    assert not credits.advantage[~heard].any()
    assert credits.metrics[ZERO] == group_relative(episodes, NO_VALUES).metrics[ZERO]


# -------------------------------------------------------------------------------------------- ReMax


def test_remax_by_hand() -> None:
    """A reward of 1 at the first of two decisions and 2 at the second, the greedy answer scored 2; the third answer's
    baseline and the fourth's score are missing."""
    episodes = answers([3, 0, 1, nan], lengths=[2, 1, 1, 1], rewards=[1, 2, 0, 1, 0], baseline=[2, 2, nan, 2])
    credits = remax(episodes, NO_VALUES)
    assert credits.advantage.tolist() == [1, 0, -2, 0, 0]
    assert credits.metrics == {"reward/baseline_missing": 0.25}


def test_remax_without_a_greedy_answer_is_refused() -> None:
    with pytest.raises(DataError, match=r"episodes\.baseline"):
        remax(answers([1, 0]), NO_VALUES)


def test_remax_is_unbiased_by_enumeration() -> None:
    """Any baseline that does not see the answer leaves the expected gradient alone."""
    chances, worth = np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.0, 4.0])
    exact = chances * (worth - chances @ worth)
    found = np.zeros(3)
    for choice in range(3):
        episodes = answers([float(worth[choice])], baseline=[float(worth[0])])
        found += chances[choice] * remax(episodes, NO_VALUES).advantage[0] * (np.eye(3)[choice] - chances)
    np.testing.assert_allclose(found, exact, atol=1e-6)


# -------------------------------------------------------------------------------------------- optimal token baseline


def slow_token_baseline(episodes: Episodes, logp: list[float], collision: list[float]) -> np.ndarray:
    scored = np.flatnonzero(episodes.scored).tolist()
    starts, ends = episodes.offsets[:-1].tolist(), episodes.offsets[1:].tolist()

    def ahead(e: int, t: int) -> float:
        return float(episodes.reward[starts[e] + t : ends[e]].sum())

    def energy(e: int, t: int) -> float:
        return sum(1 - 2 * math.exp(logp[n]) + collision[n] for n in range(starts[e], starts[e] + t + 1))

    found = np.zeros(episodes.decisions)
    for e in scored:
        group = [other for other in scored if episodes.group[other] == episodes.group[e]]
        if len({float(episodes.score[other]) for other in group}) < 2:
            continue
        for t in range(ends[e] - starts[e]):
            there = [other for other in group if ends[other] - starts[other] > t]
            weights = [energy(other, t) for other in there]
            paid = sum(weight * ahead(other, t) for weight, other in zip(weights, there, strict=True))
            found[starts[e] + t] = ahead(e, t) - paid / (sum(weights) + 1e-8)
    return found


@given(any_scores, lengths_of, st.integers(0, 99))
def test_the_token_baseline_agrees_with_loops(batch: Batch, lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = sum(lengths[: len(batch)])
    logp, collision = (-rng.random(total) - 0.1).astype(np.float32).tolist(), (rng.random(total) + 0.8).tolist()
    scored = np.repeat([not math.isnan(score) for _, score in batch], lengths[: len(batch)])
    rewards = np.where(scored, rng.normal(size=total), 0.0).tolist()
    episodes = of(batch, lengths=lengths[: len(batch)], logp=logp, rewards=rewards)
    found = optimal_token_baseline(episodes, NO_VALUES, collision=column(collision)).advantage
    np.testing.assert_allclose(found, slow_token_baseline(episodes, logp, collision), atol=1e-4)


def test_the_token_baseline_by_hand() -> None:
    """Probability 1/2 each, sums of squares 1/2 and 1: energies 1/2 and 1. Scores 3 and 0: b = 3 x (1/2) / (3/2) = 1.
    Beyond the shorter answer nobody is left to compare with."""
    half = math.log(0.5)
    episodes = answers([3, 0], lengths=[2, 1], logp=[half] * 3)
    found = optimal_token_baseline(episodes, NO_VALUES, collision=column([0.5, 0.5, 1.0])).advantage
    np.testing.assert_allclose(found, [2, 0, -1], atol=1e-6)
    doubled = partial(optimal_token_baseline, collision=column([0.5, 0.5, 1.0]), ratio=column([2.0, 1, 1]))
    np.testing.assert_allclose(doubled(episodes, NO_VALUES).advantage, [1, 0, -2], atol=1e-6)  # b = 3 x 2 / 3


def test_equal_energies_make_it_the_mean() -> None:
    episodes = answers([3, 0, 1, 4], [0, 0, 0, 1], lengths=[2, 2, 2, 2])
    found = optimal_token_baseline(episodes, NO_VALUES, collision=column([2.0] * 8)).advantage
    np.testing.assert_allclose(found, group_relative(episodes, NO_VALUES, scale="none").advantage, atol=1e-6)
