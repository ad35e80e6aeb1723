"""Dynamic sampling: a source that asks again until its batch holds only groups from which something is learnt.

Dynamic sampling: a source that asks again until its batch holds only groups that say something.

A decoration of *collect*: what it hands out is as many groups as its source would, each of them informative, and it
tells what that cost.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate
from hone.run.loop import SourceWrapper

P = TypeVar("P")


@dataclass
class DynamicSampling(SourceWrapper[P]):
    """As many groups as one `collect` of `source` yields, those that are `wanted` first (DAPO, Yu et al., 2025).

    At most `max_rounds` collections; if they do not suffice, unwanted groups fill the batch up, so that its size, and
    with it the weight of a token, stays. Wanted groups beyond the batch are thrown away: kept for the next step, they
    would be older than its policy. Statistics of the source (`reward/mean`) stay those of everything that was asked.
    """

    is_informative: Callable[[Episodes], NDArray[np.bool_]]
    """Episodes -> `[E]`, all of a group alike."""
    max_rounds: int = 10
    last_metrics: Metrics = field(default_factory=dict[str, float])

    def collect(self) -> Episodes:
        rounds = [self.source.collect()]
        size = len(np.unique(rounds[0].group))
        informative, asked = np.unique(rounds[0].group[self.is_informative(rounds[0])]), size
        while len(informative) < size and len(rounds) < self.max_rounds:
            more = self.source.collect()
            rounds.append(more)
            asked += len(np.unique(more.group))
            informative = np.concatenate((informative, np.unique(more.group[self.is_informative(more)])))
        everything = concatenate(rounds)
        kept = informative[:size]
        if len(kept) < size:
            others = np.setdiff1d(everything.group, kept)
            kept = np.concatenate((kept, others[: size - len(kept)]))
        batch = everything.take(np.flatnonzero(np.isin(everything.group, kept)))
        self.last_metrics = {
            "dynamic_sampling/rounds": float(len(rounds)),
            "dynamic_sampling/informative_groups": len(informative) / asked,
            "dynamic_sampling/filled_up_groups": float(max(0, size - len(informative))),
            "dynamic_sampling/decisions_per_used": everything.decisions / max(batch.decisions, 1),
        }
        return batch

    def metrics(self) -> Metrics:
        metrics, self.last_metrics = self.last_metrics, {}
        return {**self.source.metrics(), **metrics}
