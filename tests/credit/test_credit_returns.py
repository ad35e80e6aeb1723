"""Returns and advantages: by hand, against a slow version, and across boundaries."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from counted_calls import count_calls
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes, ScoreStatus, Transcript, concatenate
from hone.core.errors import ConfigError
from hone.core.ragged import offsets_of
from hone.credit.returns import (
    discounted_returns,
    discounted_sums,
    gae,
    n_step,
    one_step_target,
    recurrence,
    reward_as_advantage,
    standardised,
    td_lambda,
)


def pieces(lengths: list[int], terminated: list[bool], seed: int = 0) -> tuple[Episodes, Values]:
    rng = np.random.default_rng(seed)
    count, total = len(lengths), sum(lengths)
    episodes = plain_episodes(
        offsets_of(np.array(lengths)),
        reward=rng.normal(size=total).astype(np.float32),
        terminated=np.array(terminated),
        truncated=np.array([number % 2 == 0 for number in range(count)]),
        final=np.zeros((count, 1), np.float32),
    )
    value = rng.normal(size=total).astype(np.float32)
    return episodes, Values(value=value, final=rng.normal(size=count).astype(np.float32))


def slow_gae(episodes: Episodes, values: Values, discount: float, decay: float) -> np.ndarray:
    found = np.zeros(episodes.decisions)
    for e in range(len(episodes)):
        start, stop = int(episodes.offsets[e]), int(episodes.offsets[e + 1])
        following, after = 0.0, 0.0 if episodes.terminated[e] else float(values.final[e])
        for t in reversed(range(start, stop)):
            delta = float(episodes.reward[t]) + discount * after - float(values.value[t])
            following = delta + discount * decay * following
            found[t], after = following, float(values.value[t])
    return found


shapes = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=8)


@given(shapes, st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_gae_equals_the_recursion(shape, discount: float, decay: float, seed: int) -> None:
    episodes, values = pieces([length for length, _ in shape], [over for _, over in shape], seed)
    credits = gae(episodes, values, discount=discount, gae_lambda=decay)
    slow = slow_gae(episodes, values, discount, decay)
    np.testing.assert_allclose(credits.advantage, slow, atol=1e-5)
    np.testing.assert_allclose(credits.target, slow + values.value, atol=1e-5)


@given(shapes, st.integers(0, 99))
def test_a_batch_is_its_episodes_one_by_one(shape, seed: int) -> None:
    """No estimator looks across a boundary."""
    episodes, values = pieces([length for length, _ in shape], [over for _, over in shape], seed)
    together = gae(episodes, values, discount=0.97, gae_lambda=0.9).advantage
    apart = [
        gae(
            episodes.take(np.array([e])),
            Values(value=values.value[episodes.offsets[e] : episodes.offsets[e + 1]], final=values.final[e : e + 1]),
            discount=0.97,
            gae_lambda=0.9,
        ).advantage
        for e in range(len(episodes))
    ]
    np.testing.assert_allclose(together, np.concatenate(apart), atol=1e-6)
    joined = concatenate([episodes, episodes])
    both = Values(value=np.tile(values.value, 2), final=np.tile(values.final, 2))
    np.testing.assert_allclose(
        gae(joined, both, discount=0.97, gae_lambda=0.9).advantage, np.tile(together, 2), atol=1e-6
    )


def chain(*, terminated: bool) -> tuple[Episodes, Values]:
    episodes, _ = pieces([3], [terminated])
    episodes.reward[:] = [1, 2, 3]
    return episodes, Values(value=np.array([10, 20, 30], np.float32), final=np.array([40], np.float32))


def test_a_chain_of_three_by_hand() -> None:
    """lambda = 0: the target is r + discount * V(next); the state before a terminal reward aims at the reward alone."""
    ended = gae(*chain(terminated=True), discount=0.5, gae_lambda=0.0)
    assert ended.target is not None
    assert ended.target.tolist() == [1 + 10, 2 + 15, 3]
    assert ended.advantage.tolist() == [1, -3, -27]
    cut = gae(*chain(terminated=False), discount=0.5, gae_lambda=0.0)
    assert cut.target is not None
    assert cut.target.tolist() == [11, 17, 3 + 20]
    mixed = gae(*chain(terminated=True), discount=0.5, gae_lambda=0.5)
    assert mixed.advantage.tolist() == [1 + 0.25 * (-3 + 0.25 * -27), -3 + 0.25 * -27, -27]


@given(shapes, st.integers(0, 99))
def test_lambda_one_is_the_return(shape, seed: int) -> None:
    episodes, values = pieces([length for length, _ in shape], [over for _, over in shape], seed)
    target = gae(episodes, values, discount=0.9, gae_lambda=1.0).target
    assert target is not None
    np.testing.assert_allclose(target, discounted_returns(episodes, values, discount=0.9).advantage, atol=1e-5)


def test_returns_without_a_critic() -> None:
    episodes, _ = chain(terminated=False)
    assert discounted_returns(episodes, NO_VALUES, discount=0.5).advantage.tolist() == [1 + 1 + 0.75, 2 + 1.5, 3]


def test_termination_wins_over_truncation() -> None:
    episodes, values = chain(terminated=True)
    assert episodes.truncated[0]
    target = gae(episodes, values, discount=1.0, gae_lambda=0.0).target
    assert target is not None
    assert target[-1] == 3


def test_one_step_ends_where_the_world_ended() -> None:
    episodes, _ = pieces([2, 1, 0, 3], [True, False, True, False])
    credits = one_step_target(episodes, NO_VALUES, discount=0.9)
    assert credits.discount is not None
    np.testing.assert_allclose(credits.discount, [0.9, 0, 0.9, 0.9, 0.9, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(credits.advantage, episodes.reward)
    single = one_step_target(episodes.transitions(), NO_VALUES, discount=0.9)
    np.testing.assert_array_equal(single.discount, credits.discount)
    np.testing.assert_array_equal(reward_as_advantage(episodes, NO_VALUES).advantage, episodes.reward)


def test_standardised() -> None:
    credits = standardised(Credits(advantage=np.array([1, 2, 3, 6], np.float32)))
    np.testing.assert_allclose(credits.advantage, (np.array([1, 2, 3, 6]) - 3) / np.sqrt(3.5), rtol=1e-6)
    assert standardised(Credits(advantage=np.full(3, 5, np.float32))).advantage.tolist() == [0, 0, 0]


@given(shapes, st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_the_lambda_return_is_the_target_of_gae(shape, discount: float, decay: float, seed: int) -> None:
    episodes, values = pieces([length for length, _ in shape], [over for _, over in shape], seed)
    found = td_lambda(episodes, values, discount=discount, trace_lambda=decay)
    other = gae(episodes, values, discount=discount, gae_lambda=decay)
    np.testing.assert_allclose(found.target, other.target, atol=1e-5)
    np.testing.assert_allclose(found.advantage, other.advantage, atol=1e-5)


def slow_n_step(episodes: Episodes, values: Values, discount: float, steps: int) -> np.ndarray:
    found = np.zeros(episodes.decisions)
    for e in range(len(episodes)):
        start, stop = int(episodes.offsets[e]), int(episodes.offsets[e + 1])
        for t in range(start, stop):
            end = min(t + steps, stop)
            beyond = 0.0 if episodes.terminated[e] else float(values.final[e])
            after = beyond if end == stop else float(values.value[end])
            paid = sum(discount ** (u - t) * float(episodes.reward[u]) for u in range(t, end))
            found[t] = paid + discount ** (end - t) * after
    return found


@given(shapes, st.floats(0, 1), st.integers(1, 12), st.integers(0, 99))
def test_n_step_equals_the_sum(shape, discount: float, steps: int, seed: int) -> None:
    episodes, values = pieces([length for length, _ in shape], [over for _, over in shape], seed)
    credits = n_step(episodes, values, discount=discount, steps=steps)
    slow = slow_n_step(episodes, values, discount, steps)
    np.testing.assert_allclose(credits.target, slow, atol=1e-5)
    np.testing.assert_allclose(credits.advantage, slow - values.value, atol=1e-5)


def test_n_step_by_hand_and_at_its_ends() -> None:
    """Rewards 1, 2, 3, values 10, 20, 30, then 40; discount 1/2. One step is gae(0), many steps are the return."""
    episodes, values = chain(terminated=False)
    assert n_step(episodes, values, discount=0.5, steps=2).target.tolist() == [2 + 7.5, 2 + 1.5 + 10, 3 + 20]  # type: ignore[union-attr]
    one = n_step(episodes, values, discount=0.5, steps=1).advantage
    np.testing.assert_allclose(one, gae(episodes, values, discount=0.5, gae_lambda=0.0).advantage)
    many = n_step(episodes, values, discount=0.5, steps=99).target
    np.testing.assert_allclose(many, discounted_returns(episodes, values, discount=0.5).target)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="steps = 0"):
        n_step(episodes, values, discount=0.5, steps=0)


def test_without_a_critic_it_says_so() -> None:
    episodes, _ = chain(terminated=True)
    for credit in (partial(gae, gae_lambda=0.9), partial(td_lambda, trace_lambda=0.9)):
        with pytest.raises(ConfigError, match="needs a critic: 0 values for 3 decisions"):
            credit(episodes, NO_VALUES, discount=0.9)


def test_a_failed_reward_teaches_nothing() -> None:
    """The second of two episodes has no score: no advantage, and its values aim at themselves."""
    episodes, values = pieces([2, 3], [True, True])
    whole = gae(episodes, values, discount=0.9, gae_lambda=0.9).advantage
    lost = replace(episodes, status=np.array([ScoreStatus.SCORED, ScoreStatus.ERROR], np.uint8))
    for credits in (
        gae(lost, values, discount=0.9, gae_lambda=0.9),
        td_lambda(lost, values, discount=0.9, trace_lambda=0.9),
        n_step(lost, values, discount=0.9, steps=2),
        discounted_returns(lost, values, discount=0.9),
    ):
        assert credits.advantage[2:].tolist() == [0, 0, 0]
        assert credits.target is not None
        np.testing.assert_allclose(credits.target[2:], values.value[2:], rtol=1e-6)
    np.testing.assert_allclose(gae(lost, values, discount=0.9, gae_lambda=0.9).advantage[:2], whole[:2])
    assert discounted_returns(lost, NO_VALUES, discount=0.9).advantage[2:].tolist() == [0, 0, 0]


def test_what_a_tool_says_between_two_decisions_is_no_step() -> None:
    """The same four decisions, once in a row and once with tokens of the world between them: the same credit, and the
    reward at the end reaches the first turn with one discount per decision."""
    episodes, values = pieces([4], [True])
    episodes.reward[:] = [0, 0, 0, 1]

    def told(at: list[int], total: int) -> Episodes:
        tokens = np.arange(total, dtype=np.int32)
        seen = Transcript(tokens=tokens, offsets=np.array([0, total]), at=np.array(at))
        return replace(episodes, seen=seen, final=None)

    for discount, decay in ((1.0, 1.0), (0.9, 0.8)):
        together = gae(told([1, 2, 3, 4], 5), values, discount=discount, gae_lambda=decay)
        apart = gae(told([1, 2, 90, 91], 100), values, discount=discount, gae_lambda=decay)
        np.testing.assert_array_equal(together.advantage, apart.advantage)
        np.testing.assert_allclose(apart.advantage, slow_gae(episodes, values, discount, decay), atol=1e-6)
    assert discounted_returns(told([1, 2, 90, 91], 100), NO_VALUES, discount=0.5).advantage.tolist() == [
        0.125,
        0.25,
        0.5,
        1,
    ]


@given(st.lists(st.tuples(st.floats(-4, 4), st.floats(-1, 1)), min_size=1, max_size=40))
def test_the_recurrence_is_solved(steps: list[tuple[float, float]]) -> None:
    values, factors = (np.array(part) for part in zip(*steps, strict=True))
    factors[-1] = 0.0
    found, following = np.zeros(len(values)), 0.0
    for t in reversed(range(len(values))):
        following = values[t] + factors[t] * following
        found[t] = following
    np.testing.assert_allclose(recurrence(values, factors), found, atol=1e-9)


@pytest.mark.parametrize("lengths", [[1_000_000], [64] * 15_625])
def test_a_million_decisions_take_a_few_passes(lengths: list[int]) -> None:
    offsets = offsets_of(np.array(lengths))
    values = np.random.default_rng(0).normal(size=1_000_000)
    total, calls = count_calls(discounted_sums, values, offsets, 0.99)
    assert calls < 200
    assert abs(total[-1] - values[-1]) < 1e-12
