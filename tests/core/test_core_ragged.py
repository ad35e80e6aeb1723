"""Ragged arrays against plain Python loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hone.core.ragged import offsets_of, owner_of, ranges, row_sums

lengths_lists = st.lists(st.integers(0, 5), max_size=8)


@given(lengths_lists)
def test_offsets_and_owners_are_those_of_a_loop(lengths: list[int]) -> None:
    offsets = offsets_of(np.array(lengths, dtype=np.int64))
    expected, total = [0], 0
    for length in lengths:
        total += length
        expected.append(total)
    assert offsets.tolist() == expected
    assert offsets.dtype == np.int64
    assert owner_of(offsets).tolist() == [row for row, length in enumerate(lengths) for _ in range(length)]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), max_size=8))
def test_ranges_are_those_of_a_loop(pairs: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    lengths = np.array([length for _, length in pairs], dtype=np.int64)
    assert ranges(starts, lengths).tolist() == [start + step for start, length in pairs for step in range(length)]


@given(st.lists(st.lists(st.floats(-10, 10), max_size=4), max_size=6))
def test_sums_are_those_of_each_row_and_empty_rows_are_zero(rows: list[list[float]]) -> None:
    offsets = offsets_of(np.array([len(row) for row in rows], dtype=np.int64))
    flat = np.array([value for row in rows for value in row], dtype=np.float64)
    np.testing.assert_allclose(row_sums(flat, offsets), [sum(row) for row in rows], atol=1e-12)


def test_an_empty_row_does_not_repeat_its_neighbour() -> None:
    assert row_sums(np.array([1.0, 2.0, 4.0]), np.array([0, 2, 2, 3])).tolist() == [3.0, 0.0, 4.0]
