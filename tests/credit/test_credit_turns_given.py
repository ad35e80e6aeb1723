"""Data that credits over turns hand on, dialogues without a turn, and defaults."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from credit_dialogues import Dialogue, Turn, critic, dialogues

from hone.core.credit import NO_VALUES, Values
from hone.core.episodes import Episodes
from hone.credit.group import group_relative
from hone.credit.grouping import CreditFunction, turn_ends
from hone.credit.returns import discounted_returns
from hone.credit.turns import anchored, dialogues_as_one, observed_texts, per_turn, turn_table, with_turn_discount


def test_a_credit_of_turns_sees_their_rewards_and_log_probabilities() -> None:
    episodes = dialogues([[Turn([1], 2, 0.5), Turn([2], 3, 1.0)], [Turn([1], 1, 2.0)]])
    seen: list[Episodes] = []

    def credit(short: Episodes, values: Values):
        seen.append(short)
        return discounted_returns(short, values, discount=1.0)

    found = per_turn(episodes, NO_VALUES, credit=credit)
    assert seen[0].logp.tolist() == [-1.0, -1.5, -0.5]
    assert seen[0].reward.tolist() == [0.5, 1.0, 2.0]
    assert seen[0].logp.dtype == seen[0].reward.dtype == np.float32
    assert found.advantage.tolist() == [1.5] * 2 + [1.0] * 3 + [2.0]


@pytest.mark.parametrize(
    "wrap", [dialogues_as_one, partial(with_turn_discount, discount=0.5)], ids=["rows", "discount"]
)
def test_a_wrapped_credit_gets_the_critics_values(wrap: CreditFunction) -> None:
    episodes = dialogues([[Turn([1], 2, 0.5)], [Turn([1], 1, 2.0)]])
    values = critic(episodes, 0)
    seen: list[tuple[object, object]] = []

    def credit(given: Episodes, told: Values):
        seen.append((given.decisions, told))
        return group_relative(given, told)

    wrap(episodes, values, credit=credit)  # type: ignore[call-arg]
    assert seen == [(3, values)]


def test_an_answer_without_tokens_has_no_turns_to_discount() -> None:
    """The second of three was cut before its first token: its score is 0, and the third's is its own."""
    talks: list[Dialogue] = [[Turn([1], 1, 1.0)], [Turn([1, 2], 0)], [Turn([1], 1), Turn([2], 1, 1.0)]]
    episodes = dialogues(talks)
    scores: list[float] = []

    def credit(changed: Episodes, values: Values):
        scores.extend(changed.score.tolist())
        return group_relative(changed, values)

    with_turn_discount(episodes, NO_VALUES, credit=credit, discount=0.5)
    assert scores == [1.0, 0.0, 0.5]


def test_observations_of_no_turns() -> None:
    none = dialogues([[Turn([1], 0)]])
    found = observed_texts(none, turn_table(none))
    assert found.tolist() == []
    assert found.dtype == np.int64
    some = dialogues([[Turn([1], 1)]])
    assert observed_texts(some, turn_table(some)).dtype == np.int64


def test_defaults_of_anchored_groups() -> None:
    """Two turns with discount 0.95 of what comes, by their deviation plus 1e-6, which a deviation of 1e-6 halves."""
    episodes = dialogues([[Turn([1], 1, 0.0), Turn([2], 1, 1.0)], [Turn([1], 1, 0.0), Turn([3], 1, 0.0)]])
    found = anchored(episodes, NO_VALUES, scale="none")
    np.testing.assert_allclose(found.advantage, [0.5 + 0.475, 0.5, -0.5 - 0.475, -0.5], atol=1e-6)
    tiny = float(np.sqrt(2.0)) * 1e-6
    close = dialogues([[Turn([1], 1, tiny)], [Turn([1], 1, 0.0)]])
    close = replace(close, score=np.array([tiny, 0.0]), reward=np.array([tiny, 0.0], np.float32))
    half = float(np.sqrt(0.5)) / 2
    np.testing.assert_allclose(anchored(close, NO_VALUES).advantage, [2 * half, -2 * half], rtol=1e-3)
    coarse = anchored(close, NO_VALUES, epsilon=tiny)
    np.testing.assert_allclose(coarse.advantage, np.array([1, -1]) * 2 * (tiny / 2) / (1e-6 + tiny), rtol=1e-3)


def test_what_is_read_before_a_first_turn_is_its_own_prompt() -> None:
    """Neither the last words of the dialogue before, nor the prompt of one without an answer."""
    after_last_words = dialogues([[Turn([1], 1), Turn([9, 9], 0)], [Turn([1], 1)]])
    assert observed_texts(after_last_words, turn_table(after_last_words)).tolist() == [0, 0]
    after_nothing = dialogues([[Turn([7], 0)], [Turn([1], 1)], [Turn([1], 1)]])
    assert observed_texts(after_nothing, turn_table(after_nothing)).tolist() == [0, 0]


def test_an_episode_ends_a_turn_where_the_next_one_has_no_prompt() -> None:
    episodes = dialogues([[Turn([], 2)], [Turn([], 1)]])
    assert turn_ends(episodes).tolist() == [False, True, True]
