"""Bootstrapped samples: who sees what how often, whatever the order; and running moments against numpy's."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.control.replay.bootstrap import MOST, BootstrapBuffer, ColumnStatistics
from hone.control.replay.ring import RingBuffer
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.random import generator


def steps(first: int, count: int) -> Episodes:
    """Transitions whose observation is their number."""
    number = np.arange(first, first + count, dtype=np.float32)
    return plain_episodes(
        np.arange(count + 1),
        seen=number[:, None],
        chosen=np.ones((count, 1), np.float32),
        logp=np.full(count, np.nan, np.float32),
        reward=number / 2,
        group=np.zeros(count, np.int64),
        terminated=np.zeros(count, bool),
        final=number[:, None] + 3,
    )


def filled(count: int, *, capacity: int = 10_000, members: int = 3, piece: int = 100) -> BootstrapBuffer:
    memory = BootstrapBuffer(RingBuffer(capacity), members=members, seed=1)
    for first in range(0, count, piece):
        memory.add(steps(first, min(piece, count - first)))
    return memory


def test_weights_are_poisson_and_do_not_depend_on_the_order_of_asking() -> None:
    memory, other = filled(0), filled(0)
    everything = memory.weights(np.arange(20_000))
    late = other.weights(np.array([15_000, 3]))
    np.testing.assert_array_equal(late, everything[[15_000, 3]])
    assert everything.max() == MOST
    assert abs(everything.mean() - 1.0) < 0.02 and abs((everything == 0).mean() - np.exp(-1)) < 0.01
    assert abs(np.corrcoef(everything.T)[0, 1]) < 0.03  # members differ


def test_members_draw_by_their_own_weights() -> None:
    memory = filled(50)
    rows = memory.sample(3 * 60_000, generator(0, "x")).observations[:, 0].astype(int).reshape(3, -1)
    weights = memory.weights(np.arange(50)).astype(float)
    for member, drawn in enumerate(rows):
        wanted = weights[:, member] / weights[:, member].sum()
        found = np.bincount(drawn, minlength=50) / len(drawn)
        assert (found[wanted == 0] == 0).all()
        np.testing.assert_allclose(found, wanted, atol=0.004)


def test_a_full_ring_keeps_each_transitions_own_weight() -> None:
    memory = filled(170, capacity=64, piece=17)
    assert len(memory) == 64
    drawn = memory.sample(3 * 20_000, generator(0, "x")).observations[:, 0].astype(int).reshape(3, -1)
    weights = memory.weights(np.arange(170))
    for member, rows in enumerate(drawn):
        assert rows.min() >= 106 and set(rows) == set(np.flatnonzero(weights[106:, member]) + 106)


def test_a_member_without_anything_sees_everything() -> None:
    memory = BootstrapBuffer(RingBuffer(10), members=1, seed=0)
    empty = np.flatnonzero(memory.weights(np.arange(500))[:, 0] == 0)[0]
    memory.ring.added = int(empty)  # as if that many had come and gone
    memory.ring.capacity = 1
    memory.add(steps(5, 1))
    assert memory.sample(4, generator(0, "x")).observations[:, 0].tolist() == [5, 5, 5, 5]


def test_shares_must_be_equal() -> None:
    with pytest.raises(ConfigError, match="10 transitions cannot be shared by 3 members"):
        filled(20).sample(10, generator(0, "x"))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 99))
@examples(40)
def test_moments_against_all_at_once(sizes: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).normal(1e3, 2.0, (sum(sizes), 2)) * [1.0, 1e-3]
    moments = ColumnStatistics()
    for piece in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.add(piece)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-12)
    std = rows.std(axis=0)
    np.testing.assert_allclose(moments.std, np.where(std > 1e-6, std, 1.0), rtol=1e-6)


def test_moments_of_what_was_added() -> None:
    memory = filled(40, piece=7)
    np.testing.assert_allclose(memory.inputs.mean, [19.5, 1.0])
    np.testing.assert_allclose(memory.inputs.std, [np.arange(40).std(), 1.0])  # an action that never varies: 1
    np.testing.assert_allclose(memory.targets.mean, [3.0, 9.75])


def test_a_restored_memory_goes_on_alike() -> None:
    memory, other = filled(30), BootstrapBuffer(RingBuffer(10_000), members=3, seed=1)
    other.restore(memory.state())
    for one in (memory, other):
        one.add(steps(30, 5))
    ours, theirs = (one.sample(30, generator(0, "x")).observations for one in (memory, other))
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(memory.targets.std, other.targets.std)
