"""Logged sources: episodes of a dataset, or whole groups of them, in a fresh permutation for each epoch."""

from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import numpy as np

from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.ragged import Ints, offsets_of, ranges
from hone.core.random import permutation
from hone.core.state import State, integer

P = TypeVar("P")


@dataclass
class LogSource(Generic[P]):
    """Reads a log back, `batch_size` episodes (or groups) at a time, in a fresh permutation each epoch; no row is ever
    skipped.

    A group that is drawn again in a later epoch has another number, so that no batch merges the two.
    The cursor is one integer: the order is recomputed from (seed, epoch), so an exact resume costs nothing.
    """

    log: Episodes
    batch_size: int
    seed: int
    unit: Literal["sample", "group"] = "sample"
    """What is drawn: single episodes, or all episodes of one `Episodes.group` together, such as the answers of a
    pair."""
    rows_drawn: int = 0

    def collect(self) -> Episodes:
        units, epochs = self._next_units()
        self.rows_drawn += self.batch_size
        episodes = self.log.take(self.episodes_of(units))
        if self.unit == "sample":
            return episodes
        epoch = np.repeat(epochs, np.diff(self._group_offsets)[units])
        return replace(episodes, group=episodes.group + epoch * (int(self.log.group.max()) + 1))

    def upcoming(self) -> Ints:
        """Places in the log of the episodes that the next draw takes."""
        return self.episodes_of(self._next_units()[0])

    def episodes_of(self, units: Ints) -> Ints:
        """Places in the log of the episodes of `units`, unit by unit."""
        if self.unit == "sample":
            return units
        return self._members[ranges(self._group_offsets[:-1][units], np.diff(self._group_offsets)[units])]

    def first_units(self, count: int) -> Ints:
        """The units that the first `count` draws of the run take, each once."""
        return self._order(0)[:count]

    @property
    def units(self) -> int:
        """Episodes of the log, or its groups."""
        return len(self.log) if self.unit == "sample" else len(self._group_offsets) - 1

    def publish(self, policy: P) -> None:
        """A log does not act."""

    def metrics(self) -> Metrics:
        return {}

    def state(self) -> State:
        return {"drawn": self.rows_drawn}

    def restore(self, state: State) -> None:
        self.rows_drawn = integer(state, "drawn")

    def _next_units(self) -> tuple[Ints, Ints]:
        """The units of the next draw, and the epoch of each."""
        numbers = np.arange(self.rows_drawn, self.rows_drawn + self.batch_size, dtype=np.int64)
        epochs, places = np.divmod(numbers, self.units)
        drawn = [self._order(epoch)[places[epochs == epoch]] for epoch in np.unique(epochs).tolist()]
        return np.concatenate(drawn), epochs

    def _order(self, epoch: int) -> np.ndarray:
        if self._cached_epoch != epoch:
            self._cached_epoch = epoch
            self._cached_order = permutation(self.seed, "logged", epoch, count=self.units)
        return self._cached_order

    def __post_init__(self) -> None:
        self._cached_epoch = -1
        self._cached_order = np.zeros(0, dtype=np.int64)
        if self.unit == "group":
            self._members = np.argsort(self.log.group, kind="stable")
            self._group_offsets = offsets_of(np.unique(self.log.group, return_counts=True)[1])
