"""Demonstrations mixed into experience at a fixed ratio (Ball et al., 2023, 2302.02948; DQfD, 2018)."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from hone.core.episodes import Episodes, concatenate
from hone.core.errors import ConfigError, DataError
from hone.core.random import generator
from hone.core.state import State, integer, substate
from hone.run.loop import SourceWrapper


class ReplayBuffer(Protocol):
    """Replay buffer of transitions or steps, by priority or not, or of whole episodes."""

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


class DemonstrationMixer:
    """Sampler that draws a fixed share from demonstrations; new experience goes to `lived` alone.

    A sample holds the demonstrations first. Fractions are carried over: a share of 0.1 of 32 is 3, 3, 3, 3, 4, ...
    """

    def __init__(self, lived: ReplayBuffer, demonstrations: ReplayBuffer, *, share: float) -> None:
        self.online = lived
        self.demonstrations = demonstrations
        self.share = share
        self.sampled = 0
        """Transitions handed out."""

    def __len__(self) -> int:
        return len(self.online)

    def add(self, episodes: Episodes) -> object:
        return self.online.add(episodes)

    def demonstration_count(self, count: int) -> int:
        """Number of demonstrations among the next `count` transitions."""
        return int((self.sampled + count) * self.share) - int(self.sampled * self.share)

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """Raises ConfigError for a share outside [0, 1]."""
        if not 0 <= self.share <= 1:
            raise ConfigError(f"the share of demonstrations is {self.share}, expected 0 .. 1")
        shown = self.demonstration_count(count)
        self.sampled += count
        parts: list[Episodes] = []
        if shown:
            parts.append(self.demonstrations.sample(shown, draws))
        if count > shown:
            parts.append(self.online.sample(count - shown, draws))
        return concatenate(parts)

    def state(self) -> State:
        """Demonstrations are read anew; of them only the number is kept."""
        return {"handed": self.sampled, "demonstrations": len(self.demonstrations), "lived": self.online.state()}

    def restore(self, state: State) -> None:
        """Raises DataError where there are not as many demonstrations as there were."""
        if integer(state, "demonstrations") != len(self.demonstrations):
            raise DataError(
                f"the saved run had {state['demonstrations']} demonstrations, there are {len(self.demonstrations)} now"
            )
        self.sampled = integer(state, "handed")
        self.online.restore(substate(state, "lived"))


# --------------------------------------------------------------------------------------------------------------- source


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
