"""The sum tree: sums, and draws in proportion."""

import math

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.control.replay.priority import SumTree
from hone.core.errors import DataError
from hone.core.random import generator


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_snippet_segment_tree_root_is_the_sum() -> None:
    """A published tree answered 0 at its root."""
    tree = SumTree(5)
    tree.set_masses(np.arange(5), np.array([1.0, 2.0, 0.0, 4.0, 8.0]))
    assert tree.total == 15.0
    assert tree.find_rows(np.array([0.0, 0.999, 1.0, 2.999, 3.0, 6.999, 7.0, 14.999, 15.0])).tolist() == [
        0, 0, 1, 1, 3, 3, 4, 4, 4,
    ]  # fmt: skip


@examples(60)
@given(
    capacity=st.sampled_from([1, 3, 16, 17, 300, 5000, 70_000]),
    seed=st.integers(0, 10_000),
    batches=st.integers(1, 4),
)
def test_found_rows_hold_their_targets(capacity: int, seed: int, batches: int) -> None:
    rng = np.random.default_rng(seed)
    tree = SumTree(capacity)
    masses = np.zeros(capacity)
    for _ in range(batches):
        rows = rng.integers(0, capacity, 40)  # rows come twice: the last counts
        values = rng.exponential(size=40) ** 3 * (rng.random(40) < 0.8)
        for row, value in zip(rows, values, strict=True):
            masses[row] = value
        tree.set_masses(rows, values)
    if masses.sum() == 0:
        return
    targets = np.concatenate([[0.0], rng.random(50) * tree.total, [tree.total]])  # in no order
    np.testing.assert_array_equal(tree.masses, masses)
    assert tree.total == pytest.approx(math.fsum(masses))
    found, running = tree.find_rows(targets), masses.cumsum()
    assert (masses[found] > 0).all()
    slack = 1e-9 * running[-1]
    assert (running[found] - masses[found] <= targets + slack).all()
    assert (targets <= running[found] + slack).all()


def test_a_million_updates_leave_no_rounding_behind() -> None:
    """Sums made of differences drift; these are made anew."""
    tree, rng = SumTree(1000), np.random.default_rng(0)
    for _ in range(400):
        rows = rng.integers(0, 1000, 256)
        tree.set_masses(rows, rng.random(256) * 10.0 ** rng.integers(-9, 9, 256))
    tree.set_masses(np.arange(1000), np.zeros(1000))
    assert tree.total == 0.0
    tree.set_masses(ints(7), np.array([1e-9]))
    assert tree.total == 1e-9


def test_draws_are_in_proportion() -> None:
    masses = np.arange(40.0)
    tree = SumTree(40)
    tree.set_masses(np.arange(40), masses)
    draws, count = generator(3, "x"), 64
    rows = np.concatenate([tree.sample_rows(count, draws)[0] for _ in range(200)])
    expected = 200 * count * masses / masses.sum()
    seen = np.bincount(rows, minlength=40)
    assert seen[0] == 0
    assert ((seen[1:] - expected[1:]) ** 2 / expected[1:]).sum() < 73.4  # 99.9% point, 39 degrees; strata only lower it


def test_what_is_no_mass_is_refused() -> None:
    tree = SumTree(4)
    with pytest.raises(DataError, match="no mass to draw from"):
        tree.sample_rows(2, generator(0, "x"))
    tree.set_masses(ints(0), np.array([1.0]))
    with pytest.raises(DataError, match="mass nan of row 2"):
        tree.set_masses(ints(1, 2), np.array([1.0, np.nan]))
    with pytest.raises(DataError, match=r"mass -1\.0 of row 1"):
        tree.set_masses(ints(1, 2), np.array([-1.0, 1.0]))
    with pytest.raises(DataError, match="mass inf"):
        tree.set_masses(ints(1), np.array([np.inf]))
    with pytest.raises(DataError, match=r"rows 3 \.\. 4 of a tree of 4"):
        tree.set_masses(ints(3, 4), np.ones(2))
    with pytest.raises(DataError, match="must have at least 1"):
        SumTree(0)
    assert tree.masses.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_nothing_happens_without_rows() -> None:
    tree = SumTree(4)
    tree.set_masses(ints(), np.zeros(0))
    assert tree.total == 0.0
