"""Logged sources: episodes of a dataset, in a fresh permutation for each epoch."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.random import permutation
from hone.core.state import State, integer

P = TypeVar("P")


@dataclass
class LogSource(Generic[P]):
    """Reads a log back, `batch` episodes at a time, in a fresh permutation each epoch; no row is ever skipped.

    The cursor is one integer: the order is recomputed from (seed, epoch), so an exact resume costs nothing.
    """

    log: Episodes
    batch_size: int
    seed: int
    rows_drawn: int = 0

    def collect(self) -> Episodes:
        picks: list[np.ndarray] = []
        wanted = self.batch_size
        while wanted:
            epoch, start = divmod(self.rows_drawn, len(self.log))
            order = self._order(epoch)[start : start + wanted]
            picks.append(order)
            self.rows_drawn += len(order)
            wanted -= len(order)
        return self.log.take(np.concatenate(picks))

    def publish(self, policy: P) -> None:
        """A log does not act."""

    def metrics(self) -> Metrics:
        return {}

    def state(self) -> State:
        return {"drawn": self.rows_drawn}

    def restore(self, state: State) -> None:
        self.rows_drawn = integer(state, "drawn")

    def _order(self, epoch: int) -> np.ndarray:
        if self._cached_epoch != epoch:
            self._cached_epoch = epoch
            self._cached_order = permutation(self.seed, "logged", epoch, count=len(self.log))
        return self._cached_order

    def __post_init__(self) -> None:
        self._cached_epoch = -1
        self._cached_order = np.zeros(0, dtype=np.int64)
