"""Statistics of a whole batch whose rows are shared by several ranks; on one process every reduction is the identity.

Weights, selections, losses and metrics take their totals here and nowhere else. Everything derives from one gather, in
the order of the ranks, so that all ranks compute the same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.generic]
S = TypeVar("S", bound=np.generic)


class Reduction(Protocol):
    """Collective communication of the ranks that share a batch. All ranks make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Position of this process among the ranks."""
        ...

    def gather(self, column: Array) -> Sequence[Array]:
        """`[n_r, ...]` of every rank r, in the order of the ranks; `column` is the part of this one."""
        ...


@dataclass(frozen=True, slots=True)
class _OneProcess:
    """Reduction of a batch that one process holds whole."""

    rank: int = 0

    def gather(self, column: Array) -> Sequence[Array]:
        return (column,)


ONE_PROCESS: Final = _OneProcess()


def total(value: float, reduction: Reduction) -> float:
    """Sum of every rank's `value`, added in the order of the ranks."""
    first, *others = (float(part[0]) for part in reduction.gather(np.array([value], dtype=np.float64)))
    return sum(others, start=first)


def largest(value: float, reduction: Reduction) -> float:
    """Maximum of every rank's `value`."""
    return max(float(part[0]) for part in reduction.gather(np.array([value], dtype=np.float64)))


def whole_batch(function: Callable[..., NDArray[S]], reduction: Reduction) -> Callable[..., NDArray[S]]:
    """`function` of columns of the whole batch -> the same function of this rank's columns.

    The result of `function` has a row for each row of its first argument; this rank's are returned. Weighting schemes
    (of lengths and groups) and selections (masks, quantiles) become functions of all ranks' rows this way.
    """

    def apply(*columns: Array) -> NDArray[S]:
        parts = [reduction.gather(column) for column in columns]
        result = function(*(part[0] if len(part) == 1 else np.concatenate(part) for part in parts))
        begin = sum(len(part) for part in parts[0][: reduction.rank])
        return result[begin : begin + len(columns[0])]

    return apply
