"""Credits where a small fault hides: number types, ties, small groups, groups of equal scores, baselines of series."""

import inspect
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from credit_batches import answers, nan

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError, UserCodeError
from hone.credit import group, grouping, passk, reinforce, returns
from hone.credit import group as components
from hone.credit import passk as maclaurin
from hone.credit.grouping import checked_column

MANY = 400
"""Answers with ties: numpy's unstable sort keeps the order of a few equal values, not of so many."""


def seen_by(seen: list[tuple[Episodes, Values]]) -> Callable[[Episodes, Values], Credits]:
    def credit(episodes: Episodes, values: Values) -> Credits:
        seen.append((episodes, values))
        return returns.reward_as_advantage(episodes, values)

    return credit


# ------------------------------------------------------------------------------------------- baselines of log p


def series_slowly(right: int, count: int, terms: int, baseline: str) -> tuple[float, float]:
    """Weights of a right and of a wrong answer, by all subsets S of k answers: each answer of S gets -(N / (k C(N, k)))
    (1 where S is all wrong, less the share of all-wrong subsets among the others, or among the disjoint ones)."""
    wrong = [place >= right for place in range(count)]
    weight = [1.0 if place < right else 0.0 for place in range(count)]
    for k in range(2, min(terms, count) + 1):
        subsets = list(itertools.combinations(range(count), k))
        failed = {subset: all(wrong[place] for place in subset) for subset in subsets}
        for subset in subsets:
            others = [one for one in subsets if one != subset]
            if baseline == "cross_fitted":
                others = [one for one in others if not set(one) & set(subset)]
            share = sum(failed[one] for one in others) / len(others) if others else 0.0
            for place in subset:
                weight[place] -= count / (k * len(subsets)) * (failed[subset] - share)
    return (weight[0] if right else nan, weight[-1] if right < count else nan)


@pytest.mark.parametrize("baseline", ["leave_one_out", "cross_fitted"])
@pytest.mark.parametrize(("count", "terms"), [(1, 1), (1, 3), (2, 2), (3, 3), (4, 2), (5, 9), (6, 3), (7, 4)])
def test_baselines_of_the_series_over_all_subsets(baseline: maclaurin.SeriesBaseline, count: int, terms: int) -> None:
    for right in range(count + 1):
        batch = answers([1.0] * right + [0.0] * (count - right))
        found = maclaurin.maclaurin(batch, NO_VALUES, terms=terms, baseline=baseline).advantage
        slow = series_slowly(right, count, terms, baseline)
        expected = [slow[0]] * right + [slow[1]] * (count - right)
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=f"{right} right")


def test_a_refusal_names_the_credit() -> None:
    with pytest.raises(UserCodeError, match=r"^subset_maclaurin needs"):
        maclaurin.subset_maclaurin(answers([0.5]), NO_VALUES, terms=1)


# ----------------------------------------------------------------------------------------------- groups and ties


def test_equal_scores_keep_their_order_among_many() -> None:
    score = np.repeat([[1.0, 0.0]], MANY // 2, axis=0).reshape(1, -1)
    order, ordered = passk._ascending(score)
    assert order[0, : MANY // 2].tolist() == list(range(1, MANY, 2))
    assert order[0, MANY // 2 :].tolist() == list(range(0, MANY, 2))
    np.testing.assert_array_equal(ordered[0], np.sort(score[0]))


def test_groups_of_one_size_are_judged_in_the_order_of_their_answers() -> None:
    numbers = np.tile(np.arange(2), MANY)
    rows: list[np.ndarray] = []

    def judge(scores: grouping.Floats) -> grouping.Floats:
        rows.append(scores)
        return scores

    values = np.arange(2.0 * MANY)
    np.testing.assert_array_equal(grouping.apply_by_group_size(values, numbers, judge), values)
    np.testing.assert_array_equal(rows[0], values.reshape(-1, 2).T)


def test_a_group_of_tiny_scores_is_no_group_of_equal_scores() -> None:
    tiny = [1e-9, 3e-9]
    for credit in (group.length_baseline, group.group_policy_gradient):
        found = credit(answers([1.0, 1.0, *tiny], [0, 0, 1, 1]), NO_VALUES)
        assert found.advantage[2:].any(), credit
        assert found.metrics[grouping.ZERO_VARIANCE_GROUPS] == 0.5
        assert credit(answers(tiny), NO_VALUES).advantage.any(), credit


def test_groups_of_equal_scores_are_counted_as_such_by_their_centre() -> None:
    batch = answers([1.0, 1.0, 0.0, 1.0], [0, 0, 1, 1])
    for center in ("group", "leave_one_out"):
        found = group.group_relative(batch, NO_VALUES, center=center, scale="none")
        assert found.advantage[:2].tolist() == [0.0, 0.0]
    rounded = answers([0.1, 0.1, 0.1, 0.0, 1.0, 2.0], [0, 0, 0, 1, 1, 1])
    found = group.group_relative(rounded, NO_VALUES, center="leave_one_out", scale="none").advantage
    assert found[:3].tolist() == [0.0, 0.0, 0.0]


def test_groups_that_are_too_small_are_told_only_where_two_scores_do_not_suffice() -> None:
    batch = answers([1.0, 0.0, 1.0], [0, 0, 1])
    assert "reward/groups_too_small" not in passk.pkpo(batch, NO_VALUES, k=2).metrics
    assert passk.pkpo(batch, NO_VALUES, k=3).metrics["reward/groups_too_small"] == 1.0
    three = answers([1.0, 0.0, 1.0, 0.0], [0, 0, 0, 1])
    assert passk.pkpo(three, NO_VALUES, k=3).metrics["reward/groups_too_small"] == 0.5, "three scores suffice for three"


def test_standardised_components_take_the_population_deviation_where_asked() -> None:
    """Two scores 0 and 1: deviation sqrt(1/2) by ddof 1 and 1/2 by ddof 0, so +-1/sqrt(2) and +-1."""
    for ddof, expected in ((1, math.sqrt(0.5)), (0, 1.0)):
        found = components._standardised(np.array([0.0, 1.0]), np.array([0, 0]), ddof=ddof, epsilon=0.0)[0]
        np.testing.assert_allclose(found, [-expected, expected])


# ---------------------------------------------------------------------------------------------------- MaxRL, best


def test_max_rl_of_one_right_answer_is_not_halved() -> None:
    found = passk.max_rl(answers([1.0, 0.5], [0, 1]), NO_VALUES, centered=False, epsilon=0.0)
    assert found.advantage.tolist() == [1.0, 1.0]
    assert found.metrics[grouping.ZERO_VARIANCE_GROUPS] == 1.0


def test_max_rl_adds_epsilon_to_mean_and_deviation() -> None:
    """Scores 0 and 1: mean and deviation 1/2, so +-1/2 over (1/2 + e)(1/2 + e)."""
    found = passk.max_rl(answers([0.0, 1.0]), NO_VALUES, standardised=True, epsilon=0.5).advantage
    np.testing.assert_allclose(found, [-0.5, 0.5])


def test_best_of_a_group_is_standardised_by_the_deviation_of_its_own_rows() -> None:
    """Scores 0, 1/2 and 0.6: the best leads the second by 0.1; population deviation of the three."""
    scores = [0.0, 0.5, 0.6]
    for ddof in (0, 1):
        found = passk.best_of_group(answers(scores), NO_VALUES, ddof=ddof, epsilon=0.25).advantage
        lead = 0.1 / (np.std(scores, ddof=ddof) + 0.25)
        np.testing.assert_allclose(found, [0.0, 0.0, lead], rtol=1e-6)


# -------------------------------------------------------------------------------------------------------- whitening


@pytest.mark.parametrize("count", [0, 1, 3])
def test_nothing_to_whiten_is_zero_of_the_same_shape(count: int) -> None:
    found = reinforce.whiten(np.zeros(count), epsilon=0.0)
    assert found.shape == (count,) and not found.any()


def test_reinforce_plus_plus_baseline_gives_dead_groups_exactly_nothing() -> None:
    batch = answers([0.1, 0.1, 0.1, 0.0, 1.0, 1.0], [0, 0, 0, 1, 1, 1])
    found = reinforce.reinforce_plus_plus_baseline(batch, NO_VALUES, epsilon=0.5).advantage
    centred = np.array([0, 0, 0, -2 / 3, 1 / 3, 1 / 3])
    np.testing.assert_allclose(found[3:], (centred / (centred.std(ddof=1) + 0.5))[3:], rtol=1e-6)
    assert (found[:3] == found[0]).all() and abs(found[0]) < 1e-15


def test_whitened_rewards_by_hand_and_what_stays_as_it_is() -> None:
    """Rewards 1 and 3: mean 2, variance 2 by ddof 1; with epsilon 2 their deviation counts as 2."""
    values = Values(value=np.ones(2, np.float32), final=np.ones(2, np.float32))
    seen: list[tuple[Episodes, Values]] = []
    found = reinforce.whitened_rewards(answers([1.0, 3.0]), values, credit=seen_by(seen), epsilon=2.0)
    np.testing.assert_allclose(found.advantage, [1.5, 2.5])
    assert seen[0][1] is values and seen[0][0].reward.dtype == np.float32
    for scores in ([0.0, 0.0], [5.0], [2.0, 2.0]):
        same = reinforce.whitened_rewards(answers(scores), NO_VALUES, credit=seen_by([]), epsilon=0.0)
        assert same.advantage.tolist() == scores
    two = reinforce.whitened_rewards(answers([1.0, 3.0]), NO_VALUES, credit=seen_by([]), shift=True, epsilon=0.0)
    np.testing.assert_allclose(two.advantage, [-math.sqrt(0.5), math.sqrt(0.5)])


def test_whitened_answers_hand_the_values_on() -> None:
    values = Values(value=np.ones(2, np.float32), final=np.ones(2, np.float32))
    seen: list[tuple[Episodes, Values]] = []
    found = reinforce.whitened_answers(answers([1.0, 3.0]), values, credit=seen_by(seen))
    assert seen[0][1] is values and found.advantage.dtype == np.float32


# ----------------------------------------------------------------------------------------------- types and columns


def test_credits_are_of_32_bits() -> None:
    batch = answers([1.0, nan], lengths=[2, 1])
    values = Values(value=np.ones(3, np.float32), final=np.zeros(2, np.float32))
    for found in (
        returns.discounted_returns(batch, NO_VALUES, discount=0.5),
        returns.gae(batch, values, discount=0.5, gae_lambda=0.5),
    ):
        assert found.advantage.dtype == np.float32 and found.target is not None and found.target.dtype == np.float32
    without_score = returns.discounted_returns(batch, NO_VALUES, discount=0.5)
    assert without_score.target is not None and without_score.target.tolist() == [0.5, 1.0, 0.0]


def test_a_critic_must_value_every_decision_and_every_end() -> None:
    batch = answers([1.0, 0.0], lengths=[2, 1])
    for values, finals in ((3, 1), (2, 2)):
        wrong = Values(value=np.zeros(values, np.float32), final=np.zeros(finals, np.float32))
        with pytest.raises(ConfigError, match="needs a critic"):
            returns.gae(batch, wrong, discount=1.0, gae_lambda=1.0)


def test_a_column_is_widened_and_its_first_fault_is_placed() -> None:
    batch = answers([1.0, 0.0, 0.0], lengths=[2, 2, 1])
    assert checked_column(lambda _: np.ones(5, np.float32), batch, "x").dtype == np.float64
    with pytest.raises(DataError, match=r"decision 0 of episode 1;"):
        checked_column(lambda _: np.array([0, 0, np.inf, 0, 0]), batch, "x")


def test_max_rl_counts_failures_unless_asked_otherwise() -> None:
    assert inspect.signature(passk.max_rl).parameters["order"].default == "n_minus_one"
