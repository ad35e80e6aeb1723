"""The two inner loops of a sum tree, twice: in numpy, and compiled by numba where that is installed.

Belongs here: loops whose speed matters and nothing else. Both versions add in the same order, so that they give the
same numbers to the last bit, and a run may be resumed with the other one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

FAN = 16
"""Children of a node: two cache lines. A node's sum is made of all of them again, so no rounding piles up."""
BELOW = 1.0 - 2.0**-52
"""A target at the very end of a node's mass is drawn in, or rounding could lead it to a child of mass 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTreeKernels:
    """A tree is one array, layer after layer: leaves first; layer l is `nodes[starts[l]:starts[l + 1]]`."""

    set_leaves: Callable[[Floats, Ints, Ints, Floats], None]
    """`nodes`, `starts`, rows `[n]`, values `[n]`: set these leaves and make the sums above them again."""
    find_leaves: Callable[[Floats, Ints, Floats], Ints]
    """`nodes`, `starts`, targets `[n]` in [0, total] -> the leaves in whose stretch of the running sum they lie."""
    compiled: bool


def set_leaves(nodes: Floats, starts: Ints, rows: Ints, values: Floats) -> None:
    """See `Kernels.change`."""
    nodes[rows] = values
    for layer in range(len(starts) - 2):
        low, high = int(starts[layer]), int(starts[layer + 1])
        rows = rows >> 4
        children = nodes[low:high].reshape(-1, FAN).take(rows, axis=0)
        nodes[high + rows] = children.cumsum(axis=1)[:, -1]


def find_leaves(nodes: Floats, starts: Ints, targets: Floats) -> Ints:
    """See `Kernels.find`."""
    running = nodes[starts[-2] : starts[-1]].cumsum()
    left = np.minimum(targets, running[-1] * BELOW)
    node = running.searchsorted(left, side="right")
    left = left - np.where(node > 0, running[node - 1], 0.0)
    first = np.arange(0, len(targets) * FAN, FAN)
    for layer in range(len(starts) - 3, -1, -1):
        low, high = int(starts[layer]), int(starts[layer + 1])
        left = np.minimum(left, nodes[high + node] * BELOW)
        below = nodes[low:high].reshape(-1, FAN).take(node, axis=0).cumsum(axis=1)
        child = (below > left[:, None]).argmax(axis=1)
        left = left - np.where(child > 0, below.ravel()[first + child - 1], 0.0)
        node = node * FAN + child
    return node


def change_by_loops(nodes: Floats, starts: Ints, rows: Ints, values: Floats) -> None:
    """Loop of `set_leaves` for numba."""
    for i in range(len(rows)):
        nodes[rows[i]] = values[i]
    for layer in range(len(starts) - 2):
        low, high = starts[layer], starts[layer + 1]
        shift = 4 * (layer + 1)
        last = -1
        for i in range(len(rows)):
            parent = rows[i] >> shift
            if parent == last:
                continue
            last = parent
            total = 0.0
            for child in range(low + parent * 16, low + parent * 16 + 16):
                total += nodes[child]
            nodes[high + parent] = total


def find_by_loops(nodes: Floats, starts: Ints, targets: Floats) -> Ints:
    """Loop of `find` for numba. It goes layer by layer and without branches, so that memory accesses overlap."""
    layers, count = len(starts) - 1, len(targets)
    running = nodes[starts[layers - 1] : starts[layers]].cumsum()
    found, left = np.empty(count, dtype=np.int64), np.empty(count)
    node = 0
    for i in range(count):
        target = min(targets[i], running[-1] * BELOW)
        if node > 0 and running[node - 1] > target:
            node = 0  # targets come in order as a rule; where they do not, the search begins anew
        while running[node] <= target:
            node += 1
        found[i] = node
        left[i] = target - running[node - 1] if node > 0 else target
    for layer in range(layers - 2, -1, -1):
        low, high = starts[layer], starts[layer + 1]
        for i in range(count):
            target = min(left[i], nodes[high + found[i]] * BELOW)
            first = low + found[i] * 16
            total, before, step = 0.0, 0.0, 0
            for child in range(15):
                total += nodes[first + child]
                past = total <= target
                step += past
                before = total if past else before
            left[i] = target - before
            found[i] = found[i] * 16 + step
    return found


@cache
def kernels() -> SumTreeKernels:
    """Compiled where numba is installed (`pip install 'hone-rl[control]'`), else numpy. The first use of a compiled one
    takes seconds, once per machine: numba keeps what it made beside this file."""
    try:
        import numba  # noqa: PLC0415 - optional, and takes half a second to import
    except ImportError:
        return SumTreeKernels(set_leaves=set_leaves, find_leaves=find_leaves, compiled=False)
    compiled: Any = numba.njit(cache=True, nogil=True)  # pyright: ignore[reportUnknownMemberType]
    return SumTreeKernels(set_leaves=compiled(change_by_loops), find_leaves=compiled(find_by_loops), compiled=True)
