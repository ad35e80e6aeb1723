"""Episodes that gave way, on disk: parquet files, read back one at a time.

Belongs here: what an episode store forgets and somebody may want again. A row is an episode, its columns lists of what
each decision saw, chose and was paid. A file appears whole or not at all.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from hone.core.episodes import Episodes, column_table
from hone.core.errors import DataError
from hone.core.ragged import offsets_of

Array = NDArray[np.generic]
arrow: Any = pyarrow  # it ships no types
parquet: Any = pyarrow.parquet

REQUIRED = tuple(name for name, column in column_table().items() if column.required or name == "final")


@dataclass(frozen=True, slots=True)
class ParquetSpill:
    """Writes `episodes_00000000.parquet` and so on into `folder`; give it to an episode store.

    A file's number counts the episodes before it, so a resumed run writes the same files again, and no others over
    them.
    """

    folder: Path

    def __call__(self, first: int, episodes: Episodes) -> None:
        """Write one file, whose first episode is number `first`. Raises DataError for episodes without final
        observations."""
        if episodes.final is None or not episodes.scored.all():
            raise DataError("only scored episodes with final observations can be spilled")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"episodes_{first:08d}.parquet"
        columns = {name: values for name, values in episodes.columns().items() if name != "status"}
        offsets = arrow.array(episodes.offsets.astype(np.int32))
        cells = {name: _cells(values) for name, values in columns.items()}
        of_decisions = {name: arrow.ListArray.from_arrays(offsets, cells[name]) for name in cells if _is_list(name)}
        table = arrow.table({**cells, **of_decisions})
        shapes = {name: [str(column.dtype), *column.shape[1:]] for name, column in columns.items()}
        partial = path.with_suffix(".partial")
        parquet.write_table(table.replace_schema_metadata({"hone": json.dumps(shapes)}), partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)


def read_spilled(folder: Path) -> Iterator[Episodes]:
    """The episodes of each file, oldest first. Raises DataError that names a file which cannot be read."""
    for path in sorted(folder.glob("episodes_*.parquet")):
        try:
            table: Any = parquet.read_table(path)
        except (arrow.ArrowInvalid, OSError) as error:
            raise DataError(f"{path}: not a whole parquet file: {error}") from error
        metadata: dict[bytes, bytes] = table.schema.metadata or {}
        notes = metadata.get(b"hone")
        missing = [name for name in REQUIRED if name not in table.column_names]
        if notes is None or missing:
            raise DataError(f"{path}: not written by Spill: no {', '.join(missing) or 'metadata under `hone`'}")
        yield _episodes(table, json.loads(notes))


def _is_list(name: str) -> bool:
    """True if a cell of the column holds a list, with one entry for each decision of the episode."""
    return column_table()[name].unit == "decision"


def _episodes(table: Any, shapes: dict[str, list[Any]]) -> Episodes:  # noqa: ANN401 - pyarrow ships no types
    lists = table["seen"].combine_chunks()
    lengths = np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64)

    def column(name: str) -> Array:
        kind, *shape = shapes[name]
        cells = table[name].combine_chunks()
        cells = cells.flatten() if _is_list(name) else cells
        for _ in shape[:1]:
            cells = cells.flatten()
        return np.asarray(cells.to_numpy(zero_copy_only=False)).astype(kind).reshape(-1, *shape)

    return Episodes.from_columns(offsets_of(lengths), {name: column(name) for name in shapes})


def _cells(column: Array) -> Any:  # noqa: ANN401 - pyarrow ships no types
    """`[N]` as plain numbers, `[N, ...]` as lists of a fixed size."""
    if column.ndim == 1:
        return arrow.array(column)
    flat = np.ascontiguousarray(column).reshape(len(column), -1)
    return arrow.FixedSizeListArray.from_arrays(arrow.array(flat.ravel()), flat.shape[1])
