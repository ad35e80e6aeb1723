"""Rows side by side: columns of any type and shape are what was written into them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hone.control.replay.ring import RecordArray

KINDS = st.sampled_from(["f4", "f8", "i8", "i4", "u1", "?", "i2"])
SHAPES = st.sampled_from([(), (1,), (4,), (3, 2), (2, 3, 5), (0,)])


@given(columns=st.lists(st.tuples(KINDS, SHAPES), min_size=1, max_size=6), seed=st.integers(0, 100))
def test_columns_hold_what_was_written(columns: list[tuple[str, tuple[int, ...]]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    given_columns = {f"c{k}": rng.integers(0, 2, (9, *shape)).astype(kind) for k, (kind, shape) in enumerate(columns)}
    records = RecordArray(9, given_columns)
    assert list(records.columns) == list(given_columns)
    for name, column in given_columns.items():
        records.columns[name][:] = column
    rows = rng.integers(0, 9, 20)
    taken = records.take(rows)
    for name, column in given_columns.items():
        assert records.columns[name].dtype == column.dtype
        assert records.columns[name].flags.aligned
        np.testing.assert_array_equal(records.columns[name], column)
        np.testing.assert_array_equal(taken[name], column[rows])
        assert taken[name].flags.c_contiguous
