"""A tabular model of the environment: counts of next states and mean rewards of each pair of state and action.

Dyna and prioritised sweeping plan with it; their loops are in `kernels.py`.
"""

from typing import NamedTuple

import numpy as np

from hone.control.tables.kernels import Floats, Ints
from hone.core.state import State, array, integer


class _ModelArrays(NamedTuple):
    """Arrays of the model for the compiled loops. D is the largest number of outcomes of a pair."""

    taken_cells: Ints
    """`[P]` cells of the visited pairs, in the order of their first visit."""
    next_cell: Ints
    """`[K, D]` cell of the first action in the next state."""
    reward: Floats
    """`[K, D]` mean reward."""
    discount: Floats
    """`[K, D]` discount; 0 at terminal states."""
    counts: Ints
    """`[K, D]` count of the outcome."""
    visits: Ints
    """`[K]` count of the pair."""
    first_predecessor: Ints
    """`[S]` first entry that leads to each state; -1: none. An entry is cell * D + slot."""
    link: Ints
    """`[K * D]` the next entry that leads to the same state; -1: none."""


class TabularModel:
    """Counts of outcomes of `cells` pairs, `actions` per state; one outcome per pair if deterministic."""

    def __init__(self, cells: int, actions: int) -> None:
        self.actions = actions
        self.taken = 0
        """Number of visited pairs."""
        self.known = np.zeros(cells, dtype=np.int64)
        self.total = np.zeros(cells, dtype=np.int64)
        self.ahead = np.zeros((cells, 1), dtype=np.int64)
        self.reward = np.zeros((cells, 1))
        self.factor = np.zeros((cells, 1))
        self.times = np.zeros((cells, 1), dtype=np.int64)
        self.head, self.link = self._linked()

    def observe(self, cell: Ints, ahead: Ints, reward: Floats, factor: Floats) -> None:
        """Add outcomes `[N]` of pairs; at terminal states the next observation is ignored."""
        ahead = np.where(factor == 0.0, 0, ahead)
        kinds, first, kind = np.unique(
            np.stack((cell, ahead, factor == 0.0)), axis=1, return_index=True, return_inverse=True
        )
        times = np.bincount(kind)
        paid = np.bincount(kind, weights=reward)
        for place in np.argsort(first):  # in the order in which they came
            row = int(kinds[0, place])
            slot = self._slot(row, int(ahead[first[place]]), float(factor[first[place]]))
            known = int(self.times[row, slot]) + int(times[place])
            self.reward[row, slot] += (paid[place] - times[place] * self.reward[row, slot]) / known
            self.times[row, slot] = known
            if self.total[row] == 0:
                self.known[self.taken] = row
                self.taken += 1
            self.total[row] += times[place]

    def arrays(self) -> _ModelArrays:
        """Arrays of the current model; they share memory with it."""
        return _ModelArrays(
            taken_cells=self.known[: self.taken], next_cell=self.ahead, reward=self.reward, discount=self.factor,
            counts=self.times,
            visits=self.total, first_predecessor=self.head, link=self.link,
        )  # fmt: skip

    def expected_backup(self, x: Floats, cells: Ints) -> Floats:
        """Expected r + factor * max over actions of x, of visited pairs `[n]` -> `[n]`."""
        beyond = x[self.ahead[cells][..., None] + np.arange(self.actions)].max(axis=-1)
        share = self.times[cells] / self.total[cells][:, None]
        return (share * (self.reward[cells] + self.factor[cells] * beyond)).sum(axis=1)

    def state(self) -> State:
        return {
            "taken": self.taken,
            "known": self.known,
            "total": self.total,
            "ahead": self.ahead,
            "reward": self.reward,
            "factor": self.factor,
            "times": self.times,
        }

    def restore(self, state: State) -> None:
        self.taken = integer(state, "taken")
        self.known, self.total = array(state, "known").astype(np.int64), array(state, "total").astype(np.int64)
        self.ahead, self.times = array(state, "ahead").astype(np.int64), array(state, "times").astype(np.int64)
        self.reward, self.factor = array(state, "reward").astype(np.float64), array(state, "factor").astype(np.float64)
        self.head, self.link = self._linked()

    def _slot(self, row: int, ahead: int, factor: float) -> int:
        """Slot of this outcome of the pair; a new one if it is the first of its kind."""
        for slot in range(self.times.shape[1]):
            if self.times[row, slot] == 0:
                self._place(row, slot, ahead, factor)
                return slot
            if self.ahead[row, slot] == ahead and self.factor[row, slot] == factor:
                return slot
        slots = self.times.shape[1]
        more = ((0, 0), (0, slots))
        self.ahead, self.times = np.pad(self.ahead, more), np.pad(self.times, more)
        self.reward, self.factor = np.pad(self.reward, more), np.pad(self.factor, more)
        self.head, self.link = self._linked()
        self._place(row, slots, ahead, factor)
        return slots

    def _place(self, row: int, slot: int, ahead: int, factor: float) -> None:
        self.ahead[row, slot], self.factor[row, slot] = ahead, factor
        if factor != 0.0:
            state, entry = ahead // self.actions, row * self.times.shape[1] + slot
            self.link[entry] = self.head[state]
            self.head[state] = entry

    def _linked(self) -> tuple[Ints, Ints]:
        """Predecessors: for each state the entries that lead to it, as lists within two arrays."""
        head = np.full(len(self.total) // self.actions, -1, dtype=np.int64)
        link = np.full(self.times.size, -1, dtype=np.int64)
        for entry in np.flatnonzero((self.times > 0) & (self.factor != 0.0)):
            state = self.ahead.flat[entry] // self.actions
            link[entry] = head[state]
            head[state] = entry
        return head, link
