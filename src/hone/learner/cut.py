"""Division of a batch's rows among ranks: pure, deterministic, and balanced by the work of each row."""

import heapq
from typing import Final

import numpy as np

from hone.core.ragged import Ints
from hone.learner.micro_batches import split_by_token_budget

ATTENTION_TOKENS: Final = 4096
"""Length at which attention costs a row as much as the rest of a layer."""


def cut(sizes: Ints, ranks: int, budget_tokens: int) -> list[list[Ints]]:
    """Micro-batches of each rank as row numbers: every row stands in exactly one, and all ranks have equally many.

    `sizes` `[rows]` tokens. The longest rows are placed first, each on the rank with the least work so far (Graham,
    1969), where a row of s tokens costs s (1 + s / 4096). A micro-batch has at most `budget_tokens`, or one row. A rank
    with too few of them divides its own further; an empty one stands where it has no rows left to divide.
    """
    rows_of = _places(sizes, ranks)
    pieces_of = [[own[piece] for piece in split_by_token_budget(sizes[own], budget_tokens)] for own in rows_of]
    most = max(map(len, pieces_of))
    return [_divided(pieces, sizes, most) for pieces in pieces_of]


def _places(sizes: Ints, ranks: int) -> list[Ints]:
    """Rows of each rank, in the order of the batch."""
    if not len(sizes) or (sizes == sizes[0]).all():
        return [np.arange(rank, len(sizes), ranks, dtype=np.int64) for rank in range(ranks)]
    costs = (sizes * (ATTENTION_TOKENS + sizes)).tolist()
    loads = [(0, rank) for rank in range(ranks)]
    rank_of = np.zeros(len(sizes), np.int64)
    for row in np.argsort(-sizes, kind="stable").tolist():
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + costs[row], rank))
        rank_of[row] = rank
    return [np.flatnonzero(rank_of == rank) for rank in range(ranks)]


def _divided(pieces: list[Ints], sizes: Ints, count: int) -> list[Ints]:
    """`pieces` as `count` micro-batches: the largest one with several rows is halved as long as there are too few."""
    while len(pieces) < count:
        several = [number for number, piece in enumerate(pieces) if len(piece) > 1]
        if not several:
            return [*pieces, *[np.zeros(0, np.int64)] * (count - len(pieces))]
        largest = max(several, key=lambda number: int(sizes[pieces[number]].sum()))
        piece = pieces[largest]
        pieces = [*pieces[:largest], piece[0::2], piece[1::2], *pieces[largest + 1 :]]
    return pieces
