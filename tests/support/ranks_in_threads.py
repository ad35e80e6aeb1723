"""Ranks of one batch as threads of one process, for tests of what they must agree on."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.reduction import Reduction

R = TypeVar("R")


@dataclass(frozen=True)
class ThreadRank:
    """Reduction of one thread; `board` holds the columns of all."""

    rank: int
    board: list[NDArray[Any]]
    barrier: Barrier

    def gather(self, column: NDArray[Any]) -> Sequence[NDArray[Any]]:
        self.board[self.rank] = column.copy()
        self.barrier.wait()
        parts = list(self.board)
        self.barrier.wait()
        return parts


def on_ranks(count: int, function: Callable[[Reduction], R]) -> list[R]:
    """Result of `function` on each of `count` ranks; raises the first error of a rank."""
    board, barrier = [np.zeros(0)] * count, Barrier(count, timeout=120)
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda rank: function(ThreadRank(rank, board, barrier)), range(count)))
