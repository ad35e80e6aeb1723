"""Replay buffer of linked steps: n-step transitions and stacked frames, each observation stored once.

A step points at the next one of its episode; only where nothing follows (yet) is the final observation kept beside it.
So a window can neither cross into another episode nor take a reset for a final observation, and no step of an episode
is left out.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.control.replay.ring import require_same_columns
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes, column_table
from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.core.state import State, array, integer, substate

Array: TypeAlias = NDArray[np.generic]
Flags: TypeAlias = NDArray[np.bool_]
NONE = -1
"""Marks a missing step or slot."""


class StepBuffer:
    """Replay buffer of the newest `capacity` steps; `take` makes transitions of up to `n_steps` steps.

    `frames` > 1: observations are the newest `frames` ones of the episode, oldest first, on a new axis after the rows;
    before an episode's begin its first is repeated.
    """

    def __init__(self, capacity: int, *, n_steps: int = 1, discount: float = 1.0, frames: int = 1) -> None:
        self.capacity = capacity
        self.n_steps = n_steps
        self.discount = discount
        self.frames = frames
        self.added = 0
        """Steps ever added; their numbers count on. Step k lives in row `k % capacity`."""
        self.bootstrap_discount = np.zeros(0, dtype=np.float32)
        """`[n]` discount^(steps covered) of the rows last taken, 0 where the environment terminated."""
        self._columns: dict[str, Array] = {}
        self._ahead = np.full(capacity, NONE, dtype=np.int64)
        self._behind = np.full(capacity, NONE, dtype=np.int64)
        self._ends = np.zeros((2, capacity), dtype=np.bool_)
        self._slot = np.full(capacity, NONE, dtype=np.int64)
        """Row in `_finals` of the observation after a step that nothing follows."""
        self._finals: Array = np.zeros(0)
        self._final_masks: Flags = np.zeros((0, 0), np.bool_)
        """Masks of the rows of `_finals`; without rows where the episodes have none."""
        self._free = np.zeros(0, dtype=np.int64)
        self._open = np.zeros((2, 0), dtype=np.int64)
        """Groups of the episodes that may go on, and the numbers of their newest steps."""

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, episodes: Episodes) -> Ints:
        """Store pieces of episodes (the last `capacity` steps); a piece continues the one of the same `group` that was
        cut -> rows.

        A piece that does not begin with the final observation of the one before begins anew. Raises DataError for
        episodes without scores or final observations, or with other columns, shapes or types than before.
        """
        if episodes.final is None or not episodes.scored.all():
            raise DataError("a step buffer holds scored episodes with their final observations")
        if (episodes.mask is None) != (episodes.final_mask is None):
            raise DataError("the episodes have only one of the columns mask and final_mask: both or none are needed")
        count = episodes.decisions
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        incoming = _columns_of(episodes)
        self._require_fit(incoming, episodes.final)
        pieces = np.flatnonzero(episodes.lengths > 0)
        number = np.arange(self.added, self.added + count)
        last = number[episodes.offsets[1:][pieces] - 1]
        ahead, behind = number + 1, number - 1
        ahead[last - self.added], behind[episodes.offsets[:-1][pieces]] = NONE, NONE
        before, after = self._joints(episodes, pieces)
        behind[after - self.added] = before
        inside = before >= self.added
        ahead[before[inside] - self.added] = after[inside]
        ends = np.zeros((2, count), dtype=np.bool_)
        ends[:, last - self.added] = episodes.terminated[pieces], episodes.truncated[pieces]
        self.added += count
        rows = number[-self.capacity :] % self.capacity
        self._release(rows)
        for name, column in incoming.items():
            self._columns[name][rows] = column[-self.capacity :]
        self._ahead[rows], self._behind[rows] = ahead[-self.capacity :], behind[-self.capacity :]
        self._ends[:, rows] = ends[:, -self.capacity :]
        older = ~inside & (before >= self.added - self.capacity)
        self._ahead[before[older] % self.capacity] = after[older]
        self._release(before[older] % self.capacity)
        alone = (ahead[last - number[0]] == NONE) & (last >= self.added - self.capacity)
        masks = None if episodes.final_mask is None else episodes.final_mask[pieces[alone]]
        self._keep(last[alone] % self.capacity, episodes.final[pieces[alone]], masks)
        return rows

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        """`count` transitions, uniformly with replacement from those whose frames are still there."""
        if self.added == 0:
            raise DataError("the step buffer is empty: nothing was collected yet")
        rows = draws.integers(0, len(self), count)
        for _ in range(100):
            whole = self.is_complete(rows)
            if whole.all():
                return self.take(rows)
            rows[~whole] = draws.integers(0, len(self), int(np.count_nonzero(~whole)))
        raise DataError(f"hardly a step still has its {self.frames} frames: enlarge the buffer of {self.capacity}")

    def take(self, rows: Ints) -> Episodes:
        """Transitions that begin with these rows `[n]`, as episodes of one decision; sets `bootstrap_discount`.

        reward = r_0 + discount r_1 + ... over up to `n_steps` steps of the episode; `final` is the observation after
        them, and the flags are those of the last step. Fewer steps are covered where the episode ends, or where the
        next steps are not known yet.
        """
        reward = self._columns["reward"][rows].astype(np.float64)
        last, span = rows, np.ones(len(rows), dtype=np.int64)
        for step in range(1, self.n_steps):
            goes_on = self._ahead[last] != NONE
            last = np.where(goes_on, self._ahead[last] % self.capacity, last)
            reward += np.where(goes_on, self.discount**step * self._columns["reward"][last].astype(np.float64), 0.0)
            span += goes_on
        terminated = self._ends[0, last]
        self.bootstrap_discount = np.where(terminated, 0.0, self.discount**span).astype(np.float32)
        named = {name: column[rows] for name, column in self._columns.items() if name not in {"seen", "reward"}}
        made = {
            "seen": self._columns["seen"][self._window(rows) if self.frames > 1 else rows],
            "reward": reward.astype(np.float32),
            "terminated": terminated,
            "truncated": self._ends[1, last] & ~terminated,
            "final": self._seen_after(last),
        }
        if "mask" in self._columns:
            made["final_mask"] = self._after(last, self._columns["mask"], self._final_masks)
        return Episodes.from_columns(np.arange(len(rows) + 1, dtype=np.int64), {**named, **made})

    def credit(self, episodes: Episodes, values: Values) -> Credits:
        """Parts of the n-step target of the rows last taken: reward + bootstrap_discount * V(final) (Sutton, 1988).

        Raises DataError for other episodes than those.
        """
        del values
        if len(self.bootstrap_discount) != episodes.decisions:
            raise DataError(
                f"{episodes.decisions} transitions to credit, but {len(self.bootstrap_discount)} were taken last"
            )
        return Credits(advantage=episodes.reward, discount=self.bootstrap_discount)

    def is_complete(self, rows: Ints) -> Flags:
        """`[n]` whether all frames of a row are still there."""
        known, current = np.ones(len(rows), dtype=np.bool_), rows
        for _ in range(self.frames - 1):
            behind = self._behind[current]
            known &= (behind == NONE) | (behind >= self.added - self.capacity)
            current = np.where(behind >= max(0, self.added - self.capacity), behind % self.capacity, current)
        return known

    def state(self) -> State:
        """Rows in use, their links, and the final observations where nothing follows."""
        used = len(self)
        tails = np.flatnonzero(self._slot[:used] != NONE)
        return {
            "added": self.added,
            "capacity": self.capacity,
            "columns": {name: column[:used].copy() for name, column in self._columns.items()},
            "ahead": self._ahead[:used].copy(),
            "behind": self._behind[:used].copy(),
            "ends": self._ends[:, :used].copy(),
            "tails": tails,
            "finals": self._finals[self._slot[tails]],
            **({"final masks": self._final_masks[self._slot[tails]]} if "mask" in self._columns else {}),
            "open": self._open.copy(),
        }

    def restore(self, state: State) -> None:
        """Raises DataError for the state of another capacity."""
        if integer(state, "capacity") != self.capacity:
            raise DataError(f"the saved buffer holds {state['capacity']} steps, this one {self.capacity}")
        self.added = integer(state, "added")
        used = len(self)
        self._columns = {}
        for name in substate(state, "columns"):
            saved = array(substate(state, "columns"), name)
            self._columns[name] = np.zeros((self.capacity, *saved.shape[1:]), saved.dtype)
            self._columns[name][:used] = saved
        self._ahead[:used] = array(state, "ahead").astype(np.int64)
        self._behind[:used] = array(state, "behind").astype(np.int64)
        self._ends[:, :used] = array(state, "ends").astype(np.bool_)
        self._slot[:] = NONE
        finals = array(state, "finals")
        masks = array(state, "final masks").astype(np.bool_) if "final masks" in state else None
        self._finals, self._free = finals[:0].copy(), np.zeros(0, dtype=np.int64)
        self._final_masks = np.zeros((0, 0), np.bool_) if masks is None else masks[:0].copy()
        self._keep(array(state, "tails").astype(np.int64), finals, masks)
        self._open = array(state, "open").astype(np.int64)
        self.bootstrap_discount = np.zeros(0, dtype=np.float32)

    def _joints(self, episodes: Episodes, pieces: Ints) -> tuple[Ints, Ints]:
        """Numbers of the steps after which an episode goes on, and of those with which it does; remembers what is open.

        Entries are the open episodes, then the new pieces, brought together by group in the order of time.
        """
        first, last = episodes.offsets[:-1][pieces] + self.added, episodes.offsets[1:][pieces] - 1 + self.added
        final = episodes.final
        assert final is not None
        held = self._open[:, self._open[1] >= self.added - self.capacity]
        count = held.shape[1]
        group = np.concatenate([held[0], episodes.group[pieces]])
        end = np.concatenate([held[1], last])
        goes_on = np.ones(len(group), dtype=np.bool_)
        goes_on[count:] = ~(episodes.terminated | episodes.truncated)[pieces]
        order = np.argsort(group, kind="stable")
        one, next_one = order[:-1], order[1:]
        same = group[one] == group[next_one]
        newest = order[np.append(~same, True)]
        one, next_one = one[same & goes_on[one]], next_one[same & goes_on[one]] - count
        begun = episodes.observations[episodes.offsets[:-1][pieces]][next_one]
        seen_last = np.empty_like(begun)
        old = one < count
        seen_last[old] = self._finals[self._slot[end[one[old]] % self.capacity]] if old.any() else 0
        seen_last[~old] = final[pieces[one[~old] - count]]
        fits = (begun == seen_last).reshape(len(one), -1).all(axis=1) if len(one) else np.zeros(0, np.bool_)
        self._open = np.stack([group, end])[:, newest[goes_on[newest]]]
        return end[one[fits]], first[next_one[fits]]

    def _seen_after(self, rows: Ints) -> Array:
        """Next observations of these rows, with their frames."""
        newest = self._after(rows, self._columns["seen"], self._finals)
        if self.frames == 1:
            return newest
        earlier = self._columns["seen"][self._window(rows)[:, 1:]]
        return np.concatenate([earlier, newest[:, None]], axis=1)

    def _after(self, rows: Ints, column: Array, finals: Array) -> Array:
        """`column` of the steps after these rows; its entry of `finals` where nothing follows."""
        ahead = self._ahead[rows]
        alone = ahead == NONE
        after = column[np.where(alone, 0, ahead) % self.capacity]
        after[alone] = finals[self._slot[rows[alone]]]
        return after

    def _window(self, rows: Ints) -> Ints:
        """`[n, frames]` rows of the frames, oldest first."""
        window = np.empty((len(rows), self.frames), dtype=np.int64)
        window[:, -1] = rows
        oldest = max(0, self.added - self.capacity)
        for place in range(self.frames - 2, -1, -1):
            behind = self._behind[window[:, place + 1]]
            window[:, place] = np.where(behind >= oldest, behind % self.capacity, window[:, place + 1])
        return window

    def _release(self, rows: Ints) -> None:
        """Free the final observations of these rows."""
        slots = self._slot[rows]
        self._free = np.concatenate([self._free, slots[slots != NONE]])
        self._slot[rows] = NONE

    def _keep(self, rows: Ints, finals: Array, masks: Flags | None) -> None:
        """Keep the final observations of these rows, and their masks."""
        missing = len(rows) - len(self._free)
        if missing > 0:
            held = len(self._finals)
            size = max(2 * held, held + missing, 64)
            self._finals = _grown(self._finals, size, finals)
            if masks is not None:
                self._final_masks = _grown(self._final_masks, size, masks).astype(np.bool_)
            self._free = np.concatenate([self._free, np.arange(held, size)])
        slots, self._free = self._free[: len(rows)], self._free[len(rows) :]
        self._finals[slots] = finals
        if masks is not None:
            self._final_masks[slots] = masks
        self._slot[rows] = slots

    def _require_fit(self, incoming: dict[str, Array], final: Array) -> None:
        if not self._columns:
            self._columns = {
                name: np.zeros((self.capacity, *column.shape[1:]), column.dtype) for name, column in incoming.items()
            }
            self._finals = np.zeros((0, *final.shape[1:]), final.dtype)
        require_same_columns(incoming, self._columns)


def _columns_of(episodes: Episodes) -> dict[str, Array]:
    """Every column by decision; a step's end is stored apart, and all steps are scored. `memory` is left out: it is
    known before the first decision of a piece only; and `state`: a critic that sees everything learns from rollouts."""
    table, owner = column_table(), episodes.owner
    return {
        name: values if table[name].unit == "decision" else values[owner]
        for name, values in episodes.columns().items()
        if name not in {"terminated", "truncated", "final", "final_mask", "memory", "state", "final_state", "status"}
    }


def _grown(held: Array, size: int, like: Array) -> Array:
    """`held` with room for `size` rows of the shape and type of those of `like`."""
    grown = np.zeros((size, *like.shape[1:]), like.dtype)
    if len(held):
        grown[: len(held)] = held
    return grown
