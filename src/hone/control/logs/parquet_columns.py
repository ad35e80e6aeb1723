"""Columns of a parquet file of decisions, read from any list type and checked row by row.

Belongs here: arrays from columns, and the cut of rows into episodes. The file as a whole is `parquet.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.ragged import Ints

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogColumns:
    """Columns of one file."""

    table: pa.Table
    path: Path

    def has(self, name: str) -> bool:
        """True if the file has the column."""
        return name in self.table.column_names

    def values(self, name: str, dtype: Any, shape: Sequence[int] = (), rows: Ints | None = None) -> NDArray[Any]:  # noqa: ANN401
        """Column `[N, *shape]`, or its `rows`: numbers, or lists of them of any kind and depth, flat or nested.

        Raises DataError for a row without a value, or with another count of numbers or another type.
        """
        column = self.table[name] if rows is None else self.table[name].take(pa.array(rows))
        places = np.arange(len(column)) if rows is None else rows
        flat, owner = _flattened(column.combine_chunks())
        if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)):
            raise DataError(
                f"{self.path}: column {name} is of type {self.table[name].type}; it must hold numbers or lists of "
                "numbers (see write_log of hone.control.logs.parquet)"
            )
        size = int(np.prod(shape, dtype=np.int64))
        counts = np.bincount(owner, minlength=len(column))
        wrong = np.flatnonzero(counts != size)
        if len(wrong):
            raise DataError(
                f"{self.path}: {len(wrong)} rows with a wrong count of numbers in {name}; the first is row "
                f"{places[wrong[0]]}: it has {counts[wrong[0]]}, expected {size} ({list(shape)})"
            )
        if flat.null_count:
            row = int(places[owner[int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0])]])
            raise DataError(f"{self.path}: row {row} has no {name}")
        return self._as_type(flat.to_numpy(zero_copy_only=False), np.dtype(dtype), name, places[owner]).reshape(
            -1, *shape
        )

    def _as_type(self, values: Array, dtype: np.dtype[Any], name: str, rows: Ints) -> NDArray[Any]:
        """The values in `dtype`. Raises DataError where a whole number is expected and another is given."""
        if dtype.kind in "iu" and values.dtype.kind == "f":
            wrong = np.flatnonzero(values != np.rint(values))
            if len(wrong):
                raise DataError(
                    f"{self.path}: row {rows[wrong[0]]}: {name} is {values[wrong[0]]}; it must be a whole number"
                )
        with np.errstate(over="ignore"):
            return values.astype(dtype)

    def nulls(self, name: str, rows: Ints) -> NDArray[np.bool_]:
        """Flags of `rows` without a value."""
        return self.table[name].take(pa.array(rows)).is_null().to_numpy()

    def last_rows(self) -> Ints:
        """The last row of each episode: rows of one `episode` stand together.

        Raises DataError for an episode whose rows do not.
        """
        column = self.table["episode"].combine_chunks()
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(f"{self.path}: row {row} has no episode")
        number = column.dictionary_encode().indices.to_numpy()
        ends = np.append(np.flatnonzero(np.diff(number)), len(number) - 1)
        begun, counts = np.unique(number[ends], return_counts=True)
        if (counts > 1).any():
            again = int(ends[np.flatnonzero(number[ends] == begun[counts > 1][0])[1] - 1]) + 1
            raise DataError(
                f"{self.path}: row {again} goes on with episode {column[again].as_py()!r} after rows of another; sort "
                "the rows by episode and time"
            )
        return ends


def _flattened(column: pa.Array) -> tuple[pa.Array, Ints]:
    """The numbers of all rows in order, and the row that each belongs to. A null holds none."""
    owner = np.arange(len(column))
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    while any(is_kind(column.type) for is_kind in kinds):
        lengths = pc.call_function("list_value_length", [column]).fill_null(0)
        owner = np.repeat(owner, lengths.to_numpy(zero_copy_only=False))
        column = column.flatten()
    return column, owner
