"""Map of a policy on a grid, `map.json`: its actions and values in each cell.

Belongs here: the file. `hone.run.report.policy_map` draws a map, `hone.control.evaluate.policy_maps` computes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.errors import DataError
from hone.run.store.durable import replace_file, to_json
from hone.run.store.records import read_record, record_json

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
    replace_file(folder / MAP, to_json(record_json(found)))
    return folder / MAP


def read_map(folder: Path) -> PolicyMap | None:
    """Read the file; None without it. Raises DataError for a damaged one."""
    path = folder / MAP
    found = read_record(PolicyMap, path)
    for one in found.slices if found is not None else ():
        if len(one.cells) != one.rows * one.columns:
            raise DataError(f"{path}: {one.title!r} has {len(one.cells)} cells, expected {one.rows} x {one.columns}")
    return found
