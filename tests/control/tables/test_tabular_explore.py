"""Exploration: probabilities by hand and by count, schedules, draws that are what they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.control.tables.explore import (
    ConstantSchedule,
    CountBonus,
    EpsilonGreedy,
    Exploration,
    ExponentialSchedule,
    LinearSchedule,
    SoftmaxActions,
    UpperConfidenceBound,
    action_probabilities,
    boltzmann,
    count_bonus,
    epsilon_greedy,
    sample_actions,
    schedule_value,
    upper_confidence,
)

VALUES = np.array([[1.0, 3.0, 3.0, 0.0]])
COUNTS = np.array([[4, 1, 9, 2]])


def test_epsilon_greedy_shares_among_equals() -> None:
    np.testing.assert_allclose(epsilon_greedy(VALUES, 0.2), [[0.05, 0.45, 0.45, 0.05]])


def test_boltzmann_by_hand() -> None:
    weight = np.exp(VALUES / 2.0)
    np.testing.assert_allclose(boltzmann(VALUES, 2.0), weight / weight.sum())
    np.testing.assert_allclose(boltzmann(VALUES + 1e6, 2.0), boltzmann(VALUES, 2.0), atol=1e-9)
    np.testing.assert_allclose(boltzmann(VALUES, 0.0), [[0.0, 0.5, 0.5, 0.0]])


def test_upper_confidence_by_hand_and_what_was_never_tried_first() -> None:
    index = upper_confidence(VALUES, COUNTS, 2.0)
    assert index[0, 1] == pytest.approx(3 + 2 * np.sqrt(np.log(16)))
    chances = action_probabilities(UpperConfidenceBound(kind="ucb"), VALUES, np.array([[4, 0, 9, 0]]), 0)
    np.testing.assert_allclose(chances, [[0, 0.5, 0, 0.5]])


def test_the_bonus_of_counts_is_paid_to_learning() -> None:
    explore = CountBonus(kind="counts", weight=0.5)
    np.testing.assert_allclose(count_bonus(explore, np.array([1, 4, 0])), [0.5, 0.25, 0.5])
    assert count_bonus(EpsilonGreedy(), np.array([1])) is None


def test_schedules() -> None:
    line = LinearSchedule(kind="linear", start=1.0, end=0.2, decay_iterations=10)
    assert [schedule_value(line, turn) for turn in (0, 5, 10, 99)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    falling = ExponentialSchedule(kind="exponential", start=1.0, end=0.0, half_life=4)
    assert [schedule_value(falling, turn) for turn in (0, 4, 8)] == pytest.approx([1.0, 0.5, 0.25])
    assert schedule_value(ConstantSchedule(value=0.3), 7) == 0.3
    always = EpsilonGreedy(epsilon=LinearSchedule(kind="linear", start=1.0, end=0.0, decay_iterations=2))
    np.testing.assert_allclose(action_probabilities(always, VALUES, COUNTS, 0), np.full((1, 4), 0.25))
    np.testing.assert_allclose(action_probabilities(always, VALUES, COUNTS, 2), [[0.0, 0.5, 0.5, 0.0]])


RULES: list[Exploration] = [
    EpsilonGreedy(), SoftmaxActions(kind="boltzmann"), UpperConfidenceBound(kind="ucb"), CountBonus(kind="counts"),
]  # fmt: skip


@pytest.mark.parametrize("explore", RULES, ids=[rule.kind for rule in RULES])
@given(seed=st.integers(0, 1000))
def test_probabilities_add_up(explore: Exploration, seed: int) -> None:
    draws = np.random.default_rng(seed)
    chances = action_probabilities(explore, draws.standard_normal((6, 3)), draws.integers(0, 5, (6, 3)), seed)
    assert (chances >= 0).all()
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)


def test_draws_have_the_probabilities_and_say_them() -> None:
    chances = np.tile([[0.0, 0.25, 0.7, 0.05, 0.0]], (100_000, 1))
    chosen, logp = sample_actions(chances, np.random.default_rng(0).random(100_000, dtype=np.float32))
    share = np.bincount(chosen, minlength=5) / len(chosen)
    np.testing.assert_allclose(share, chances[0], atol=0.005)
    np.testing.assert_allclose(np.exp(logp), chances[0][chosen], rtol=1e-6)
    edge, _ = sample_actions(chances[:2], np.array([0.0, np.nextafter(np.float32(1), np.float32(0))], np.float32))
    assert edge.tolist() == [1, 3]  # never an action of probability 0
