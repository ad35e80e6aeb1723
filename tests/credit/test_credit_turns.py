"""Credit over turns: hand values, loops, and what the environment's tokens must not change."""

import statistics
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from credit_dialogues import Dialogue, Turn, critic, dialogues
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.group import group_relative
from hone.credit.grouping import CreditFunction, delimiter_ends, turn_ends
from hone.credit.reinforce import reinforce_plus_plus
from hone.credit.returns import decoupled_gae, discounted_returns, gae, one_step_target
from hone.credit.turns import (
    anchored,
    dialogues_as_one,
    observed_texts,
    per_turn,
    step_group_relative,
    turn_table,
    with_turn_discount,
)

ZERO = "reward/zero_variance_groups"


numbers = st.integers(-4, 4).map(float)
turns = st.builds(Turn, st.lists(st.integers(0, 2), min_size=1, max_size=2), st.integers(1, 4), numbers)
talks = st.lists(st.lists(turns, min_size=1, max_size=4), min_size=1, max_size=7)


# -------------------------------------------------------------------------------------------- turns as decisions


def test_a_table_of_turns() -> None:
    episodes = dialogues([[Turn([1], 2, 0.5), Turn([2, 3], 1, 1.0)], [Turn([1], 3, 2.0)]])
    found = turn_table(episodes)
    assert found.offsets.tolist() == [0, 2, 3, 6]
    assert found.per_episode.tolist() == [0, 2, 3]
    assert found.episode.tolist() == [0, 0, 1]
    assert found.reward.tolist() == [0.5, 1.0, 2.0]
    assert found.lengths.tolist() == [2, 1, 3]


def test_gae_over_turns_by_hand() -> None:
    """Two turns of 3 and 1 tokens that pay 1 and 2; values 10 and 20 at their beginnings, whatever stands between;
    discount 1/2, lambda 1/2. The second: 2 - 20 = -18. The first: 1 + 10 - 10 + (-18) / 4 = -3.5."""
    episodes = dialogues([[Turn([7], 3, 1.0), Turn([8, 8], 1, 2.0)]])
    values = Values(value=np.array([10, 99, -99, 20], np.float32), final=np.array([40], np.float32))
    over_turns = partial(per_turn, credit=partial(gae, discount=0.5, gae_lambda=0.5))
    credits = over_turns(episodes, values)
    assert credits.advantage.tolist() == [-3.5, -3.5, -3.5, -18.0]
    assert credits.target is not None
    assert credits.target.tolist() == [6.5, 6.5, 6.5, 2.0]
    cut = over_turns(replace(episodes, terminated=np.array([False]), truncated=np.array([True])), values)
    assert cut.advantage.tolist() == [1.5, 1.5, 1.5, 2.0], "the value of what comes after the cut: + 20, and + 5"


def slow_turn_gae(talks: list[Dialogue], values: Values, cut: set[int], discount: float, decay: float) -> list[float]:
    found: list[float] = []
    place = 0
    for e, talk in enumerate(talks):
        worth = []
        for one in talk:
            worth.append(float(values.value[place]))
            place += one.length
        worth.append(float(values.final[e]) if e in cut else 0.0)
        ahead, own = 0.0, []
        for k in reversed(range(len(talk))):
            ahead = talk[k].reward + discount * worth[k + 1] - worth[k] + discount * decay * ahead
            own.append(ahead)
        for one, advantage in zip(talk, reversed(own), strict=True):
            found += [advantage] * one.length
    return found


@given(talks, st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_gae_over_turns_agrees_with_loops(talks: list[Dialogue], discount: float, decay: float, seed: int) -> None:
    cut = {e for e in range(len(talks)) if (seed >> e) % 2}
    episodes = dialogues(talks, cut=tuple(cut))
    values = critic(episodes, seed)
    credits = per_turn(episodes, values, credit=partial(gae, discount=discount, gae_lambda=decay))
    slow = slow_turn_gae(talks, values, cut, discount, decay)
    np.testing.assert_allclose(credits.advantage, slow, atol=1e-4)
    begin = np.repeat(values.value[turn_table(episodes).offsets[:-1]], turn_table(episodes).lengths)
    np.testing.assert_allclose(credits.target, credits.advantage + begin, atol=1e-4)


@given(talks, st.integers(0, 99))
def test_turns_of_one_token_are_decisions(talks: list[Dialogue], seed: int) -> None:
    """Then a credit over turns is the credit itself, with a critic and without."""
    episodes = dialogues([[replace(one, length=1) for one in talk] for talk in talks])
    values = critic(episodes, seed)
    for credit in (partial(decoupled_gae, discount=0.9), partial(discounted_returns, discount=0.9)):
        whole, wrapped = credit(episodes, values), per_turn(episodes, values, credit=credit)
        np.testing.assert_array_equal(whole.advantage, wrapped.advantage)
        np.testing.assert_array_equal(whole.target, wrapped.target)
        assert whole.metrics == wrapped.metrics
    short = per_turn(episodes, NO_VALUES, credit=reinforce_plus_plus)
    np.testing.assert_array_equal(short.advantage, reinforce_plus_plus(episodes, NO_VALUES).advantage)


def test_segments_may_be_marked_otherwise() -> None:
    episodes = dialogues([[Turn([1], 4, 3.0)]])
    halves = partial(delimiter_ends, tokens=[102])
    found = per_turn(episodes, NO_VALUES, credit=partial(discounted_returns, discount=0.5), step_ends=halves)
    assert found.advantage.tolist() == [1.5, 1.5, 3.0, 3.0]


def test_a_target_with_discounts_has_no_turns() -> None:
    episodes = dialogues([[Turn([1], 2)]])
    with pytest.raises(ConfigError, match="bootstrapped targets has no turns"):
        per_turn(episodes, NO_VALUES, credit=partial(one_step_target, discount=0.9))


# -------------------------------------------------------------------------------------------- discounts per turn


def test_a_win_in_fewer_turns_is_worth_more() -> None:
    quick, slow = [Turn([1], 5, 1.0)], [Turn([1], 1), Turn([2], 1, 1.0)]
    episodes = dialogues([quick, slow, [Turn([1], 2, 0.0)]], missing=(2,))
    seen: list[float] = []

    def credit(changed: Episodes, values: Values):
        seen.extend(changed.score.tolist())
        return group_relative(changed, values, scale="none")

    found = with_turn_discount(episodes, NO_VALUES, credit=credit, discount=0.5)
    np.testing.assert_equal(seen, [1.0, 0.5, np.nan])
    assert found.advantage.tolist() == [0.25] * 5 + [-0.25] * 2 + [0.0] * 2


@given(talks)
def test_without_a_discount_the_score_stays(talks: list[Dialogue]) -> None:
    episodes = dialogues(talks, missing=(0,))
    found = with_turn_discount(episodes, NO_VALUES, credit=group_relative, discount=1.0)
    np.testing.assert_allclose(found.advantage, group_relative(episodes, NO_VALUES).advantage, atol=1e-6)


def test_discounted_steps_by_hand() -> None:
    """Turns pay 1 and 3 beside one of 2: normalised -1, 1 and 0. The first turn: -1 + 1/2 of what comes."""
    episodes = dialogues([[Turn([1], 2, 1.0), Turn([2], 1, 3.0)], [Turn([1], 1, 2.0)]])
    found = step_group_relative(episodes, NO_VALUES, step_ends=turn_ends, discount=0.5, epsilon=0.0)
    np.testing.assert_allclose(found.advantage, [-0.5, -0.5, 1.0, 0.0], atol=1e-7)


# -------------------------------------------------------------------------------------------- equal observations


def test_equal_observations_are_compared_by_hand() -> None:
    """Scores 3 and 1 of a group: -+1 of the dialogues, by their deviation 1.414. Both begin with [1]: returns with
    discount 1/2 are 0.5 * 3 = 1.5 and 1. Both hear [5] once: 3 of the first, 1 + 0 ... of the second. [6] is alone."""
    episodes = dialogues(
        [[Turn([1], 1, 0.0), Turn([5], 2, 3.0)], [Turn([1], 1, 0.5), Turn([6], 1, -0.5), Turn([5], 1, 1.0)]]
    )
    found = anchored(episodes, NO_VALUES, discount=0.5, scale="none")
    first = [1.5, 0.5 + 0.5 * (-0.5 + 0.5 * 1.0)]
    mean = sum(first) / 2
    turns = [first[0] - mean, 1.0, 1.0, first[1] - mean, 0.0, -1.0]
    np.testing.assert_allclose(found.advantage, np.array([1.0, 1, 1, -1, -1, -1]) + turns, atol=1e-6)
    assert found.metrics == {ZERO: 0.0, "credit/turns": 5.0, "credit/anchored_turns": 0.8}
    scaled = anchored(episodes, NO_VALUES, discount=0.5, epsilon=0.0)
    root = float(np.sqrt(0.5))
    np.testing.assert_allclose(scaled.advantage, [root * 2] * 3 + [-root * 2, -root, -root * 2], atol=1e-6)


def slow_anchored(
    talks: list[Dialogue], groups: list[int], missing: set[int], discount: float, weight: float
) -> np.ndarray:
    def normal(own: float, all_: list[float]) -> float:
        return 0.0 if len(set(all_)) < 2 else (own - statistics.fmean(all_)) / (statistics.stdev(all_) + 1e-6)

    heard = [e for e in range(len(talks)) if e not in missing]
    scores = {e: sum(one.reward for one in talks[e]) for e in heard}
    returns = {
        (e, k): sum(discount ** (j - k) * talks[e][j].reward for j in range(k, len(talks[e])))
        for e in heard
        for k in range(len(talks[e]))
    }
    found: list[float] = []
    for e, talk in enumerate(talks):
        for k, one in enumerate(talk):
            advantage = 0.0
            if e in heard:
                advantage = normal(scores[e], [scores[o] for o in heard if groups[o] == groups[e]])
                same = [
                    paid
                    for (o, j), paid in returns.items()
                    if groups[o] == groups[e] and talks[o][j].heard == one.heard
                ]
                advantage += weight * normal(returns[e, k], same)
            found += [advantage] * one.length
    return np.array(found)


@given(talks, st.lists(st.integers(0, 2), min_size=7, max_size=7), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 9))
def test_equal_observations_agree_with_loops(talks, groups: list[int], discount: float, without: int) -> None:
    missing = {without} & set(range(len(talks)))
    episodes = dialogues(talks, groups[: len(talks)], missing=tuple(missing))
    found = anchored(episodes, NO_VALUES, discount=discount, step_weight=0.5).advantage
    np.testing.assert_allclose(found, slow_anchored(talks, groups, missing, discount, 0.5), atol=2e-5)
    assert found.dtype == np.float32


@given(talks)
def test_a_step_weight_of_zero_leaves_the_dialogue(talks: list[Dialogue]) -> None:
    episodes = dialogues(talks)
    found = anchored(episodes, NO_VALUES, step_weight=0.0)
    np.testing.assert_array_equal(found.advantage, group_relative(episodes, NO_VALUES).advantage)


def test_states_may_be_numbered_otherwise() -> None:
    """By what was read so far, not by the last text alone."""
    episodes = dialogues([[Turn([1], 1, 0.0), Turn([5], 1, 2.0)], [Turn([2], 1, 0.0), Turn([5], 1, 1.0)]])
    assert observed_texts(episodes, turn_table(episodes)).tolist() == [0, 1, 2, 1]
    alone = anchored(episodes, NO_VALUES, anchors=lambda _, turns: np.arange(len(turns.episode)))
    np.testing.assert_array_equal(alone.advantage, group_relative(episodes, NO_VALUES).advantage)
    assert alone.metrics["credit/anchored_turns"] == 0.0


# -------------------------------------------------------------------------------------------- observation tokens

OVER_TURNS: dict[str, CreditFunction] = {
    "whole dialogue": group_relative,
    "whole dialogue, discount per turn": partial(with_turn_discount, credit=group_relative, discount=0.8),
    "rewards of turns": partial(step_group_relative, step_ends=turn_ends, discount=0.9),
    "equal observations": anchored,
    "returns over tokens": partial(discounted_returns, discount=0.9),
    "returns over turns": partial(per_turn, credit=partial(discounted_returns, discount=0.9)),
    "gae over tokens": partial(gae, discount=0.9, gae_lambda=0.8),
    "gae over turns": partial(per_turn, credit=partial(gae, discount=0.9, gae_lambda=0.8)),
    "two lambdas over turns": partial(per_turn, credit=partial(decoupled_gae, discount=0.9)),
    "whitened returns": reinforce_plus_plus,
}
"""Rows of faults that others had: a reward lost or diluted over tool output, values of masked tokens bootstrapped,
returns that begin anew at each call, discounts by position."""


@pytest.mark.parametrize("name", OVER_TURNS)
@given(talks=talks, seed=st.integers(0, 99))
def test_what_the_environment_says_carries_no_weight(name: str, talks: list[Dialogue], seed: int) -> None:
    """0, 1 and 1,000 tokens between turns: the same advantages and targets, to the bit; the turns stay apart."""
    found = []
    for count in (0, 1, 1000):
        # Equal texts stay equal and others differ, so that states do not change: one token cannot tell three texts.
        longer = [[Turn([7] * count, one.length, one.reward) for one in talk] for talk in talks]
        episodes = dialogues([[replace(talk[0], heard=[1]), *talk[1:]] for talk in longer], missing=(len(talks) - 1,))
        found.append(OVER_TURNS[name](episodes, critic(episodes, seed)))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].advantage, other.advantage)
        assert (found[0].target is None) == (other.target is None)
        if other.target is not None:
            np.testing.assert_array_equal(found[0].target, other.target)


def test_a_reward_at_the_end_reaches_the_first_turn_whole() -> None:
    """A reward of 1 after three turns and 2,000 tokens of tools: nothing is lost, diluted or paid twice."""
    talk = [Turn([1], 2), Turn([2] * 1000, 3), Turn([3] * 1000, 1, 1.0)]
    episodes = dialogues([talk])
    assert discounted_returns(episodes, NO_VALUES, discount=1.0).advantage.tolist() == [1.0] * 6
    over_turns = per_turn(episodes, NO_VALUES, credit=partial(discounted_returns, discount=0.5)).advantage
    assert over_turns.tolist() == [0.25, 0.25, 0.5, 0.5, 0.5, 1.0]
    assert turn_table(episodes).reward.sum() == 1.0


# -------------------------------------------------------------------------------------------- dialogues of several rows


def rows_of(talks: list[Dialogue], groups: list[int], cuts: set[int], missing: tuple[int, ...]) -> Episodes:
    """The same dialogues with a new row before some turns, as when a template rewrites the history."""
    pieces: list[Dialogue] = []
    dialogue, part = [], []
    turn = 0
    for number, talk in enumerate(talks):
        row = 0
        for k, one in enumerate(talk):
            if k == 0 or turn in cuts:
                pieces.append([])
                dialogue.append(number)
                part.append(row)
                row += 1
            pieces[-1].append(one)
            turn += 1
    apart = dialogues(pieces, [groups[number] for number in dialogue])
    whole = dialogues(talks, groups[: len(talks)], missing=missing)
    last = np.append(np.diff(dialogue) != 0, True)
    return replace(
        apart,
        id=np.array(dialogue),
        part=np.array(part),
        score=whole.score[dialogue],
        status=whole.status[dialogue],
        terminated=apart.terminated & last,
    )


@pytest.mark.parametrize("name", OVER_TURNS)
@given(talks, st.lists(st.integers(0, 2), min_size=7, max_size=7), st.sets(st.integers(0, 27)), st.integers(0, 9))
def test_a_dialogue_of_several_rows_counts_once(name, talks, groups: list[int], cuts: set[int], without: int) -> None:
    missing = (without,) if without < len(talks) else ()
    whole, apart = dialogues(talks, groups[: len(talks)], missing=missing), rows_of(talks, groups, cuts, missing)
    values = critic(whole, without)
    final = values.final[np.asarray(apart.id)]
    expected = OVER_TURNS[name](whole, values)
    found = dialogues_as_one(apart, replace(values, final=final), credit=OVER_TURNS[name])
    np.testing.assert_array_equal(found.advantage, expected.advantage)
    assert found.metrics == expected.metrics
    if expected.target is not None:
        np.testing.assert_array_equal(found.target, expected.target)


@given(talks, st.sets(st.integers(0, 27)))
def test_joined_rows_come_apart_again(talks, cuts: set[int]) -> None:
    """What a network reads is the rows, each by itself."""
    apart = rows_of(talks, [0] * len(talks), cuts, ())
    joined = apart.join_rows()
    assert len(joined) == len(talks)
    assert joined.part is None
    assert joined.chosen.tolist() == apart.chosen.tolist()
    again = joined.split_rows()
    assert again.offsets.tolist() == apart.offsets.tolist()
    assert again.transcript.offsets.tolist() == apart.transcript.offsets.tolist()
    assert again.transcript.at.tolist() == apart.transcript.at.tolist()
    assert again.group.tolist() == apart.group.tolist()
    order = np.arange(len(talks))[::-1]
    turned = joined.take(order).split_rows()
    wanted = apart.take(np.concatenate([np.flatnonzero(np.asarray(apart.id) == k) for k in order]))
    assert turned.transcript.offsets.tolist() == wanted.transcript.offsets.tolist()
    assert turned.transcript.tokens.tolist() == wanted.transcript.tokens.tolist()
    plain = dialogues(talks)
    assert plain.join_rows() is plain
    assert plain.split_rows() is plain
