"""Logged sources: episodes of a dataset, or whole groups of them, in a fresh permutation for each epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.episodes import Episodes, Seen, column_table, concatenate, pack_episodes, unpack_episodes
from hone.core.ragged import Ints, offsets_of, ranges
from hone.core.random import permutation, uniforms
from hone.core.state import State, integer, substate
from hone.run.loop import SourceWrapper

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


# ---------------------------------------------------------------------------------------------------------------- mixed
# Warm buffers: every batch of a live source, with groups of a log beside it.
#
# The log's decisions keep the log-probabilities of whoever made them, so that a ratio against recorded log-
# probabilities corrects for them. Groups of the log have numbers below 0: no batch merges them with live ones, and what
# is told about the policy's own answers leaves them out.


_MISSING: Final[Mapping[str, float]] = {"f": np.nan, "i": -1, "u": 0, "b": False}
"""Value of a column that was not recorded, by the kind of its type."""


@dataclass
class _ReplayWrapper(SourceWrapper[P]):
    """Batches of a live source with older answers after them."""

    version: int = field(default=-1, kw_only=True)
    """Version of the policy that acts."""
    last_metrics: Metrics = field(default_factory=dict[str, float], kw_only=True)

    def publish(self, policy: P) -> None:
        self.version += 1
        self.source.publish(policy)

    def metrics(self) -> Metrics:
        metrics, self.last_metrics = self.last_metrics, {}
        return {**self.source.metrics(), **metrics}


@dataclass
class MixedSource(_ReplayWrapper[P]):
    """Batches of a live source with some groups of a log after them, in a fresh permutation each epoch of the log."""

    log: LogSource[P]
    """Draws whole groups."""

    def collect(self) -> Episodes:
        live, logged = self.source.collect(), replayed(self.log.collect())
        both = concatenate([live, _with_columns_of(live, logged)])
        self.last_metrics = _replay_metrics("warm", both, self.version)
        return both

    def state(self) -> State:
        return {"source": self.source.state(), "log": self.log.state(), "version": self.version}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.log.restore(substate(state, "log"))
        self.version = integer(state, "version") - 1  # the loop publishes the restored policy before its first step


def replayed(episodes: Episodes) -> Episodes:
    """The same episodes with the numbers of their groups, from 0 on, turned below 0."""
    return replace(episodes, group=-1 - episodes.group)


def _with_columns_of(live: Episodes, replayed: Episodes) -> Episodes:
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


def _replay_metrics(name: str, episodes: Episodes, version: int) -> Metrics:
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


# ------------------------------------------------------------------------------------------------------------ successes


@dataclass
class SuccessReplay(_ReplayWrapper[P]):
    """Batches of a live source with `sample_size` of its earlier successes after them (Oh et al., Self-Imitation
    Learning, 2018).

    A success is an answer with a score above the mean of its group, which becomes its `baseline`. Whenever its question
    is asked again, the baseline is the new mean, and what is no longer above it is forgotten: the policy has caught up.
    Successes are drawn with probabilities proportional to score - baseline. The same answer to a question is kept once.
    """

    capacity: int
    """Successes that are kept, the newest."""
    sample_size: int
    seed: int
    kept: Episodes | None = None
    draws: int = 0

    def collect(self) -> Episodes:
        live = self.source.collect()
        live = replace(live, baseline=np.full(len(live), np.nan))
        old = self._draw(live)
        self._keep(live)
        both = live if old is None else concatenate([live, old])
        size = 0 if self.kept is None else len(self.kept)
        self.last_metrics = {"successes/kept": float(size), **_replay_metrics("successes", both, self.version)}
        return both

    def state(self) -> State:
        kept = {} if self.kept is None else {"kept": pack_episodes(self.kept)}
        return {"source": self.source.state(), "draws": self.draws, "version": self.version, **kept}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.draws, self.version = integer(state, "draws"), integer(state, "version") - 1
        self.kept = unpack_episodes(substate(state, "kept")) if "kept" in state else None

    def _draw(self, live: Episodes) -> Episodes | None:
        """Successes of earlier steps, each as a group of its own with a number below 0."""
        if self.kept is None:
            return None
        assert self.kept.baseline is not None
        self.draws += 1
        edges = np.cumsum(self.kept.score - self.kept.baseline)
        points = uniforms(self.seed, "successes", self.draws, count=self.sample_size) * edges[-1]
        drawn = self.kept.take(np.minimum(np.searchsorted(edges, points, side="right"), len(edges) - 1))
        numbered = replace(drawn, group=-1 - np.arange(self.sample_size, dtype=np.int64))
        return _with_columns_of(live, numbered)

    def _keep(self, live: Episodes) -> None:
        """Add the successes of a batch, and judge the older ones by the new means of their questions."""
        means = _group_means(live)
        fresh = replace(live, baseline=means)
        everything = fresh if self.kept is None else concatenate([self.kept, _with_columns_of(self.kept, fresh)])
        assert everything.baseline is not None
        baseline, latest, seen = everything.baseline.copy(), dict[bytes, float](), set[bytes]()
        chosen: list[int] = []
        for place in range(len(everything) - 1, -1, -1):  # the newest first
            question, whole = _question(everything, place)
            if np.isfinite(baseline[place]):
                latest.setdefault(question, float(baseline[place]))
            mean = latest.get(question, np.inf)
            better = bool(everything.scored[place]) and everything.score[place] > mean
            if better and whole not in seen and len(chosen) < self.capacity:
                seen.add(whole)
                chosen.append(place)
                baseline[place] = mean
        index = np.array(chosen[::-1], np.int64)
        self.kept = replace(everything, baseline=baseline).take(index) if len(index) else None


def _group_means(episodes: Episodes) -> NDArray[np.float64]:
    """`[E]` mean of the scores of each episode's group, without missing ones; infinite where all are missing, so that
    nothing is above it."""
    numbers, inverse = np.unique(episodes.group, return_inverse=True)
    scored = episodes.scored
    total = np.bincount(inverse[scored], weights=episodes.score[scored], minlength=len(numbers))
    count = np.bincount(inverse[scored], minlength=len(numbers))
    means = np.divide(total, count, out=np.full(len(numbers), np.inf), where=count > 0)
    return means[inverse]


def _question(episodes: Episodes, place: int) -> tuple[bytes, bytes]:
    """The tokens of an episode's question, and of all of it."""
    seen = episodes.transcript
    begin, end = int(seen.offsets[place]), int(seen.offsets[place + 1])
    first = int(seen.at[episodes.offsets[place]])
    return seen.tokens[begin:first].tobytes(), seen.tokens[begin:end].tobytes()
