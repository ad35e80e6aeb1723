"""Prioritised replay: what surprised is lived through again more often, and counts for less each time.

Belongs here: priorities over the rows of any memory (Schaul et al., 2016, 1511.05952). Masses are priorities to the
power of `exponent`; newcomers get the largest mass so far, so that each is likely to be seen once.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.state import State, array, integer, substate
from hone.replay.kernels import Kernels
from hone.replay.tree import SumTree

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class Rows(Protocol):
    """A memory whose rows can be named."""

    capacity: int
    added: int
    """Rows ever written; the next goes to `added % capacity`."""

    def __len__(self) -> int: ...

    def add(self, episodes: Episodes) -> Ints:
        """Remember; the rows that were written, in order."""
        ...

    def take(self, rows: Ints) -> Episodes:
        """These rows `[n]` as episodes of one decision."""
        ...

    def whole(self, rows: Ints) -> NDArray[np.bool_]:
        """`[n]` rows of which nothing was forgotten that `take` needs."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What was last drawn."""

    rows: Ints
    """`[n]`."""
    weight: NDArray[np.float32]
    """`[n]` importance weights: (N P(i))^-correction."""
    added: int
    """Rows ever written when it was drawn."""


NOTHING = Drawn(rows=np.zeros(0, np.int64), weight=np.zeros(0, np.float32), added=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priorities:
    """The numbers of the paper."""

    exponent: float = 0.6
    """0: uniform; 1: in proportion to the error."""
    correction: float = 0.4
    """Exponent of the importance weights at the first draw; at 1 they undo the bias wholly."""
    corrected_after: int = 100_000
    """Draws after which the correction has grown to 1, evenly."""
    floor: float = 1e-6
    """Added to errors, so that nothing is forgotten for ever."""
    by_largest: bool = False
    """Divide the weights by the batch's largest, as the paper does. The factor depends on the batch, so at a correction
    of 1 the mean is then not unbiased any more."""


class Prioritised:
    """A memory sampled by priority. After `sample`, `drawn` holds the weights; after the update, call `learn`."""

    def __init__(
        self,
        memory: Rows,
        priorities: Priorities = Priorities(),
        *,
        using: Kernels | None = None,
    ) -> None:
        self.memory = memory
        self.priorities = priorities
        self.tree = SumTree(memory.capacity, using=using)
        self.draws = 0
        self.largest = 1.0
        """Largest mass ever given; what newcomers get."""
        self.drawn = NOTHING

    def __len__(self) -> int:
        return len(self.memory)

    def add(self, episodes: Episodes) -> Ints:
        """Remember, with the largest mass so far -> rows. Raises DataError for what the memory does not take."""
        rows = self.memory.add(episodes)
        self.tree.change(rows, np.full(len(rows), self.largest))
        return rows

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` rows in proportion to their masses, one from each equal stretch of the total."""
        if len(self.memory) == 0:
            raise DataError("the prioritised memory is empty: nothing was collected yet")
        rows, _ = self.tree.draw(count, draws)
        whole = self.memory.whole(rows)
        for _ in range(100):
            if whole.all():
                break
            rows[~whole] = self.tree.draw(int(np.count_nonzero(~whole)), draws)[0]
            whole = self.memory.whole(rows)
        else:
            raise DataError(f"{np.count_nonzero(~whole)} of {count} drawn rows lack their history: enlarge the memory")
        weight = self._weights(self.tree.masses_of(rows))
        self.draws += 1
        self.drawn = Drawn(rows=rows, weight=weight.astype(np.float32), added=self.memory.added)
        return self.memory.take(rows)

    def learn(self, errors: NDArray[np.floating]) -> None:
        """Give the rows last drawn the priorities |error| + floor `[n]`.

        Rows that were overwritten in between keep the mass of who lives there now. Raises DataError for another number
        of errors, or errors that are not finite: then no priority was changed.
        """
        drawn = self.drawn
        if errors.shape != drawn.rows.shape:
            raise DataError(f"{list(errors.shape)} errors for {len(drawn.rows)} drawn rows")
        size = np.abs(errors.astype(np.float64))
        if not size.max(initial=0.0) < np.inf:
            wrong = int(np.flatnonzero(~np.isfinite(size))[0])
            raise DataError(f"error {errors[wrong]} of drawn row {drawn.rows[wrong]} is not finite")
        masses = (size + self.priorities.floor) ** self.priorities.exponent
        rows, since = drawn.rows, self.memory.added - drawn.added
        if since:
            kept = (rows - drawn.added) % self.memory.capacity >= since
            rows, masses = rows[kept], masses[kept]
        self.largest = max(self.largest, float(masses.max(initial=0.0)))
        self.tree.change(rows, masses)

    def correction(self) -> float:
        """Exponent of the weights at the next draw."""
        given = self.priorities
        share = 1.0 if given.corrected_after == 0 else min(1.0, self.draws / given.corrected_after)
        return given.correction + (1.0 - given.correction) * share

    def state(self) -> State:
        return {
            "memory": self.memory.state(),
            "masses": self.tree.masses[: len(self.memory)],
            "largest": np.array([self.largest]),
            "draws": self.draws,
        }

    def restore(self, state: State) -> None:
        """Raises DataError for the state of another memory."""
        self.memory.restore(substate(state, "memory"))
        masses = array(state, "masses").astype(np.float64)
        if len(masses) != len(self.memory):
            raise DataError(f"{len(masses)} saved priorities for {len(self.memory)} rows")
        self.tree.change(np.arange(len(masses)), masses)
        self.largest = float(array(state, "largest").astype(np.float64)[0])
        self.draws = integer(state, "draws")
        self.drawn = NOTHING

    def _weights(self, masses: Floats) -> Floats:
        chance = masses * (len(self.memory) / self.tree.total)
        weight = chance ** -self.correction()
        return weight / weight.max() if self.priorities.by_largest else weight
