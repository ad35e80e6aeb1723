"""Counts of answers by their fate: those that a selection of groups dropped, and those that are learnt from."""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from hone.core.episodes import Episodes, concatenate
from hone.run.store.survivorship import Fate, SurvivorshipCounts
from hone.run.wrapper import SourceWrapper

P = TypeVar("P")


@dataclass
class CollectedSource(SourceWrapper[P]):
    """Source that remembers what it collected since it was last asked."""

    collected: list[Episodes] = field(default_factory=list[Episodes])

    def collect(self) -> Episodes:
        self.collected.append(self.source.collect())
        return self.collected[-1]

    def pop_collected(self) -> Episodes:
        """Everything collected since the last call."""
        found, self.collected = concatenate(self.collected), []
        return found


@dataclass
class FilteredSource(SourceWrapper[P]):
    """Source that selects groups of another one; counts the answers of those that it leaves out."""

    everything: CollectedSource[P]
    """The source that it selects from."""
    counts: SurvivorshipCounts

    def collect(self) -> Episodes:
        kept, everything = self.source.collect(), self.everything.pop_collected()
        dropped = ~np.isin(everything.group, kept.group)
        if dropped.any():
            count_answers(self.counts, "filtered", everything.take(np.flatnonzero(dropped)))
        return kept


def count_answers(counts: SurvivorshipCounts, fate: Fate, episodes: Episodes) -> None:
    """Count answers of one fate; a dialogue of several rows is one answer."""
    whole = episodes.join_rows()
    counts.add(fate, whole.lengths, whole.score)


def count_learnt(counts: SurvivorshipCounts, episodes: Episodes) -> None:
    """Count the answers of a batch that reached the learner, by their ends and rewards."""
    whole = episodes.join_rows()
    truncated = whole.truncated & whole.scored
    fates: dict[Fate, np.ndarray] = {
        "unscored": ~whole.scored, "truncated": truncated, "kept": whole.scored & ~truncated
    }  # fmt: skip
    for fate, chosen in fates.items():
        if chosen.any():
            counts.add(fate, whole.lengths[chosen], whole.score[chosen])
