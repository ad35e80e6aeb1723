"""Map of a policy on a grid, `map.json`: its actions and values in each cell.

Belongs here: the file. `hone.report.policy_map` draws a map, `hone.evaluate.control.policy_maps` computes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.errors import DataError
from hone.store.durable import Json, finite_or_none, read_json_object, replace_file, to_json

MAP = "map.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """Cell of a grid."""

    mark: str
    """Mark on the environment's own map: `S`, `G`, `#`; a space for plain floor."""
    worth: float | None
    """Value of the cell; None without a decision."""
    moves: Mapping[str, float]
    """Action name -> probability, the largest first; below a tenth left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSlice:
    """One grid; an environment with further state variables has several."""

    title: str
    rows: int
    columns: int
    cells: Sequence[GridCell]
    """`rows * columns`, row by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMap:
    """Map of a policy."""

    step: int
    """Step of the checkpoint."""
    worth_is: str
    """Meaning of the values, in words."""
    slices: Sequence[GridSlice]


def write_map(folder: Path, found: PolicyMap) -> Path:
    """Write the file atomically. Raises ResourceError."""
    slices: list[Json] = [
        {
            "title": one.title,
            "rows": one.rows,
            "columns": one.columns,
            "cells": [_cell_json(cell) for cell in one.cells],
        }
        for one in found.slices
    ]
    document: dict[str, Json] = {"step": found.step, "worth_is": found.worth_is, "slices": slices}
    replace_file(folder / MAP, to_json(document))
    return folder / MAP


def read_map(folder: Path) -> PolicyMap | None:
    """Read the file; None without it. Raises DataError for a damaged one."""
    path = folder / MAP
    if not path.exists():
        return None
    match read_json_object(path):
        case {"step": int(step), "worth_is": str(worth_is), "slices": list(slices)}:
            return PolicyMap(step=step, worth_is=worth_is, slices=[_slice(one, path) for one in slices])
        case _:
            raise DataError(f"{path} must contain a step, the meaning of the values, and slices")


def _cell_json(cell: GridCell) -> Json:
    return {"mark": cell.mark, "worth": finite_or_none(cell.worth), "moves": dict(cell.moves)}


def _slice(entry: Json, path: Path) -> GridSlice:
    match entry:
        case {"title": str(title), "rows": int(rows), "columns": int(columns), "cells": list(cells)}:
            if len(cells) != rows * columns:
                raise DataError(f"{path}: {title!r} has {len(cells)} cells, expected {rows} x {columns}")
            return GridSlice(title=title, rows=rows, columns=columns, cells=[_cell(cell, path) for cell in cells])
        case _:
            raise DataError(f"{path}: a slice must contain a title, rows, columns and cells")


def _cell(entry: Json, path: Path) -> GridCell:
    match entry:
        case {"mark": str(mark), "worth": worth, "moves": dict(moves)}:
            shares = {name: float(share) for name, share in moves.items() if isinstance(share, int | float)}
            known = float(worth) if isinstance(worth, int | float) else None
            return GridCell(mark=mark, worth=known, moves=shares)
        case _:
            raise DataError(f"{path}: a cell must contain a mark, a worth and moves")
