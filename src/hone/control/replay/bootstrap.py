"""Bootstrap samples for an ensemble: each member sees its own resample of one memory (Efron, 1979; online: Oza, 2001).

Belongs here: which transition counts how often for which member, and the running mean and spread of what is
remembered. How often is a Poisson(1) draw, a function of (seed, number of the transition, member): it depends on no
order of adding, and nothing of it is saved.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hone.control.replay.ring import RingBuffer
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.ragged import Ints
from hone.core.random import generator
from hone.core.state import State, array, integer, substate

Floats = NDArray[np.float64]
BLOCK = 1024
"""Transitions whose draws come from one generator."""
MOST = 4
"""A transition counts at most this often; Poisson(1) is above it once in 273."""


@dataclass
class ColumnStatistics:
    """Running mean and variance of columns (Welford, 1962; merged as Chan et al., 1979)."""

    count: int = 0
    mean: Floats = field(default_factory=lambda: np.zeros(0))
    squares: Floats = field(default_factory=lambda: np.zeros(0))
    """Sum of squared distances from the mean."""

    def add(self, rows: Floats) -> None:
        """`[n, d]`"""
        if not len(rows):
            return
        if not self.count:
            self.mean, self.squares = (np.zeros(rows.shape[1], np.float64) for _ in range(2))
        mean: Floats = rows.mean(axis=0)
        total = self.count + len(rows)
        gap: Floats = mean - self.mean
        self.squares = self.squares + ((rows - mean) ** 2).sum(axis=0) + gap * gap * self.count * len(rows) / total
        self.mean = self.mean + gap * len(rows) / total
        self.count = total

    @property
    def std(self) -> Floats:
        """`[d]` of a population; 1 for a column that never varied."""
        std = np.sqrt(self.squares / max(self.count, 1))
        return np.where(std > 1e-6, std, 1.0)

    def state(self) -> State:
        return {"count": self.count, "mean": self.mean.copy(), "squares": self.squares.copy()}

    def restore(self, state: State) -> None:
        self.count = integer(state, "count")
        self.mean = array(state, "mean").astype(np.float64)
        self.squares = array(state, "squares").astype(np.float64)


@dataclass
class BootstrapBuffer:
    """A ring whose samples are laid out by member: of `count` transitions, the first `count / members` are the first
    member's."""

    ring: RingBuffer
    members: int
    seed: int
    inputs: ColumnStatistics = field(default_factory=ColumnStatistics)
    """Statistics of `[observation, action]`."""
    targets: ColumnStatistics = field(default_factory=ColumnStatistics)
    """Statistics of `[change of the observation, reward]`."""

    def __post_init__(self) -> None:
        self._weights = np.zeros((0, self.members), dtype=np.uint8)
        """Weights of the transitions ever added."""

    def __len__(self) -> int:
        return len(self.ring)

    def add(self, episodes: Episodes) -> Ints:
        steps = episodes.transitions()
        assert steps.final is not None
        count = len(steps)
        before, after = (side.reshape(count, -1).astype(np.float64) for side in (steps.observations, steps.final))
        self.inputs.add(np.concatenate((before, steps.chosen.reshape(count, -1).astype(np.float64)), axis=1))
        self.targets.add(np.concatenate((after - before, steps.reward[:, None].astype(np.float64)), axis=1))
        return self.ring.add(steps)

    def weights(self, numbers: Ints) -> NDArray[np.uint8]:
        """Bootstrap weights of the transitions with `numbers` `[n]` for each member -> `[n, members]`."""
        while len(self._weights) <= int(numbers.max(initial=-1)):
            block = len(self._weights) // BLOCK
            drawn = generator(self.seed, "bootstrap", block).poisson(1.0, (BLOCK, self.members))
            self._weights = np.concatenate((self._weights, np.minimum(drawn, MOST).astype(np.uint8)))
        return self._weights[numbers]

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` transitions, each member's drawn by its own weights, with replacement.

        A member for which nothing counts yet sees everything. Raises ConfigError where `count` has no equal shares.
        """
        share, rest = divmod(count, self.members)
        if rest:
            raise ConfigError(f"{count} transitions cannot be shared by {self.members} members")
        size = len(self.ring)
        rows = np.arange(size)
        wrapped = (self.ring.added - 1 - rows) // self.ring.capacity * self.ring.capacity
        ladder = self.weights(rows + wrapped).astype(np.int64).cumsum(axis=0)
        luck = draws.random((self.members, share))
        picked = np.empty((self.members, share), dtype=np.int64)
        for member in range(self.members):
            total = int(ladder[-1, member])
            rungs = ladder[:, member] if total else rows + 1
            picked[member] = np.searchsorted(rungs, luck[member] * (total or size), side="right")
        return self.ring.take(picked.ravel())

    def state(self) -> State:
        return {"ring": self.ring.state(), "inputs": self.inputs.state(), "changes": self.targets.state()}

    def restore(self, state: State) -> None:
        """Raises DataError where the ring does not fit."""
        self.ring.restore(substate(state, "ring"))
        self.inputs.restore(substate(state, "inputs"))
        self.targets.restore(substate(state, "changes"))
