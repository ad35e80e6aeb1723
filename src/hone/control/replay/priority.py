"""Prioritised replay: transitions are sampled in proportion to their priority and recency, with importance weights.

Belongs here: priorities over the rows of any replay buffer (Schaul et al., 2016, 1511.05952). Masses are priorities to
the power of `alpha`; new rows get the largest mass so far, so that each is likely to be sampled once.

With a half-life h a mass is also multiplied by the recency 2^(-a / h) of a row after which a others were added. Recency
says what is to be learnt from, and priorities only how it is sampled: so importance weights lead back to the
expectation under recency alone, w_i = (q_i / P_i)^beta with q_i = r_i / sum(r) and P_i = m_i r_i / sum(m r). Without a
half-life q_i is 1 / N.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.state import State, array, integer, substate

Ints: TypeAlias = NDArray[np.int64]

Floats: TypeAlias = NDArray[np.float64]

# ----------------------------------------------------------------------------------------------------------------- tree


_FAN = 16
"""Children of a node: two cache lines. A node's sum is made of all of them again, so no rounding piles up."""
_BELOW = 1.0 - 2.0**-52
"""A target at the very end of a node's mass is drawn in, or rounding could lead it to a child of mass 0."""
_TOP = 256
"""Nodes that one running sum is made over; no layer is needed above so few."""


class SumTree:
    """`capacity` masses, all 0 at first. The tree is one array, layer after layer, leaves first: layer l is
    `_nodes[_starts[l]:_starts[l + 1]]`."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise DataError(f"a sum tree of {capacity} leaves: it must have at least 1")
        self.capacity = capacity
        sizes = [-(-capacity // _FAN) * _FAN]
        while sizes[-1] > _TOP:
            sizes.append(-(-(sizes[-1] // _FAN) // _FAN) * _FAN)
        self._starts = np.cumsum([0, *sizes]).astype(np.int64)
        self._nodes = np.zeros(int(self._starts[-1]))

    @property
    def masses(self) -> Floats:
        """`[capacity]`, as they stand."""
        return self._nodes[: self.capacity].copy()

    def row_masses(self, rows: Ints) -> Floats:
        """`[n]` of these rows."""
        return self._nodes[rows]

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._nodes[self._starts[-2] : self._starts[-1]].sum())

    def set_masses(self, rows: Ints, masses: Floats) -> None:
        """Set the masses `[n]` of `rows` `[n]`; of a row that comes twice the last counts. Raises DataError for masses
        that are negative or not finite, and for rows outside the tree; then nothing was changed."""
        if len(rows) == 0:
            return
        if not (masses.min() >= 0 and masses.max() < np.inf):  # NaN fails both
            wrong = int(np.flatnonzero(~((masses >= 0) & (masses < np.inf)))[0])
            raise DataError(f"mass {masses[wrong]} of row {rows[wrong]}: masses are finite and not negative")
        if rows.view(np.uint64).max() >= self.capacity:  # as unsigned numbers, negative rows are the largest
            raise DataError(f"rows {rows.min()} .. {rows.max()} of a tree of {self.capacity}")
        nodes = self._nodes
        nodes[rows] = masses
        for low, high in pairwise(self._starts[:-1].tolist()):
            rows = rows // _FAN
            children = nodes[low:high].reshape(-1, _FAN).take(rows, axis=0)
            nodes[high + rows] = children.cumsum(axis=1)[:, -1]

    def find_rows(self, targets: Floats) -> Ints:
        """Row i such that the masses before it add up to at most the target, and with its own to more -> `[n]`.

        Targets lie in [0, total]; a row of mass 0 is never found. Raises DataError for a tree without mass.
        """
        self._require_mass(self.total)
        return self._find(targets)

    def sample_rows(self, count: int, draws: np.random.Generator) -> tuple[Ints, Floats]:
        """`count` rows, one from each of as many equal stretches of the total, and their masses `[n]`.

        A row is expected `count * mass / total` times, as if drawn independently, with less spread.
        """
        total = self.total
        self._require_mass(total)
        targets = (np.arange(count) + draws.random(count)) * (total / count)
        rows = self._find(targets)
        return rows, self._nodes[rows]

    def _find(self, targets: Floats) -> Ints:
        """Leaves `[n]` in whose stretch of the running sum the targets `[n]` in [0, total] lie."""
        nodes, starts = self._nodes, self._starts.tolist()
        running = nodes[starts[-2] : starts[-1]].cumsum()
        left = np.minimum(targets, running[-1] * _BELOW)
        node = running.searchsorted(left, side="right")
        left = left - np.where(node > 0, running[node - 1], 0.0)
        first = np.arange(0, len(targets) * _FAN, _FAN)
        for layer in range(len(starts) - 3, -1, -1):
            low, high = starts[layer], starts[layer + 1]
            left = np.minimum(left, nodes[high + node] * _BELOW)
            below = nodes[low:high].reshape(-1, _FAN).take(node, axis=0).cumsum(axis=1)
            child = (below > left[:, None]).argmax(axis=1)
            left = left - np.where(child > 0, below.ravel()[first + child - 1], 0.0)
            node = node * _FAN + child
        return node

    def _require_mass(self, total: float) -> None:
        if total <= 0:
            raise DataError("the sum tree has no mass to draw from")


# ------------------------------------------------------------------------------------------------------------- priority


class _RowBuffer(Protocol):
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
class _PrioritySample:
    """Last sample of a prioritised buffer."""

    rows: Ints
    """`[n]`."""
    importance_weight: NDArray[np.float32]
    """`[n]` importance weights: (N P(i))^-correction."""
    added: int
    """Rows ever written when it was drawn."""


_EMPTY_SAMPLE = _PrioritySample(rows=np.zeros(0, np.int64), importance_weight=np.zeros(0, np.float32), added=0)


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
    half_life: float = 0.0
    """Rows added after which a row is half as likely to be drawn as a new one of the same priority; 0: age does not
    count."""
    normalise_by_max: bool = False
    """Divide the weights by the batch's largest, as the paper does. The factor depends on the batch, so at a correction
    of 1 the mean is then not unbiased any more."""


_HALVINGS = 256
"""Recency grows from row to row instead of falling with age, so that an addition changes its own rows alone. Beyond
2^256 all masses are multiplied by a power of 2, which rounds none of them; those of a thousand half-lives become 0."""


class PrioritizedSampler:
    """A memory sampled by priority. After `sample`, `last_sample` holds the weights; after the update, call
    `update_priorities`."""

    def __init__(
        self,
        memory: _RowBuffer,
        priorities: PriorityParams = PriorityParams(),
    ) -> None:
        self.buffer = memory
        self.priorities = priorities
        self.tree = SumTree(memory.capacity)
        self.recency = SumTree(memory.capacity) if priorities.half_life else None
        """2^(number / half_life - halvings) of the row that was added as that number."""
        self.halvings = 0
        self.draws = 0
        self.largest = 1.0
        """Largest mass ever given; what newcomers get."""
        self.last_sample = _EMPTY_SAMPLE

    def __len__(self) -> int:
        return len(self.buffer)

    def add(self, episodes: Episodes, numbers: Ints | None = None) -> Ints:
        """Remember, with the largest mass so far -> rows. `numbers` `[n]`: the time of each row, in rows, where this
        memory is one of several; by default rows are counted here. Raises DataError for what the memory does not take.
        """
        rows = self.buffer.add(episodes)
        masses = np.full(len(rows), self.largest)
        if self.recency is not None and len(rows):
            end = self.buffer.added
            masses *= self._new_recency(rows, np.arange(end - len(rows), end) if numbers is None else numbers)
        self.tree.set_masses(rows, masses)
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
        weight = self._weights(rows)
        self.draws += 1
        self.last_sample = _PrioritySample(
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
        self.tree.set_masses(rows, masses if self.recency is None else masses * self.recency.row_masses(rows))

    def forget(self, rows: Ints) -> None:
        """Take the mass from these rows `[n]`: they are not drawn again."""
        for tree in (self.tree, self.recency):
            if tree is not None:
                tree.set_masses(rows, np.zeros(len(rows)))

    def current_beta(self) -> float:
        """Exponent of the weights at the next draw."""
        beta, draws = self.priorities.beta, self.priorities.beta_anneal_draws
        return beta + (1.0 - beta) * (1.0 if draws == 0 else min(1.0, self.draws / draws))

    def state(self) -> State:
        aged: State = {}
        if self.recency is not None:
            aged = {"recency": self.recency.masses[: len(self.buffer)], "halvings": self.halvings}
        return {
            **aged,
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
        if self.recency is not None:
            self.recency.set_masses(np.arange(len(masses)), array(state, "recency").astype(np.float64))
            self.halvings = integer(state, "halvings")
        self.largest = float(array(state, "largest").astype(np.float64)[0])
        self.draws = integer(state, "draws")
        self.last_sample = _EMPTY_SAMPLE

    def _new_recency(self, rows: Ints, numbers: Ints) -> Floats:
        """Recency `[n]` of rows that were written now, the last of `numbers`."""
        assert self.recency is not None
        exponents = numbers[-len(rows) :] / self.priorities.half_life - self.halvings
        excess = int(exponents[-1]) // _HALVINGS * _HALVINGS
        if excess:
            for tree in (self.tree, self.recency):
                tree.set_masses(np.arange(tree.capacity), tree.masses * 2.0**-excess)
            self.halvings += excess
        recency: Floats = np.exp2(exponents - excess)
        self.recency.set_masses(rows, recency)
        return recency

    def _weights(self, rows: Ints) -> Floats:
        masses = self.tree.row_masses(rows)
        if self.recency is None:
            ratio = masses * (len(self.buffer) / self.tree.total)
        else:  # P / q
            ratio = (masses / self.recency.row_masses(rows)) / (self.tree.total / self.recency.total)
        weight = ratio ** -self.current_beta()
        return weight / weight.max() if self.priorities.normalise_by_max else weight
