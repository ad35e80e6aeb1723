"""Group-relative credit: values worked out by hand, a slow version, and what must not change it."""

import itertools
import math
import statistics

import numpy as np
import pytest
from credit_batches import Batch, answers, any_scores, by_group, nan, of
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes
from hone.credit.group import (
    Scale,
    batch_relative,
    group_policy_gradient,
    group_relative,
    leave_one_out,
    length_baseline,
)
from hone.credit.returns import reward_as_advantage

ZERO = "reward/zero_variance_groups"


def slow(scores: list[float], groups: list[int], *, scale: Scale, epsilon: float = 1e-6) -> list[float]:
    """One answer at a time, by the statistics module; NaN scores are missing."""
    found_by = by_group(list(zip(groups, scores, strict=True)))
    all_scores = [score for scores in found_by.values() for score in scores]
    spread = statistics.stdev(all_scores) if len(all_scores) > 1 else 1.0
    above = [score - statistics.fmean(scores) for scores in found_by.values() for score in scores]
    centred = statistics.stdev(above) if len(above) > 1 else 1.0
    found: list[float] = []
    for score, group in zip(scores, groups, strict=True):
        own = found_by.get(group, [])
        if math.isnan(score) or len(own) < 2 or len(set(own)) == 1:
            found.append(0.0)
            continue
        divisors = {
            "group": statistics.stdev(own) + epsilon,
            "centred_group": statistics.stdev(own) + epsilon,
            "batch": spread + epsilon,
            "centred_batch": centred + epsilon,
            "none": 1.0,
        }
        found.append((score - statistics.fmean(own)) / divisors[scale])
    return found


def advantage(episodes: Episodes, scale: Scale = "group") -> list[float]:
    return group_relative(episodes, NO_VALUES, scale=scale).advantage.tolist()


def test_by_hand() -> None:
    """Scores 1, 0, 0, 1: mean 1/2, sample deviation sqrt(1/3)."""
    credits = group_relative(answers([1, 0, 0, 1], [5, 5, 5, 5]), NO_VALUES)
    half = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    np.testing.assert_allclose(credits.advantage, [half, -half, -half, half], rtol=1e-6)
    assert credits.metrics == {ZERO: 0.0}
    assert credits.advantage.dtype == np.float32


def test_without_scaling_by_hand() -> None:
    assert advantage(answers([3, 0, 0, 10, 20], [0, 0, 0, 1, 1]), "none") == [2, -1, -1, -5, 5]


def test_scaled_by_the_batch_by_hand() -> None:
    """Scores 2, 0, 5, 1: their mean is 2, their sample deviation sqrt(14/3)."""
    found = advantage(answers([2, 0, 5, 1], [0, 0, 1, 1]), "batch")
    np.testing.assert_allclose(found, np.array([1, -1, 2, -2]) / (math.sqrt(14 / 3) + 1e-6), rtol=1e-6)


def test_scaled_by_the_centred_scores_of_the_batch_by_hand() -> None:
    """Scores 2, 0, 5, 1 minus their groups' means: 1, -1, 2, -2, of sample deviation sqrt(10/3), whatever the means."""
    expected = np.array([1, -1, 2, -2]) / (math.sqrt(10 / 3) + 1e-6)
    for shift in (0, 100):
        found = advantage(answers([2, 0, 5 + shift, 1 + shift], [0, 0, 1, 1]), "centred_batch")
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    silent = group_relative(answers([3, 3, 8, 8], [0, 0, 1, 1]), NO_VALUES, scale="centred_batch", epsilon=0.0)
    assert silent.advantage.tolist() == [0, 0, 0, 0]


def test_deviation_of_a_population_by_hand() -> None:
    found = group_relative(answers([1, 0, 0, 1]), NO_VALUES, ddof=0).advantage
    np.testing.assert_allclose(found, np.array([1, -1, -1, 1]) * 0.5 / (0.5 + 1e-6), rtol=1e-6)


def test_every_decision_of_an_answer_gets_its_answers_credit() -> None:
    found = advantage(answers([1, 3], [0, 0], lengths=[3, 2]), "none")
    assert found == [-1, -1, -1, 1, 1]


def test_single_and_equal_scores_say_nothing_and_are_counted() -> None:
    episodes = answers([7, 1, 1, 0.1, 0.1, 0.1, 0, 1], [0, 1, 1, 2, 2, 2, 3, 3])
    for scale in ("group", "centred_group", "batch", "centred_batch", "none"):
        credits = group_relative(episodes, NO_VALUES, scale=scale)
        assert credits.advantage[:6].tolist() == [0] * 6
        assert (np.abs(credits.advantage[6:]) > 0.2).all()
        assert credits.metrics[ZERO] == 3 / 4
    alone = leave_one_out(episodes, NO_VALUES)
    assert alone.advantage.tolist() == [0] * 6 + [-1, 1]
    assert alone.metrics[ZERO] == 3 / 4


def test_missing_scores_leave_the_statistics() -> None:
    """The third answer of the first group timed out; the second group lost all but one."""
    episodes = answers([1, 0, nan, nan, 6], [0, 0, 0, 1, 1])
    for credits in (group_relative(episodes, NO_VALUES, scale="none"), leave_one_out(episodes, NO_VALUES)):
        assert np.isfinite(credits.advantage).all()
        assert credits.advantage[2:].tolist() == [0, 0, 0]
        assert credits.metrics[ZERO] == 1 / 2
    assert advantage(episodes, "none")[:2] == [0.5, -0.5]


def test_nothing_scored_is_no_fault() -> None:
    episodes = answers([nan, nan], [0, 0])
    for scale in ("group", "centred_group", "batch", "centred_batch", "none"):
        credits = group_relative(episodes, NO_VALUES, scale=scale)
        assert credits.advantage.tolist() == [0, 0]
        assert credits.metrics[ZERO] == 0
    assert leave_one_out(episodes, NO_VALUES).advantage.tolist() == [0, 0]


def test_a_penalty_elsewhere_silences_no_group() -> None:
    """One answer's -1e6 is its own group's affair."""
    found = advantage(answers([0, 1, -1e6, 0], [0, 0, 1, 1]))
    np.testing.assert_allclose(found[:2], [-math.sqrt(0.5), math.sqrt(0.5)], rtol=1e-5)


scales = st.sampled_from(["group", "centred_group", "batch", "centred_batch", "none"])


@given(any_scores, scales)
def test_the_slow_version_agrees(batch: Batch, scale: Scale) -> None:
    expected = slow([score for _, score in batch], [group for group, _ in batch], scale=scale)
    np.testing.assert_allclose(advantage(of(batch), scale), expected, rtol=1e-5, atol=1e-6)


@given(any_scores, st.sampled_from([0.5, 2.0, 64.0]))
def test_scores_in_another_unit_change_nothing_but_the_epsilon(batch: Batch, unit: float) -> None:
    other = [(group, score * unit) for group, score in batch]
    np.testing.assert_allclose(advantage(of(other)), advantage(of(batch)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(advantage(of(other), "none"), np.array(advantage(of(batch), "none")) * unit, rtol=1e-6)


@given(st.lists(st.integers(-8, 8), min_size=2, max_size=8))
def test_leave_one_out_is_the_score_minus_that_of_the_others(scores: list[int]) -> None:
    """And so K / (K - 1) times the centred score."""
    found = leave_one_out(answers([float(score) for score in scores], [0] * len(scores)), NO_VALUES).advantage
    others = [score - (sum(scores) - score) / (len(scores) - 1) for score in scores]
    np.testing.assert_allclose(found, others, atol=1e-5)
    k = len(scores)
    np.testing.assert_allclose(found, k / (k - 1) * (np.array(scores) - np.mean(scores)), atol=1e-5)


@pytest.mark.parametrize("rates", [(0.2, 0.5), (0.9, 0.05)])
def test_leave_one_out_is_unbiased_by_enumeration(rates: tuple[float, float]) -> None:
    """Two answers that are right with `rates`, K = 2: E[A grad log pi] = grad E[R], over all choices and
    outcomes."""
    p = 0.3  # pi(first answer); theta = logit p, d log pi(first) = 1 - p, d log pi(second) = -p
    total = 0.0
    for first, second, one, other in itertools.product((0, 1), repeat=4):
        chance, slopes = 1.0, [(1 - p, -p)[choice] for choice in (first, second)]
        for choice, right in ((first, one), (second, other)):
            chance *= (p, 1 - p)[choice] * (rates[choice] if right else 1 - rates[choice])
        found = leave_one_out(answers([float(one), float(other)], [0, 0]), NO_VALUES).advantage
        total += chance * float(found @ np.array(slopes)) / 2
    assert total == pytest.approx(p * (1 - p) * (rates[0] - rates[1]), abs=1e-7)


def test_the_batch_as_baseline_by_hand() -> None:
    """Scores 2, 0, 5, 1: mean 2, sample deviation sqrt(14/3); groups play no part."""
    episodes = answers([2, 0, 5, 1, nan], [0, 1, 2, 3, 4])
    found = batch_relative(episodes, NO_VALUES).advantage
    np.testing.assert_allclose(found, np.array([0, -2, 3, -1, 0]) / (math.sqrt(14 / 3) + 1e-6), rtol=1e-6)
    assert batch_relative(episodes, NO_VALUES, scale="none").advantage.tolist() == [0, -2, 3, -1, 0]
    for empty in ([nan, nan], [0.1, 0.1, 0.1], [5.0]):
        assert not batch_relative(answers(empty), NO_VALUES).advantage.any()


def test_group_policy_gradient_by_hand() -> None:
    """Four of six answers are in a group that says something: alpha = 6/4."""
    credits = group_policy_gradient(answers([1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1]), NO_VALUES, norm=2.0)
    np.testing.assert_allclose(credits.advantage, np.array([3, -1, -1, -1, 0, 0]) / 4 * 1.5 / 2, rtol=1e-6)
    assert credits.metrics == {ZERO: 0.5, "credit/alpha": 1.5}
    assert group_policy_gradient(answers([1, 1]), NO_VALUES).metrics["credit/alpha"] == 0


@given(any_scores)
def test_group_policy_gradient_keeps_the_size_of_the_batch(batch: Batch) -> None:
    """alpha makes the mean over all answers what the mean over answers of live groups would be."""
    credits = group_policy_gradient(of(batch), NO_VALUES)
    plain = group_relative(of(batch), NO_VALUES, scale="none").advantage
    live = [len(set(by_group(batch).get(group, []))) > 1 for group, _ in batch]
    scored = sum(not math.isnan(score) for _, score in batch)
    heard = sum(alive and not math.isnan(score) for alive, (_, score) in zip(live, batch, strict=True))
    np.testing.assert_allclose(credits.advantage, plain * (scored / heard if heard else 0), rtol=1e-6, atol=1e-7)


def test_length_baseline_by_hand() -> None:
    """Lengths 1 and 3, scores 1 and 0: b = 1/4."""
    found = length_baseline(answers([1, 0], lengths=[1, 3]), NO_VALUES).advantage
    assert found.tolist() == [0.75, -0.25, -0.25, -0.25]


@given(any_scores, st.lists(st.integers(0, 5), min_size=14, max_size=14))
def test_length_weighted_advantages_sum_to_zero(batch: Batch, lengths: list[int]) -> None:
    """Over the decisions of each group; and with equal lengths it is the mean."""
    episodes = of(batch, lengths=lengths[: len(batch)])
    found = length_baseline(episodes, NO_VALUES).advantage
    groups = np.repeat(episodes.group, episodes.lengths)
    np.testing.assert_allclose(np.bincount(groups, weights=found, minlength=1), 0, atol=1e-5)
    equal = length_baseline(of(batch), NO_VALUES).advantage
    np.testing.assert_allclose(equal, group_relative(of(batch), NO_VALUES, scale="none").advantage, atol=1e-6)


def test_a_baseline_lowers_the_variance_and_leaves_the_mean_by_enumeration() -> None:
    """Two answers each, a softmax over three that score 10, 11 and 13: all pairs of choices."""
    chances, worth = np.array([0.5, 0.3, 0.2]), np.array([10.0, 11.0, 13.0])
    moments: dict[str, tuple[np.ndarray, float]] = {}
    for name, credit in (("none", reward_as_advantage), ("leave one out", leave_one_out)):
        mean, square = np.zeros(3), 0.0
        for chosen in itertools.product(range(3), repeat=2):
            found = credit(answers([float(worth[choice]) for choice in chosen]), NO_VALUES).advantage
            gradient = found.astype(np.float64) @ (np.eye(3)[list(chosen)] - chances) / 2
            mean += np.prod(chances[list(chosen)]) * gradient
            square += np.prod(chances[list(chosen)]) * float(gradient @ gradient)
        moments[name] = (mean, square - float(mean @ mean))
    np.testing.assert_allclose(moments["leave one out"][0], moments["none"][0], atol=1e-6)
    np.testing.assert_allclose(moments["none"][0], chances * (worth - chances @ worth), atol=1e-6)
    assert moments["leave one out"][1] < moments["none"][1] / 10


def test_scores_far_below_one_are_told_apart() -> None:
    """What counts as equal is a share of the largest score, not a number."""
    found = group_relative(answers([0.0, 1e-14]), NO_VALUES, center="batch", scale="none").advantage
    np.testing.assert_allclose(found, [-5e-15, 5e-15], rtol=1e-5)
