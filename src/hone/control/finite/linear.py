"""Linear systems of chains: dense for small ones, sparse (scipy) for large ones."""

import numpy as np

from hone.control.finite.model import Flags, Floats
from hone.core.errors import ResourceError
from hone.core.ragged import Ints

DENSE_STATES = 1500
"""Largest number of states for a dense matrix (18 MB), which is as fast as a sparse one."""
NEEDS_SCIPY = "this needs scipy, which is not installed: pip install 'hone-rl[control]'"


def solve_linear(edges: tuple[Ints, Ints, Floats], right: Floats, known: Flags) -> Floats:
    """Solve x = right + W x, W[i, j] the summed weight of the edges i -> j, with x = 0 in `known` states -> `[S]`.


    Raises ResourceError for more than 1500 states without scipy.
    """
    source, target, weight = edges
    number = np.cumsum(~known) - 1
    inside = ~known[source] & ~known[target]
    rows, columns, weight = number[source[inside]], number[target[inside]], weight[inside]
    count = int(np.count_nonzero(~known))
    answer = np.zeros(len(known))
    if count <= DENSE_STATES:
        flat = np.bincount(rows * count + columns, weights=weight, minlength=count * count).astype(np.float64)
        answer[~known] = np.linalg.solve(np.eye(count) - flat.reshape(count, count), right[~known])
    elif count:
        answer[~known] = _sparse(rows, columns, weight, right[~known])
    return answer


def _sparse(rows: Ints, columns: Ints, weight: Floats, right: Floats) -> Floats:
    try:
        from scipy import sparse  # noqa: PLC0415 - optional, and slow to import
        from scipy.sparse import linalg  # noqa: PLC0415
    except ImportError as missing:
        raise ResourceError(f"{len(right)} states: {NEEDS_SCIPY}") from missing
    matrix = sparse.coo_matrix((weight, (rows, columns)), shape=(len(right), len(right)))
    return np.asarray(linalg.spsolve((sparse.eye(len(right)) - matrix).tocsc(), right), dtype=np.float64)
