"""Row-wise storage of columns: a row that is drawn at random is fetched from memory once, not once per column.

Each column is a view of the same bytes. Drawing 256 of a million rows takes half the time of separate columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.ragged import Ints

Array: TypeAlias = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnLayout:
    """Place of a column in a row."""

    shape: tuple[int, ...]
    """Shape of one value."""
    dtype: np.dtype[Any]
    byte_offset: int
    """First byte of the column in a row."""
    strides: tuple[int, ...]
    """Bytes from row to row, and within a value."""

    def view(self, rows: NDArray[np.uint8]) -> Array:
        """This column of the rows `[n, width]`: a view."""
        shape = (len(rows), *self.shape)
        return np.ndarray(shape, self.dtype, buffer=rows.data, offset=self.byte_offset, strides=self.strides)


def require_same_columns(incoming: Mapping[str, Array], held: Mapping[str, Array]) -> None:
    """Raises DataError where `incoming` has other columns than a buffer holds, or columns of another shape or type."""
    if incoming.keys() != held.keys():
        raise DataError(
            f"the episodes have the columns {', '.join(incoming)}, the buffer holds {', '.join(held)}: "
            "a column must be in all of them or in none"
        )
    for name, column in incoming.items():
        other = held[name]
        if (column.ndim > 1 and other.shape[1:] != column.shape[1:]) or (
            column.ndim != other.ndim or other.dtype != column.dtype
        ):
            raise DataError(
                f"{name} is {column.dtype}{list(column.shape[1:])}, "
                f"the buffer holds {other.dtype}{list(other.shape[1:])}"
            )


class RecordArray:
    """Storage of `capacity` rows, with a column for each of `like` (its type, and its shape after the first axis)."""

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
            name: _ColumnLayout(
                shape=shape, dtype=kind, byte_offset=first, strides=(width, *_strides(shape, kind.itemsize))
            )
            for name, (shape, kind, first) in ((name, places[name]) for name in like)
        }
        self.columns: dict[str, Array] = {name: place.view(self._rows) for name, place in self._places.items()}
        """`[capacity, ...]` views, to be read and written."""

    def take(self, rows: Ints) -> dict[str, Array]:
        """Every column at these rows `[n, ...]`, copied."""
        drawn = self._rows.take(rows, axis=0)
        return {name: place.view(drawn).copy() for name, place in self._places.items()}


def _strides(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(size * prod(shape[axis + 1 :]) for axis in range(len(shape)))
