"""Replay of successes: answers that went better than their group are kept, and handed out again beside new ones."""

from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate, pack_episodes, unpack_episodes
from hone.core.random import uniforms
from hone.core.state import State, integer, substate
from hone.run.loop import SourceWrapper
from hone.sources.mixed import replay_metrics, with_columns_of

P = TypeVar("P")


@dataclass
class SuccessReplay(SourceWrapper[P]):
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
    version: int = -1
    """Version of the policy that acts."""
    last_metrics: Metrics = field(default_factory=dict[str, float])

    def collect(self) -> Episodes:
        live = self.source.collect()
        live = replace(live, baseline=np.full(len(live), np.nan))
        old = self._draw(live)
        self._keep(live)
        both = live if old is None else concatenate([live, old])
        size = 0 if self.kept is None else len(self.kept)
        self.last_metrics = {"successes/kept": float(size), **replay_metrics("successes", both, self.version)}
        return both

    def publish(self, policy: P) -> None:
        self.version += 1
        self.source.publish(policy)

    def metrics(self) -> Metrics:
        told, self.last_metrics = self.last_metrics, {}
        return {**self.source.metrics(), **told}

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
        return with_columns_of(live, numbered)

    def _keep(self, live: Episodes) -> None:
        """Add the successes of a batch, and judge the older ones by the new means of their questions."""
        means = group_means(live)
        fresh = replace(live, baseline=means)
        everything = fresh if self.kept is None else concatenate([self.kept, with_columns_of(self.kept, fresh)])
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


def group_means(episodes: Episodes) -> NDArray[np.float64]:
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
