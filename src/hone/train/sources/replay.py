"""Replay sources: transitions of another source are stored in a replay buffer and sampled from it."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from hone.core.episodes import Episodes, concatenate
from hone.core.random import generator
from hone.core.state import State, integer, substate
from hone.train.sources.wrapper import SourceWrapper

P = TypeVar("P")


class ReplayBuffer(Protocol):
    """Replay buffer (`hone.replay`): transitions or steps, by priority or not, or whole episodes."""

    def __len__(self) -> int:
        """Decisions that can be sampled."""
        ...

    def add(self, episodes: Episodes) -> object:
        """Store episodes, or pieces of them."""
        ...

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` transitions, as episodes of one decision."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass
class ReplaySource(SourceWrapper[P]):
    """Remembers what another source lives through and hands out a sample of it, as its memory draws it.

    Until `warmup` decisions are in memory it goes on collecting, so the first update already sees that many.
    """

    buffer: ReplayBuffer
    sample_size: int
    """Transitions handed out per step."""
    warmup: int
    seed: int
    samples_drawn: int = 0

    def collect(self) -> Episodes:
        fresh = [self.source.collect()]
        while len(self.buffer) + sum(episodes.decisions for episodes in fresh) < self.warmup:
            fresh.append(self.source.collect())
        self.buffer.add(concatenate(fresh))
        while len(self.buffer) == 0:  # a memory of whole episodes waits for the first end
            self.buffer.add(self.source.collect())
        self.samples_drawn += 1
        return self.buffer.sample(self.sample_size, generator(self.seed, "replay", self.samples_drawn))

    def state(self) -> State:
        return {"drawn": self.samples_drawn, "source": self.source.state(), "ring": self.buffer.state()}

    def restore(self, state: State) -> None:
        self.samples_drawn = integer(state, "drawn")
        self.source.restore(substate(state, "source"))
        self.buffer.restore(substate(state, "ring"))
