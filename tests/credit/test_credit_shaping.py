"""Shaped scores: each curve by hand and by a formula per answer; what is paid, and what stays missing."""

import math
import statistics
from functools import partial

import numpy as np
import pytest
from credit_batches import Batch, answers, any_scores, binary_scores, nan, of
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.group import group_relative, leave_one_out
from hone.credit.passk import max_rl, pass_at_k
from hone.credit.returns import discounted_returns, gae, reward_as_advantage
from hone.credit.shaping import (
    binarised,
    clip_scores,
    cosine_reward,
    length_rank_reward,
    length_scaled_reward,
    overlong_filtered,
    overlong_penalty,
    with_scores,
    with_shaped_scores,
)

lengths_of = st.lists(st.integers(0, 6), min_size=14, max_size=14)
shapes = [
    partial(overlong_penalty, max_tokens=5, buffer_tokens=3),
    partial(cosine_reward, max_tokens=5),
    partial(length_rank_reward, weight=0.5),
    partial(length_scaled_reward, weight=0.5),
    partial(binarised, threshold=0.5),
    partial(clip_scores, low=-0.5, high=1.0),
]


def test_overlong_by_hand() -> None:
    """Limit 10, cache 4: free up to 6, then a quarter per token, 1 at 10 and beyond."""
    episodes = answers([1] * 5, lengths=[6, 7, 9, 10, 50])
    assert overlong_penalty(episodes, max_tokens=10, buffer_tokens=4).score.tolist() == [1, 0.75, 0.25, 0, 0]
    assert overlong_penalty(episodes, max_tokens=10, buffer_tokens=4, factor=2).score.tolist() == [1, 0.5, -0.5, -1, -1]
    for limit, cache in ((10, 0), (10, 11)):
        with pytest.raises(ConfigError, match=f"buffer_tokens = {cache}"):
            overlong_penalty(episodes, max_tokens=limit, buffer_tokens=cache)


def test_cosine_by_hand() -> None:
    """Right: 2 at length 0, 3/2 at half the limit; wrong: -10, -5; at the limit -10 either way."""
    found = cosine_reward(answers([1, 1, 0, 0, 1, 0], lengths=[0, 4, 0, 4, 8, 9]), max_tokens=8).score
    np.testing.assert_allclose(found, [2, 1.5, -10, -5, -10, -10])
    with pytest.raises(ConfigError, match="max_tokens = 0"):
        cosine_reward(answers([1]), max_tokens=0)


def test_cosine_makes_short_right_answers_best_and_short_wrong_ones_worst() -> None:
    lengths = list(range(8))
    right = cosine_reward(answers([1] * 8, lengths=lengths), max_tokens=8).score
    wrong = cosine_reward(answers([0] * 8, lengths=lengths), max_tokens=8).score
    assert (np.diff(right) < 0).all()
    assert (np.diff(wrong) > 0).all()
    assert right.min() > wrong.max()


def test_length_ranked_by_hand() -> None:
    """Lengths 2, 4, 6 rank 1/2, 0, -1/2; a wrong answer is never rewarded for being short."""
    found = length_rank_reward(answers([1, 1, 1, 0, 0, nan], [0, 0, 0, 1, 1, 1], lengths=[2, 4, 6, 1, 3, 9]))
    np.testing.assert_allclose(found.score, [1.5, 1, 0.5, 0, -0.5, nan])
    assert length_rank_reward(answers([1, 0], lengths=[3, 3])).score.tolist() == [1, 0]


@given(binary_scores, lengths_of)
def test_length_standardised_agrees_with_a_loop(batch: Batch, lengths: list[int]) -> None:
    lengths = lengths[: len(batch)]
    found = length_scaled_reward(of(batch, lengths=lengths), weight=0.4).score
    for place, (group, score) in enumerate(batch):
        if score != 1:
            np.testing.assert_equal(found[place], score)
            continue
        own = [length for (g, s), length in zip(batch, lengths, strict=True) if g == group and s == 1]
        away = (lengths[place] - statistics.fmean(own)) / (statistics.pstdev(own) or 1.0)
        assert found[place] == pytest.approx(1 - 0.4 / (1 + math.exp(-away)))
    with pytest.raises(ConfigError, match="weight = 1"):
        length_scaled_reward(of(batch), weight=1.0)


@given(any_scores, lengths_of, st.sampled_from(shapes))
def test_what_is_scored_is_paid_and_what_is_missing_stays_so(batch: Batch, lengths: list[int], shape) -> None:
    """The reward of an answer is its score, before as after; a missing score moves nothing, and moves nobody."""
    episodes = of(batch, lengths=lengths[: len(batch)])
    changed = shape(episodes)
    np.testing.assert_array_equal(np.isnan(changed.score), ~episodes.scored)
    np.testing.assert_array_equal(changed.status, episodes.status)
    whole = discounted_returns(changed, NO_VALUES, discount=1.0).advantage
    some = episodes.lengths > 0
    np.testing.assert_allclose(whole[episodes.offsets[:-1][some]], np.nan_to_num(changed.score)[some], atol=1e-5)
    heard = np.flatnonzero(episodes.scored)
    np.testing.assert_allclose(shape(episodes.take(heard)).score, changed.score[heard])


def test_rescored_pays_the_difference_at_the_end() -> None:
    episodes = answers([1, 5], lengths=[3, 0], rewards=[0.25, 0.25, 0.5])
    changed = with_scores(episodes, np.array([3.0, 0.0]))
    assert changed.reward.tolist() == [0.25, 0.25, 2.5]
    assert changed.score.tolist() == [3, 0]
    assert episodes.reward.tolist() == [0.25, 0.25, 0.5]


def test_shapes_stand_before_the_credit_in_order() -> None:
    episodes = answers([0.9, 0.2, 0.6, nan], lengths=[1, 1, 2, 1])
    half = partial(binarised, threshold=0.5)
    credits = with_shaped_scores(episodes, NO_VALUES, credit=partial(pass_at_k, k=1), shapings=[half])
    assert credits.advantage.tolist() == pass_at_k(half(episodes), NO_VALUES, k=1).advantage.tolist()
    assert credits.metrics["reward/shaping_mean"] == pytest.approx((0.1 - 0.2 + 0.4) / 3)
    both = with_shaped_scores(
        episodes, NO_VALUES, credit=leave_one_out, shapings=[half, partial(clip_scores, low=0.5, high=1)]
    )
    np.testing.assert_allclose(both.advantage, [0.25, -0.5, 0.25, 0.25, 0], rtol=1e-6)
    with pytest.raises(ConfigError, match="above"):
        clip_scores(episodes, low=1, high=0)
    assert with_shaped_scores(answers([nan]), NO_VALUES, credit=max_rl, shapings=[]).metrics["reward/shaping_mean"] == 0


def test_truncated_answers_are_left_out() -> None:
    """Scores 1, 0, 0, the last one cut: as baseline it counts, or it does not."""
    episodes = answers([1, 0, 0], lengths=[1, 2, 2], truncated=[False, False, True])
    credit = partial(group_relative, scale="none")
    counted = overlong_filtered(episodes, NO_VALUES, credit=credit)
    np.testing.assert_allclose(counted.advantage, [2 / 3, -1 / 3, -1 / 3, 0, 0], rtol=1e-6)
    assert counted.metrics["reward/truncated_dropped"] == pytest.approx(1 / 3)
    alone = overlong_filtered(episodes, NO_VALUES, credit=credit, in_statistics=False)
    np.testing.assert_allclose(alone.advantage, [0.5, -0.5, -0.5, 0, 0])
    values = Values(value=np.ones(5, np.float32), final=np.zeros(3, np.float32))
    critic = overlong_filtered(episodes, values, credit=partial(gae, discount=1.0, gae_lambda=1.0), in_statistics=False)
    assert critic.target is not None
    assert critic.target.tolist() == [1, 0, 0, 1, 1]
    paid = answers([1, 7], truncated=[False, True])
    behind: list[Episodes] = []

    def seen(judged: Episodes, values: Values) -> Credits:
        behind.append(judged)
        return reward_as_advantage(judged, values)

    overlong_filtered(paid, NO_VALUES, credit=seen, in_statistics=False)
    assert behind[0].reward.tolist() == [1, 0]
    assert behind[0].scored.tolist() == [True, False]
    assert np.isnan(behind[0].score[1])
