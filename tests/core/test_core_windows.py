"""Windows of a stream: against numpy on the whole history, and the broken snippets that others published."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.core.windows import FenwickTree, SlidingMax, SlidingWindow

NUMBERS = st.lists(st.integers(-50, 50), max_size=60)


def test_snippet_sliding_window_maximum_is_not_empty() -> None:
    """A published version returned []."""
    largest = SlidingMax(3)
    assert [largest.add(float(value)) for value in [1, 3, -1, -3, 5, 3, 6, 7]] == [1, 3, 3, 3, 5, 5, 6, 7]


def test_a_window_by_hand() -> None:
    window = SlidingWindow(3)
    assert len(window) == 0
    assert np.isnan(window.mean())
    assert window.maximum == -np.inf
    window.add([1.0, 5.0])
    assert (window.full, window.mean(), window.maximum) == (False, 3.0, 5.0)
    window.add([0.0, 4.0])  # 1 has left
    assert window.values().tolist() == [5, 0, 4]
    assert (window.full, window.mean(), window.mean(2), window.mean(1, skip=1)) == (True, 3.0, 2.0, 0.0)
    window.add([2.0])
    assert window.maximum == 4.0


@given(size=st.integers(1, 9), values=NUMBERS, last=st.integers(1, 9), skip=st.integers(0, 9))
def test_a_window_is_the_end_of_the_history(size: int, values: list[int], last: int, skip: int) -> None:
    window = SlidingWindow(size)
    for number in range(len(values)):
        window.add([float(values[number])])
        kept = np.array(values[: number + 1][-size:], dtype=float)
        assert window.values().tolist() == kept.tolist()
        assert window.maximum == kept.max()
        rest = kept[: max(0, len(kept) - skip)][-last:]
        found = window.mean(last, skip=skip)
        assert np.isnan(found) if len(rest) == 0 else found == pytest.approx(rest.mean(), abs=1e-12)


@given(size=st.integers(1, 20), changes=st.lists(st.tuples(st.integers(0, 19), st.integers(-9, 9)), max_size=40))
def test_sums_that_change_are_the_sums(size: int, changes: list[tuple[int, int]]) -> None:
    tree, plain = FenwickTree(size), np.zeros(size)
    for place, value in changes:
        tree.set_value(place % size, float(value))
        plain[place % size] = value
    for refreshed in (False, True):
        if refreshed:
            tree.rebuild()
        assert [tree.prefix_sum(place) for place in range(size + 1)] == [
            plain[:place].sum() for place in range(size + 1)
        ]
    assert tree.range_sum(size // 2, size) == plain[size // 2 :].sum()


def test_rounding_does_not_add_up() -> None:
    """Numbers of very different size, through a window of 10: still the mean of the last ten."""
    window, draws = SlidingWindow(10), np.random.default_rng(0)
    values = draws.standard_normal(20_000) * 10.0 ** draws.integers(-8, 9, 20_000)
    window.add(values.tolist())
    assert window.mean() == pytest.approx(values[-10:].mean(), rel=1e-12)


@given(size=st.integers(1, 6), before=NUMBERS, after=NUMBERS)
def test_a_restored_window_goes_on(size: int, before: list[int], after: list[int]) -> None:
    whole, first, second = SlidingWindow(size), SlidingWindow(size), SlidingWindow(size)
    whole.add(map(float, before + after))
    first.add(map(float, before))
    second.restore(first.state())
    second.add(map(float, after))
    assert second.values().tolist() == whole.values().tolist()
    assert (second.added, second.full, second.maximum) == (whole.added, whole.full, whole.maximum)
    assert second.mean() == pytest.approx(whole.mean(), nan_ok=True)


def test_a_window_refuses_what_does_not_fit() -> None:
    with pytest.raises(DataError, match="at least 1"):
        SlidingWindow(0)
    with pytest.raises(DataError, match="holds 3 numbers, this one 4"):
        SlidingWindow(4).restore(SlidingWindow(3).state())
