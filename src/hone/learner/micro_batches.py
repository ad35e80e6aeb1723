"""Splitting of rows under a token budget."""

from typing import Final

import numpy as np

from hone.core.ragged import Ints

UNBOUNDED: Final = 1 << 62
"""Tokens of a micro-batch, where it is as large as the minibatch."""


def split_by_token_budget(sizes: Ints, budget_tokens: int) -> list[Ints]:
    """Split row numbers into pieces of at most `budget_tokens`, grouped by size; a row above the budget is a piece.

    `sizes` `[rows]` tokens. Everything fits: one piece in the given order. No rows: no pieces.
    """
    if not len(sizes):
        return []
    if int(sizes.sum()) <= budget_tokens:
        return [np.arange(len(sizes), dtype=np.int64)]
    order = np.argsort(sizes, kind="stable")
    pieces: list[Ints] = []
    start, filled = 0, 0
    for position, size in enumerate(sizes[order].tolist()):
        if filled and filled + size > budget_tokens:
            pieces.append(order[start:position])
            start, filled = position, 0
        filled += size
    return [*pieces, order[start:]]
