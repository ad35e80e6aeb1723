"""Micro-batches under a token budget: every row once, and no micro-batch above the budget."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hone.learner.share import split_by_token_budget


def test_pieces_are_filled_to_the_budget() -> None:
    pieces = split_by_token_budget(np.array([3, 1, 2, 1, 2]), 4)
    assert [piece.tolist() for piece in pieces] == [[1, 3, 2], [4], [0]], "1 + 1 + 2, 2, 3: similar sizes together"


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 50))
def test_pieces_hold_every_row_once_and_keep_to_the_budget(sizes: list[int], budget: int) -> None:
    pieces = split_by_token_budget(np.array(sizes, dtype=np.int64), budget)
    assert sorted(row for piece in pieces for row in piece.tolist()) == list(range(len(sizes)))
    for piece in pieces:
        assert len(piece) > 0
        filled = sum(sizes[row] for row in piece)
        assert filled <= budget or len([row for row in piece if sizes[row]]) == 1
    if sum(sizes) <= budget and sizes:
        assert [piece.tolist() for piece in pieces] == [list(range(len(sizes)))]
