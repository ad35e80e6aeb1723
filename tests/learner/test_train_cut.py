"""Rows cut over ranks: every row once, equal numbers of micro-batches, budgets, balance, and a cut by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hone.core.reduction import ONE_PROCESS
from hone.learner.share import ATTENTION_TOKENS, BatchShare, _cut, evaluated_pieces, sharing

sizes_of = st.lists(st.integers(1, 300), max_size=60).map(lambda rows: np.array(rows, dtype=np.int64))


@given(sizes=sizes_of, ranks=st.integers(1, 8), budget=st.integers(1, 900))
def test_every_row_stands_once_and_all_ranks_make_equally_many_passes(sizes, ranks, budget):
    parts = _cut(sizes, ranks, budget)
    assert len(parts) == ranks
    assert len({len(pieces) for pieces in parts}) == 1
    rows = np.concatenate([piece for pieces in parts for piece in pieces] or [np.zeros(0, np.int64)])
    assert sorted(rows.tolist()) == list(range(len(sizes)))
    for piece in (piece for pieces in parts for piece in pieces):
        assert len(piece) <= 1 or sizes[piece].sum() <= budget
    again = _cut(sizes, ranks, budget)
    assert all(np.array_equal(a, b) for x, y in zip(parts, again, strict=True) for a, b in zip(x, y, strict=True))


@given(sizes=sizes_of.filter(len), ranks=st.integers(1, 8))
def test_no_rank_has_more_work_than_the_mean_and_one_row(sizes, ranks):
    costs = sizes * (ATTENTION_TOKENS + sizes)
    work = [sum(int(costs[piece].sum()) for piece in pieces) for pieces in _cut(sizes, ranks, 500)]
    assert max(work) <= costs.sum() / ranks + costs.max()


def test_a_cut_by_hand():
    """Longest first to the rank with least: 9 | 8, then 5 beside 8 and 4 beside 9; 2 and 1 by the squares."""
    found = _cut(np.array([4, 9, 1, 8, 5, 2]), 2, 9)
    assert [[piece.tolist() for piece in pieces] for pieces in found] == [[[2, 0], [1]], [[5, 4], [3]]]


def test_one_row_for_three_ranks_leaves_two_empty_passes():
    assert [[piece.tolist() for piece in pieces] for pieces in _cut(np.array([7]), 3, 100)] == [[[0]], [[]], [[]]]


@given(sizes=sizes_of, virtual=st.sampled_from([1, 2, 4, 8]), budget=st.integers(1, 900))
def test_shares_of_virtual_ranks_are_the_same_on_any_number_of_ranks(sizes, virtual, budget):
    """Round by round, R ranks do the passes of R neighbouring shares."""
    expected = _cut(sizes, virtual, budget)
    for ranks in (one for one in (1, 2, 4, 8) if virtual % one == 0):
        parts = share_of(0, ranks, virtual).assigned(sizes, budget)
        turns = virtual // ranks
        for rank, pieces in enumerate(parts):
            for number, piece in enumerate(pieces):
                own = expected[number % turns * ranks + rank][number // turns]
                assert np.array_equal(piece, own)


@given(sizes=sizes_of, budget=st.integers(1, 900))
def test_answers_of_all_ranks_are_those_of_one(sizes, budget):
    def ask(rows):
        return [sizes[rows] * 2.0]

    def collect():
        found = np.zeros(len(sizes))
        for where, (answer,) in evaluated_pieces(sizes, budget, ask, lambda rows: rows):
            found[where] = answer
        return found

    with sharing(share_of(0, 1, 1)):
        assert np.array_equal(collect(), sizes * 2.0)
    assert np.array_equal(collect(), sizes * 2.0)


def share_of(rank, ranks, shares):
    del rank
    return BatchShare(reduction=ONE_PROCESS, ranks=ranks, shares=shares, add=lambda tensor: None)
