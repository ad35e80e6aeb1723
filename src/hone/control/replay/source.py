"""Replay sources: transitions of another source are stored in a replay buffer and sampled from it."""

from dataclasses import dataclass
from typing import TypeVar

from hone.control.replay.mixed import ReplayBuffer
from hone.core.episodes import Episodes, concatenate
from hone.core.random import generator
from hone.core.state import State, integer, substate
from hone.run.loop import SourceWrapper

P = TypeVar("P")


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
