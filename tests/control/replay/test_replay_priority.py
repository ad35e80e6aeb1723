"""Prioritised replay: how often, how heavy, how a resume goes on; and the mistakes that others made."""

import numpy as np
import pytest
from replay_streams import piece, stream
from test_replay_ring import single

from hone.control.replay.priority import PrioritizedSampler, PriorityParams
from hone.control.replay.ring import RingBuffer
from hone.control.replay.steps import StepBuffer
from hone.core.errors import DataError
from hone.core.random import generator


class Grid:
    """In place of a generator: runs evenly through [0, 1)."""

    def __init__(self, points: int) -> None:
        self.points, self.at = points, 0

    def random(self, count: int) -> np.ndarray:
        self.at += 1
        return np.full(count, (self.at - 0.5) / self.points)


def filled(rows: int, errors: np.ndarray, **numbers: float) -> PrioritizedSampler:
    memory = PrioritizedSampler(RingBuffer(rows), PriorityParams(**{"beta_anneal_draws": 0, **numbers}))
    memory.add(single(np.arange(rows)))
    memory.sample(4000, generator(0, "fill"))
    memory.last_sample = type(memory.last_sample)(
        rows=np.arange(rows), importance_weight=np.ones(rows, np.float32), added=rows
    )
    memory.update_priorities(errors)
    return memory


def test_weights_undo_the_bias_by_enumeration() -> None:
    """E[w f] over every draw is the plain mean of f, for any f and any priorities."""
    errors = np.array([0.1, 3.0, 0.5, 0.01, 1.0, 7.0, 0.2])
    worth = np.array([5.0, -1.0, 2.0, 8.0, 0.0, 3.0, -4.0])
    memory, points = filled(7, errors, alpha=0.7), 4000
    grid, total = Grid(points), 0.0
    for _ in range(points):
        memory.sample(5, grid)  # type: ignore[arg-type]
        total += float((memory.last_sample.importance_weight * worth[memory.last_sample.rows]).mean())
    assert total / points == pytest.approx(worth.mean(), abs=0.02)
    masses = memory.tree.masses
    np.testing.assert_allclose(masses, (errors + 1e-6) ** 0.7, rtol=1e-12)
    chance = masses / masses.sum()
    exact = {
        int(row): float(weight)
        for row, weight in zip(memory.last_sample.rows, memory.last_sample.importance_weight, strict=True)
    }
    for row, weight in exact.items():
        assert weight == pytest.approx(1 / (7 * chance[row]), rel=1e-6)


def test_bug_weights_are_one_where_priorities_are_equal() -> None:
    """Not 1 / N, not N: others scaled the loss a hundredfold."""
    for rows in (3, 50):
        for exponent in (0.0, 0.6):
            memory = PrioritizedSampler(RingBuffer(64), PriorityParams(alpha=exponent))
            memory.add(single(np.arange(rows)))
            memory.sample(20, generator(0, "x"))
            np.testing.assert_allclose(memory.last_sample.importance_weight, 1.0, rtol=1e-6)


def test_bug_newcomers_get_the_largest_mass_and_the_exponent_once() -> None:
    memory = filled(8, np.full(8, 16.0), alpha=0.5, epsilon=0.0)
    assert memory.tree.masses.tolist() == [4.0] * 8
    assert memory.add(single(np.arange(2))).tolist() == [0, 1]
    assert memory.tree.masses.tolist() == [4.0] * 8  # not 2, which is 4 to the power of 0.5


def test_bug_draws_follow_the_power_of_the_error() -> None:
    errors = np.arange(1.0, 21.0)
    memory = filled(20, errors, alpha=0.6, epsilon=0.0)
    seen = np.zeros(20)
    for k in range(300):
        memory.sample(32, generator(k, "draw"))
        seen += np.bincount(memory.last_sample.rows, minlength=20)
    expected = 300 * 32 * errors**0.6 / (errors**0.6).sum()
    assert ((seen - expected) ** 2 / expected).sum() < 43.8  # the 99.9% point with 19 degrees of freedom


def test_snippet_heap_replay_takes_equal_priorities() -> None:
    """A published replay on a heap raised when two priorities were equal: it compared the transitions."""
    memory = filled(6, np.ones(6))
    assert len(memory.sample(6, generator(0, "x"))) == 6


def test_a_row_that_was_overwritten_keeps_the_mass_of_the_newcomer() -> None:
    memory = PrioritizedSampler(RingBuffer(4), PriorityParams(alpha=1.0, epsilon=0.0))
    memory.add(single(np.arange(4)))
    memory.sample(4, generator(0, "x"))
    assert sorted(memory.last_sample.rows.tolist()) == [0, 1, 2, 3]
    memory.add(single(np.arange(4, 6)))  # rows 0 and 1 are somebody else now
    memory.update_priorities(np.full(4, 0.25))
    assert memory.tree.masses.tolist() == [1.0, 1.0, 0.25, 0.25]
    memory.sample(4, generator(0, "y"))
    memory.add(single(np.arange(6, 16)))
    memory.update_priorities(np.full(4, 9.0))
    assert memory.tree.masses.tolist() == [1.0] * 4


def test_the_correction_grows_to_one() -> None:
    memory = PrioritizedSampler(RingBuffer(8), PriorityParams(beta=0.4, beta_anneal_draws=10))
    memory.add(single(np.arange(8)))
    grown = []
    for k in range(12):
        grown.append(memory.current_beta())
        memory.sample(2, generator(k, "x"))
    assert grown == pytest.approx([0.4 + 0.06 * min(k, 10) for k in range(12)])


def test_weights_by_the_largest_of_the_batch() -> None:
    memory = filled(6, np.array([1.0, 2, 3, 4, 5, 6]), normalise_by_max=True)
    memory.sample(32, generator(0, "x"))
    assert memory.last_sample.importance_weight.max() == 1.0
    assert memory.last_sample.importance_weight.min() < 0.5


@pytest.mark.parametrize("steps", [False, True])
def test_a_restored_memory_goes_on_as_before(steps: bool) -> None:
    def made() -> PrioritizedSampler:
        return PrioritizedSampler(
            StepBuffer(40, n_steps=3, discount=0.9) if steps else RingBuffer(40), PriorityParams(beta_anneal_draws=9)
        )

    rollouts, _ = stream(1, envs=3, rollouts=12, steps=5)
    memory, again = made(), made()
    for k, episodes in enumerate(rollouts[:8]):
        memory.add(episodes)
        memory.sample(16, generator(k, "x"))
        memory.update_priorities(np.linspace(0.1, 2.0 + k, 16))
    again.restore(memory.state())
    for k, episodes in enumerate(rollouts[8:]):
        for one in (memory, again):
            one.add(episodes)
            one.sample(16, generator(k, "y"))
            one.update_priorities(np.linspace(0.5, 1.0, 16))
        np.testing.assert_array_equal(memory.last_sample.rows, again.last_sample.rows)
        np.testing.assert_array_equal(memory.last_sample.importance_weight, again.last_sample.importance_weight)
        np.testing.assert_array_equal(memory.tree.masses, again.tree.masses)
        assert memory.tree.total == again.tree.total
        assert memory.largest == again.largest


def test_what_cannot_be_learnt_is_refused() -> None:
    memory = PrioritizedSampler(RingBuffer(4))
    with pytest.raises(DataError, match="empty"):
        memory.sample(1, generator(0, "x"))
    memory.add(single(np.arange(4)))
    memory.sample(2, generator(0, "x"))
    before = memory.tree.masses
    with pytest.raises(DataError, match=r"\[2, 1\] errors for 2 drawn rows"):
        memory.update_priorities(np.ones((2, 1)))
    with pytest.raises(DataError, match="error nan of drawn row"):
        memory.update_priorities(np.array([1.0, np.nan]))
    np.testing.assert_array_equal(memory.tree.masses, before)


def test_rows_without_their_frames_are_not_drawn() -> None:
    memory = PrioritizedSampler(StepBuffer(6, frames=3))
    memory.add(piece(0, 0, 20))
    for k in range(20):
        assert memory.sample(8, generator(k, "x")).observations[:, 0, 1].min() >= 14
