"""Prioritised replay: transitions are sampled in proportion to their priority, with importance weights.

Belongs here: priorities over the rows of any replay buffer (Schaul et al., 2016, 1511.05952). Masses are priorities to
the power of `exponent`; new rows get the largest mass so far, so that each is likely to be sampled once.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.control.replay.kernels import SumTreeKernels
from hone.control.replay.tree import SumTree
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.state import State, array, integer, substate

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class RowBuffer(Protocol):
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

    def is_complete(self, rows: Ints) -> NDArray[np.bool_]:
        """`[n]` rows of which nothing was forgotten that `take` needs."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PrioritySample:
    """Last sample of a prioritised buffer."""

    rows: Ints
    """`[n]`."""
    importance_weight: NDArray[np.float32]
    """`[n]` importance weights: (N P(i))^-correction."""
    added: int
    """Rows ever written when it was drawn."""


EMPTY_SAMPLE = PrioritySample(rows=np.zeros(0, np.int64), importance_weight=np.zeros(0, np.float32), added=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityParams:
    """The numbers of the paper."""

    alpha: float = 0.6
    """0: uniform; 1: in proportion to the error."""
    beta: float = 0.4
    """Exponent of the importance weights at the first draw; at 1 they undo the bias wholly."""
    beta_anneal_draws: int = 100_000
    """Draws after which the correction has grown to 1, evenly."""
    epsilon: float = 1e-6
    """Added to errors, so that nothing is forgotten for ever."""
    normalise_by_max: bool = False
    """Divide the weights by the batch's largest, as the paper does. The factor depends on the batch, so at a correction
    of 1 the mean is then not unbiased any more."""


class PrioritizedSampler:
    """A memory sampled by priority. After `sample`, `drawn` holds the weights; after the update, call `learn`."""

    def __init__(
        self,
        memory: RowBuffer,
        priorities: PriorityParams = PriorityParams(),
        *,
        using: SumTreeKernels | None = None,
    ) -> None:
        self.buffer = memory
        self.priorities = priorities
        self.tree = SumTree(memory.capacity, kernels=using)
        self.draws = 0
        self.largest = 1.0
        """Largest mass ever given; what newcomers get."""
        self.last_sample = EMPTY_SAMPLE

    def __len__(self) -> int:
        return len(self.buffer)

    def add(self, episodes: Episodes) -> Ints:
        """Remember, with the largest mass so far -> rows. Raises DataError for what the memory does not take."""
        rows = self.buffer.add(episodes)
        self.tree.set_masses(rows, np.full(len(rows), self.largest))
        return rows

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` rows in proportion to their masses, one from each equal stretch of the total."""
        if len(self.buffer) == 0:
            raise DataError("the prioritised memory is empty: nothing was collected yet")
        rows, _ = self.tree.sample_rows(count, draws)
        whole = self.buffer.is_complete(rows)
        for _ in range(100):
            if whole.all():
                break
            rows[~whole] = self.tree.sample_rows(int(np.count_nonzero(~whole)), draws)[0]
            whole = self.buffer.is_complete(rows)
        else:
            raise DataError(f"{np.count_nonzero(~whole)} of {count} drawn rows lack their history: enlarge the memory")
        weight = self._weights(self.tree.row_masses(rows))
        self.draws += 1
        self.last_sample = PrioritySample(
            rows=rows, importance_weight=weight.astype(np.float32), added=self.buffer.added
        )
        return self.buffer.take(rows)

    def update_priorities(self, errors: NDArray[np.floating]) -> None:
        """Give the rows last drawn the priorities |error| + floor `[n]`.

        Rows that were overwritten in between keep the mass of who lives there now. Raises DataError for another number
        of errors, or errors that are not finite: then no priority was changed.
        """
        drawn = self.last_sample
        if errors.shape != drawn.rows.shape:
            raise DataError(f"{list(errors.shape)} errors for {len(drawn.rows)} drawn rows")
        size = np.abs(errors.astype(np.float64))
        if not size.max(initial=0.0) < np.inf:
            wrong = int(np.flatnonzero(~np.isfinite(size))[0])
            raise DataError(f"error {errors[wrong]} of drawn row {drawn.rows[wrong]} is not finite")
        masses = (size + self.priorities.epsilon) ** self.priorities.alpha
        rows, since = drawn.rows, self.buffer.added - drawn.added
        if since:
            kept = (rows - drawn.added) % self.buffer.capacity >= since
            rows, masses = rows[kept], masses[kept]
        self.largest = max(self.largest, float(masses.max(initial=0.0)))
        self.tree.set_masses(rows, masses)

    def current_beta(self) -> float:
        """Exponent of the weights at the next draw."""
        given = self.priorities
        share = 1.0 if given.beta_anneal_draws == 0 else min(1.0, self.draws / given.beta_anneal_draws)
        return given.beta + (1.0 - given.beta) * share

    def state(self) -> State:
        return {
            "memory": self.buffer.state(),
            "masses": self.tree.masses[: len(self.buffer)],
            "largest": np.array([self.largest]),
            "draws": self.draws,
        }

    def restore(self, state: State) -> None:
        """Raises DataError for the state of another memory."""
        self.buffer.restore(substate(state, "memory"))
        masses = array(state, "masses").astype(np.float64)
        if len(masses) != len(self.buffer):
            raise DataError(f"{len(masses)} saved priorities for {len(self.buffer)} rows")
        self.tree.set_masses(np.arange(len(masses)), masses)
        self.largest = float(array(state, "largest").astype(np.float64)[0])
        self.draws = integer(state, "draws")
        self.last_sample = EMPTY_SAMPLE

    def _weights(self, masses: Floats) -> Floats:
        chance = masses * (len(self.buffer) / self.tree.total)
        weight = chance ** -self.current_beta()
        return weight / weight.max() if self.priorities.normalise_by_max else weight
