"""Columns whose rows lie side by side in memory, so that a row drawn at random is fetched once, not once per column.

Belongs here: that layout. Each column is a view of the same bytes; of a million rows, 256 drawn ones cost half.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.ragged import Ints

Array: TypeAlias = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """Where a column stands in a row."""

    shape: tuple[int, ...]
    """Of one value."""
    dtype: np.dtype[Any]
    byte_offset: int
    """Byte."""
    strides: tuple[int, ...]
    """Bytes from row to row, and within a value."""

    def view(self, rows: NDArray[np.uint8]) -> Array:
        """This column of the rows `[n, width]`: a view."""
        shape = (len(rows), *self.shape)
        return np.ndarray(shape, self.dtype, buffer=rows.data, offset=self.byte_offset, strides=self.strides)


class RecordArray:
    """`capacity` rows with a column for each of `like` (of its type, and its shape after the first axis)."""

    def __init__(self, capacity: int, like: Mapping[str, Array]) -> None:
        places: dict[str, tuple[tuple[int, ...], np.dtype[Any], int]] = {}
        width = 0
        for name in sorted(like, key=lambda name: -like[name].dtype.itemsize):  # the widest first: all are aligned
            column = like[name]
            places[name] = (column.shape[1:], column.dtype, width)
            width += prod(column.shape[1:]) * column.dtype.itemsize
        width = max(8, -(-width // 8) * 8)
        self._rows = np.zeros((capacity, width), dtype=np.uint8)
        self._places = {
            name: ColumnLayout(
                shape=shape, dtype=kind, byte_offset=first, strides=(width, *_strides(shape, kind.itemsize))
            )
            for name, (shape, kind, first) in ((name, places[name]) for name in like)
        }
        self.columns: dict[str, Array] = {name: place.view(self._rows) for name, place in self._places.items()}
        """`[capacity, ...]` views, to be read and written."""

    def take(self, rows: Ints) -> dict[str, Array]:
        """Every column at these rows `[n, ...]`, copied."""
        found = self._rows.take(rows, axis=0)
        return {name: place.view(found).copy() for name, place in self._places.items()}


def _strides(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(size * prod(shape[axis + 1 :]) for axis in range(len(shape)))
