"""Warm buffers: every batch of a live source, with groups of a log beside it.

The log's decisions keep the log-probabilities of whoever made them, so that a ratio against recorded log-probabilities
corrects for them. Groups of the log have numbers below 0: no batch merges them with live ones, and what is told about
the policy's own answers leaves them out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import numpy as np

from hone.core.credit import Metrics
from hone.core.episodes import Episodes, Seen, column_table, concatenate
from hone.core.state import State, integer, substate
from hone.run.loop import SourceWrapper
from hone.sources.logged import LogSource

P = TypeVar("P")
_MISSING: Final[Mapping[str, float]] = {"f": np.nan, "i": -1, "u": 0, "b": False}
"""Value of a column that was not recorded, by the kind of its type."""


@dataclass
class MixedSource(SourceWrapper[P]):
    """Batches of a live source with some groups of a log after them, in a fresh permutation each epoch of the log."""

    log: LogSource[P]
    """Draws whole groups."""
    version: int = -1
    """Version of the policy that acts."""
    last_metrics: Metrics = field(default_factory=dict[str, float])

    def collect(self) -> Episodes:
        live, logged = self.source.collect(), replayed(self.log.collect())
        both = concatenate([live, with_columns_of(live, logged)])
        self.last_metrics = replay_metrics("warm", both, self.version)
        return both

    def publish(self, policy: P) -> None:
        self.version += 1
        self.source.publish(policy)

    def metrics(self) -> Metrics:
        told, self.last_metrics = self.last_metrics, {}
        return {**self.source.metrics(), **told}

    def state(self) -> State:
        return {"source": self.source.state(), "log": self.log.state(), "version": self.version}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.log.restore(substate(state, "log"))
        self.version = integer(state, "version") - 1  # the loop publishes the restored policy before its first step


def replayed(episodes: Episodes) -> Episodes:
    """The same episodes with the numbers of their groups, from 0 on, turned below 0."""
    return replace(episodes, group=-1 - episodes.group)


def with_columns_of(live: Episodes, replayed: Episodes) -> Episodes:
    """`replayed` with the columns that `live` has recorded, and no others: missing values where it has none of them."""
    wanted, own = live.columns(), replayed.columns()
    if wanted.keys() == own.keys():
        return replayed
    columns: dict[str, Seen] = {"seen": replayed.seen}
    for name, values in wanted.items():
        size = replayed.decisions if column_table()[name].unit == "decision" else len(replayed)
        missing = np.full((size, *values.shape[1:]), _MISSING[values.dtype.kind], values.dtype)
        columns[name] = own.get(name, missing)
    return Episodes.from_columns(replayed.offsets, columns)


def replay_metrics(name: str, episodes: Episodes, version: int) -> Metrics:
    """Share of the decisions that were replayed, and how many versions ago they were made."""
    old = (episodes.group < 0)[episodes.owner]
    ages = version - episodes.version[old]
    return {
        f"{name}/groups": float(len(np.unique(episodes.group[episodes.group < 0]))),
        f"{name}/share": float(old.mean()),
        **({f"{name}/staleness": float(ages.mean()), f"{name}/staleness_max": float(ages.max())} if len(ages) else {}),
    }


def of_live_groups(episodes: Episodes) -> Episodes:
    """The episodes that the source itself collected for this batch."""
    live = episodes.group >= 0
    return episodes if live.all() else episodes.take(np.flatnonzero(live))


def informative_groups(episodes: Episodes) -> Sequence[int]:
    """Numbers of the groups with unequal scores, ascending; only these tell which answers are better."""
    own = episodes.take(np.flatnonzero(episodes.scored))
    numbers, inverse = np.unique(own.group, return_inverse=True)
    low, high = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(low, inverse, own.score)
    np.maximum.at(high, inverse, own.score)
    return numbers[high > low].tolist()
