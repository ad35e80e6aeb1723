"""Ragged arrays: a flat column and the offsets of its rows. Index arithmetic only, vectorised."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def offsets_of(lengths: NDArray[np.integer]) -> Ints:
    """Lengths `[R]` -> offsets `[R+1]`: row r is `flatten[offsets[r]:offsets[r+1]]`."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ranges(starts: NDArray[np.integer], lengths: NDArray[np.integer]) -> Ints:
    """Concatenation of `arange(start, start + length)` for each pair -> `[sum(lengths)]`.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)


def owner_of(offsets: Ints) -> Ints:
    """Row number of each element -> `[offsets[-1]]`."""
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))


def row_sums(values: NDArray[np.floating], offsets: Ints) -> NDArray[np.float64]:
    """Sum of each row -> `[R]`, float64; an empty row sums to 0 (np.add.reduceat would repeat its neighbour)."""
    return np.bincount(owner_of(offsets), weights=values, minlength=len(offsets) - 1).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedArray:
    """R rows of integers: row r is `values[offsets[r]:offsets[r+1]]`."""

    values: NDArray[np.int32]
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: NDArray[np.integer]) -> "RaggedArray":
        """Rows `[K]`, in that order (repeats allowed)."""
        lengths = np.diff(self.offsets)[rows]
        return RaggedArray(values=self.values[ranges(self.offsets[:-1][rows], lengths)], offsets=offsets_of(lengths))


def empty_rows(count: int) -> RaggedArray:
    """`count` rows without elements."""
    return RaggedArray(values=np.zeros(0, np.int32), offsets=np.zeros(count + 1, np.int64))


def concatenate_rows(pieces: Sequence[RaggedArray]) -> RaggedArray:
    """All rows of `pieces`, in order."""
    return RaggedArray(
        values=np.concatenate([piece.values for piece in pieces]),
        offsets=offsets_of(np.concatenate([np.diff(piece.offsets) for piece in pieces])),
    )
