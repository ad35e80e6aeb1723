"""Running statistics: those of all rows at once, however they came; returns that begin anew with each episode."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.episodes import Episodes, concatenate
from hone.core.errors import DataError
from hone.core.random import generator
from hone.credit.moments import LEAST, ReturnScale, RunningMeanStd


@examples(40)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.integers(0, 100))
def test_batches_merge_to_the_statistics_of_everything(sizes: list[int], seed: int) -> None:
    draws = generator(seed, "rows")
    batches = [1000.0 + draws.standard_normal((size, 3)) for size in sizes]
    moments = RunningMeanStd(3)
    for batch in batches:
        moments.update(batch)
    rows = np.concatenate(batches)
    if not len(rows):
        np.testing.assert_array_equal(moments.std, np.ones(3))
        return
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.std, np.sqrt(rows.var(axis=0) + LEAST), rtol=1e-9)


def pieces(lengths: list[int], numbers: list[int], ends: list[bool], seed: int) -> Episodes:
    count = sum(lengths)
    return plain_episodes(
        np.append(0, np.cumsum(lengths)).astype(np.int64),
        reward=generator(seed, "paid").standard_normal(count).astype(np.float32),
        group=np.array(numbers, np.int64),
        terminated=np.array(ends),
        final=np.zeros((len(lengths), 1)),
    )


def test_returns_go_on_over_rollouts_and_begin_anew_with_episodes() -> None:
    """Against a loop over single steps."""
    first = pieces([2, 3, 1], [0, 2, 1], [True, False, False], 0)
    second = pieces([2, 4, 2], [2, 3, 1], [True, False, True], 1)
    scale = ReturnScale(0.9)
    for batch in (first, second):
        scale.update(batch)
    found: list[float] = []
    running: dict[int, float] = {}
    for batch in (first, second):
        for episode in range(len(batch)):
            for place in range(batch.offsets[episode], batch.offsets[episode + 1]):
                number = int(batch.group[episode])
                running[number] = 0.9 * running.get(number, 0.0) + float(batch.reward[place])
                found.append(running[number])
    assert scale.scale == pytest.approx(np.sqrt(np.var(found) + LEAST), rel=1e-9)
    assert set(scale.open_returns) == {3}
    assert scale.open_returns[3] == pytest.approx(running[3])


def test_a_cut_changes_nothing() -> None:
    whole = pieces([6], [0], [True], 3)
    cut = pieces([2, 4], [0, 0], [False, True], 3)
    one, two = ReturnScale(0.95), ReturnScale(0.95)
    one.update(whole)
    for number in range(2):
        two.update(cut.take(np.array([number])))
    assert one.scale == pytest.approx(two.scale, rel=1e-12)


def test_saved_statistics_are_the_same() -> None:
    scale, other = ReturnScale(0.9), ReturnScale(0.9)
    scale.update(pieces([2, 3], [0, 1], [False, False], 4))
    other.restore(scale.state())
    more = pieces([2, 3], [0, 1], [True, False], 5)
    scale.update(concatenate([more]))
    other.update(more)
    assert scale.scale == other.scale
    assert scale.open_returns == other.open_returns
    with pytest.raises(DataError, match="of 1 numbers, these of 4"):
        RunningMeanStd(4).restore(scale.moments.state())
