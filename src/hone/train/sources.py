"""Where episodes come from: a live world, a log read back, a memory of earlier ones.

A source owns *when* and *how much*; a world (in `envs/`) owns what answers an action.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate
from hone.core.random import generator, permutation
from hone.core.state import State, integer, substate
from hone.train.loop import Source

P = TypeVar("P")
A_contra = TypeVar("A_contra", contravariant=True)
P_contra = TypeVar("P_contra", contravariant=True)


class World(Protocol[A_contra]):
    """What answers an action: a text task, a Gymnasium vector environment, bandit arms."""

    def rollout(self, actor: A_contra) -> Episodes:
        """One batch of episodes (or pieces of them), decided by `actor`."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Actor(Protocol[P_contra]):
    """Whoever decides: an engine over the trainer's weights, a numpy copy of a small network, a posterior."""

    def publish(self, policy: P_contra, version: int) -> None:
        """Decide by this policy from now on, and stamp decisions with `version`."""
        ...


@dataclass
class Lived:
    """Outcomes of the episodes that ended since they were last told; pieces that were cut have no outcome yet."""

    scores: list[np.ndarray] = field(default_factory=list[np.ndarray])
    truncated: int = 0
    decisions: int = 0
    missing: int = 0

    def add(self, episodes: Episodes) -> None:
        ended = episodes.terminated | episodes.truncated
        counted = ended & episodes.scored
        self.decisions += episodes.decisions
        self.missing += int((ended & ~episodes.scored).sum())
        if counted.any():
            self.scores.append(episodes.score[counted])
        self.truncated += int(episodes.truncated.sum())

    def tell(self) -> Metrics:
        """`reward/mean` and `reward/std` over episodes that ended, counts beside them; then forget."""
        metrics: Metrics = {"episodes/decisions": float(self.decisions)}
        scores = np.concatenate(self.scores) if self.scores else np.zeros(0)
        ended = len(scores) + self.missing
        metrics["episodes/ended"] = float(ended)
        if len(scores):
            metrics |= {"reward/mean": float(scores.mean()), "reward/std": float(scores.std())}
        if ended:
            metrics |= {
                "episodes/truncated": self.truncated / ended,
                "reward/missing": self.missing / ended,
            }
        self.scores, self.truncated, self.decisions, self.missing = [], 0, 0, 0
        return metrics


def no_figures() -> Metrics:
    """Nothing to tell."""
    return {}


@dataclass
class Live(Generic[P]):
    """Acts in a world. `version` counts publications: the episodes of step n are decided by version n - 1."""

    world: World[Any]  # the recipe pairs a world with an actor that it can ask
    actor: Actor[P]
    version: int = -1
    figures: Callable[[], Metrics] = no_figures
    """What the actor has to tell of its latest episodes."""
    lived: Lived = field(default_factory=Lived)

    def collect(self) -> Episodes:
        episodes = self.world.rollout(self.actor)
        self.lived.add(episodes)
        return episodes

    def publish(self, policy: P) -> None:
        self.version += 1
        self.actor.publish(policy, self.version)

    def metrics(self) -> Metrics:
        return {**self.lived.tell(), **self.figures()}

    def state(self) -> State:
        return {"version": self.version, "world": self.world.state()}

    def restore(self, state: State) -> None:
        self.version = integer(state, "version") - 1  # the loop publishes the restored policy before its first step
        self.world.restore(substate(state, "world"))


@dataclass
class Logged(Generic[P]):
    """Reads a log back, `batch` episodes at a time, in a fresh permutation each epoch; no row is ever skipped.

    The cursor is one integer: the order is recomputed from (seed, epoch), so an exact resume costs nothing.
    """

    log: Episodes
    batch: int
    seed: int
    drawn: int = 0

    def collect(self) -> Episodes:
        picks: list[np.ndarray] = []
        wanted = self.batch
        while wanted:
            epoch, start = divmod(self.drawn, len(self.log))
            order = self._order(epoch)[start : start + wanted]
            picks.append(order)
            self.drawn += len(order)
            wanted -= len(order)
        return self.log.take(np.concatenate(picks))

    def publish(self, policy: P) -> None:
        """A log does not act."""

    def metrics(self) -> Metrics:
        return {}

    def state(self) -> State:
        return {"drawn": self.drawn}

    def restore(self, state: State) -> None:
        self.drawn = integer(state, "drawn")

    def _order(self, epoch: int) -> np.ndarray:
        if self._cached_epoch != epoch:
            self._cached_epoch = epoch
            self._cached_order = permutation(self.seed, "logged", epoch, count=len(self.log))
        return self._cached_order

    def __post_init__(self) -> None:
        self._cached_epoch = -1
        self._cached_order = np.zeros(0, dtype=np.int64)


class Memory(Protocol):
    """What was lived through, kept (`hone.replay`): transitions or steps, by priority or not, or whole episodes."""

    def __len__(self) -> int:
        """Decisions that can be sampled."""
        ...

    def add(self, episodes: Episodes) -> object:
        """Remember episodes, or pieces of them."""
        ...

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` transitions, as episodes of one decision."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass
class Replay(Generic[P]):
    """Remembers what another source lives through and hands out a sample of it, as its memory draws it.

    Until `warmup` decisions are in memory it goes on collecting, so the first update already sees that many.
    """

    source: Source[P]
    ring: Memory
    sample: int
    """Transitions handed out per step."""
    warmup: int
    seed: int
    drawn: int = 0

    def collect(self) -> Episodes:
        fresh = [self.source.collect()]
        while len(self.ring) + sum(episodes.decisions for episodes in fresh) < self.warmup:
            fresh.append(self.source.collect())
        self.ring.add(concatenate(fresh))
        while len(self.ring) == 0:  # a memory of whole episodes waits for the first end
            self.ring.add(self.source.collect())
        self.drawn += 1
        return self.ring.sample(self.sample, generator(self.seed, "replay", self.drawn))

    def publish(self, policy: P) -> None:
        self.source.publish(policy)

    def metrics(self) -> Metrics:
        return self.source.metrics()

    def state(self) -> State:
        return {"drawn": self.drawn, "source": self.source.state(), "ring": self.ring.state()}

    def restore(self, state: State) -> None:
        self.drawn = integer(state, "drawn")
        self.source.restore(substate(state, "source"))
        self.ring.restore(substate(state, "ring"))
