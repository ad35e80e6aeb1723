"""Values and policies of grid worlds as text.

Belongs here: laying numbered states out row by row again. Moves are left, down, right, up, as in Gymnasium's grids.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hone.control.tables.kernels import Floats

ARROWS = "<v>^"


def value_map(value: Floats, rows: Sequence[str], *, digits: int = 2) -> str:
    """Values `[S]` on a map of S places: a number where one can stand, the map's own mark where one cannot."""
    cells = np.array([list(row) for row in rows])
    marks = [
        f"{number:.{digits}f}" if _floor(mark) else mark for number, mark in zip(value, cells.ravel(), strict=True)
    ]
    return _laid_out(cells, marks)


def policy_map(choice: NDArray[np.integer], rows: Sequence[str], *, arrows: str = ARROWS) -> str:
    """Actions `[S]` on a map: an arrow where one can stand. `arrows` says them in the order of their numbers."""
    cells = np.array([list(row) for row in rows])
    marks = [arrows[int(a)] if _floor(mark) else mark for a, mark in zip(choice, cells.ravel(), strict=True)]
    return _laid_out(cells, marks)


def _floor(mark: str) -> bool:
    return mark in "S.F"


def _laid_out(cells: NDArray[np.str_], marks: Sequence[str]) -> str:
    width = max(map(len, marks))
    lines = [marks[begin : begin + cells.shape[1]] for begin in range(0, len(marks), cells.shape[1])]
    return "\n".join(" ".join(f"{mark:>{width}}" for mark in line) for line in lines)
