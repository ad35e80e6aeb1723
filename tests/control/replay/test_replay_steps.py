"""Linked steps: n-step windows and frames against a slow version, and the boundaries that others got wrong."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from replay_streams import piece, stream

from hone.control.replay.steps import StepBuffer
from hone.core.credit import NO_VALUES
from hone.core.episodes import concatenate
from hone.core.errors import DataError
from hone.core.random import generator


@examples(60)
@given(
    seed=st.integers(0, 10_000),
    envs=st.integers(1, 4),
    steps=st.integers(1, 6),
    capacity=st.sampled_from([7, 20, 500]),
    length=st.integers(1, 5),
    frames=st.integers(1, 4),
)
def test_windows_against_the_episodes_themselves(
    seed: int, envs: int, steps: int, capacity: int, length: int, frames: int
) -> None:
    memory = StepBuffer(capacity, n_steps=length, discount=0.5, frames=frames)
    rollouts, told = stream(seed, envs=envs, rollouts=12, steps=steps)
    for episodes in rollouts:
        memory.add(episodes)
    everything = concatenate(rollouts)
    kept = min(capacity, everything.decisions)
    assert len(memory) == kept
    rows = np.arange(everything.decisions - kept, everything.decisions) % capacity
    if not memory.is_complete(rows).all():
        rows = rows[memory.is_complete(rows)]
    taken = memory.take(rows)
    assert taken.final is not None
    identity = taken.observations[:, -1] if frames > 1 else taken.observations
    oldest = everything.observations[-kept:]
    if frames == 1:
        np.testing.assert_array_equal(identity, oldest)
    for k, (episode, t) in enumerate(identity.astype(int)):
        last, kind = told[episode]
        span = min(length, last - t)
        assert taken.reward[k] == pytest.approx(sum(0.5**i * (100 * episode + t + i) for i in range(span)))
        ended = kind == "terminated" and t + span == last
        assert taken.terminated[k] == ended
        assert taken.truncated[k] == (kind == "truncated" and t + span == last)
        assert memory.bootstrap_discount[k] == (0 if ended else 0.5**span)
        after = taken.final[k] if frames > 1 else taken.final[k][None]
        expected = [max(0, t + span - back) for back in reversed(range(frames))]
        assert after[:, 1].tolist() == expected
        assert (after[:, 0] == episode).all()
        if frames > 1:
            assert taken.observations[k][:, 1].tolist() == [max(0, t - back) for back in reversed(range(frames))]
            assert (taken.observations[k][:, 0] == episode).all()
        assert taken.chosen[k] == (t + episode) % 3


def test_bug_the_observation_after_a_truncation_is_not_the_reset() -> None:
    """Memories that keep an observation once took the next row's for what was seen next."""
    memory = StepBuffer(10)
    memory.add(concatenate([piece(0, 0, 3, truncated=True), piece(1, 0, 2)]))
    taken = memory.take(np.array([2, 4]))
    assert taken.final is not None
    assert taken.final.tolist() == [[0, 3], [1, 2]]
    assert taken.truncated.tolist() == [True, False]
    assert memory.bootstrap_discount.tolist() == [1.0, 1.0]


def test_bug_a_window_does_not_cross_a_truncation() -> None:
    """Elsewhere the 3-step return before a truncation was 201: 1, and two rewards of 100 of the next episode."""
    memory = StepBuffer(10, n_steps=3)
    first, second = piece(0, 1, 1, truncated=True), piece(1, 0, 5)
    memory.add(first)
    memory.add(second)
    taken = memory.take(np.array([0]))
    assert taken.reward.tolist() == [1.0]
    assert taken.final is not None
    assert taken.final.tolist() == [[0, 2]]


def test_bug_the_last_states_of_an_episode_begin_windows_too() -> None:
    """Elsewhere the last n - 1 states before a termination were never stored."""
    memory = StepBuffer(10, n_steps=3)
    memory.add(piece(0, 0, 4, terminated=True))
    taken = memory.take(np.arange(4))
    assert taken.reward.tolist() == [3.0, 6.0, 5.0, 3.0]
    assert taken.terminated.tolist() == [False, True, True, True]
    assert taken.observations[:, 1].tolist() == [0, 1, 2, 3]


def test_bug_terminated_wins_over_truncated() -> None:
    memory = StepBuffer(4)
    memory.add(piece(0, 0, 1, terminated=True, truncated=True))
    taken = memory.take(np.array([0]))
    assert (taken.terminated.tolist(), taken.truncated.tolist()) == ([True], [False])
    assert memory.bootstrap_discount.tolist() == [0.0]


def test_a_window_grows_when_its_episode_goes_on() -> None:
    memory = StepBuffer(10, n_steps=3, discount=0.5)
    memory.add(piece(0, 0, 2))
    assert memory.take(np.array([1])).reward.tolist() == [1.0]
    assert memory.bootstrap_discount.tolist() == [0.5]
    memory.add(piece(0, 2, 2))
    assert memory.take(np.array([1])).reward.tolist() == [1.0 + 1.0 + 0.75]
    assert memory.bootstrap_discount.tolist() == [0.125]


def test_pieces_that_do_not_fit_together_are_not_joined() -> None:
    """Two episodes may share a group (the same start); the second is no continuation of the first."""
    memory = StepBuffer(10, n_steps=4)
    memory.add(piece(0, 0, 2))
    memory.add(piece(0, 0, 3))
    taken = memory.take(np.array([0, 1, 2]))
    assert taken.reward.tolist() == [1.0, 1.0, 3.0]
    assert taken.final is not None
    assert taken.final[:, 1].tolist() == [2, 2, 3]


def test_an_observation_is_kept_once() -> None:
    memory = StepBuffer(1000)
    for start in range(0, 900, 3):
        memory.add(piece(0, start, 3))
    held = memory.state()
    assert isinstance(held["finals"], np.ndarray)
    assert len(held["finals"]) == 1
    assert len(memory._finals) <= 64  # slots are used again


def test_sampling_is_uniform_over_what_is_whole() -> None:
    memory = StepBuffer(10, frames=3)
    memory.add(piece(0, 0, 15))  # steps 5 .. 14 are left; 5 and 6 lost their frames
    seen = memory.sample(8000, generator(0, "x")).observations[:, -1, 1]
    counts = np.bincount(seen.astype(int), minlength=15)
    assert counts[:7].sum() == 0
    assert ((counts[7:] - 1000) ** 2 / 1000).sum() < 24.3  # the 99.9% point with 7 degrees of freedom


def test_the_credit_of_a_window() -> None:
    memory = StepBuffer(10, n_steps=3, discount=0.5)
    memory.add(piece(0, 0, 4, truncated=True))
    taken = memory.take(np.array([0, 3]))
    credits = memory.credit(taken, NO_VALUES)
    assert credits.advantage.tolist() == [0 + 0.5 + 0.5, 3.0]
    assert credits.discount is not None
    assert credits.discount.tolist() == [0.125, 0.5]
    with pytest.raises(DataError, match="1 transitions to credit, but 2 were taken last"):
        memory.credit(taken.take(np.array([0])), NO_VALUES)


@examples(20)
@given(seed=st.integers(0, 1000), frames=st.integers(1, 3))
def test_a_restored_memory_goes_on_as_before(seed: int, frames: int) -> None:
    rollouts, _ = stream(seed, envs=3, rollouts=14, steps=3)
    memory, again = (StepBuffer(25, n_steps=3, discount=0.9, frames=frames) for _ in range(2))
    for episodes in rollouts[:9]:
        memory.add(episodes)
    again.restore(memory.state())
    for k, episodes in enumerate(rollouts[9:]):
        here, there = (one.add(episodes) is not None and one.sample(30, generator(k, "x")) for one in (memory, again))
        for name in ("seen", "reward", "terminated", "truncated", "final", "group", "chosen"):
            np.testing.assert_array_equal(object.__getattribute__(here, name), object.__getattribute__(there, name))
    with pytest.raises(DataError, match="holds 25 steps, this one 5"):
        StepBuffer(5).restore(memory.state())


def test_what_does_not_fit_is_refused() -> None:
    memory = StepBuffer(4)
    with pytest.raises(DataError, match="empty"):
        memory.sample(1, generator(0, "x"))
    memory.add(piece(0, 0, 2))
    wrong = single_column(piece(1, 0, 1))
    with pytest.raises(DataError, match=r"seen is float32\[1\], the buffer holds float32\[2\]"):
        memory.add(wrong)


def single_column(episodes):
    from dataclasses import replace

    return replace(episodes, seen=episodes.observations[:, :1], final=episodes.final[:, :1])
