"""Splitting of rows under a token budget."""

import numpy as np

from hone.core.ragged import Ints


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
