"""Steps of a vector environment in order, before they are cut into episodes.

Belongs here: the rows of a rollout while it is collected, and the last observation of each episode. Returns are
computed in `world.py`.
"""

from dataclasses import dataclass, field

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.core.ragged import Ints

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBuffer:
    """T steps of B environments, filled in row by row."""

    seen: Array
    """`[T+1, B, *observation]` before each step, and after the last."""
    chosen: Array
    logp: Floats
    reward: Floats
    terminated: Flags
    truncated: Flags
    reset_rows: Flags
    """`[T, B]` rows that were a reset and no environment step."""
    lost_status: NDArray[np.uint8]
    """`[T, B]` `ScoreStatus` of episodes that ended because their environment was lost; 0 where none was."""
    final_overrides: list[tuple[Ints, Array]] = field(default_factory=list[tuple[Ints, Array]])
    """Flat `[*]` positions in `[T * B]` of ends whose last observation is not the next row of `seen`, and
    those observations `[*, *observation]`."""

    def set_reward(self, t: int, reward: Array) -> None:
        """Store the rewards `[B]` of step `t`; one that 32-bit floats cannot hold becomes infinite."""
        with np.errstate(over="ignore"):
            self.reward[t] = reward

    def end_episodes(self, t: int, which: Ints, last: Array) -> None:
        """End the episodes of the environments `which` in step `t`, after observations `last` `[*, *observation]`."""
        self.final_overrides.append((t * self.reward.shape[1] + which, last))

    def end_lost_episodes(self, t: int, status: NDArray[np.uint8], last: Array) -> None:
        """End the episodes of environments with a `status` `[B]`, lost in step `t` after `last` `[B, *observation]`."""
        which = np.flatnonzero(status)
        self.lost_status[t, which] = status[which]
        self.terminated[t, which], self.truncated[t, which] = False, True
        self.end_episodes(t, which, last[which].copy())

    def final_observations(self, env: Ints, time: Ints) -> Array:
        """Observation after each end: the next row, unless that is of a new episode already."""
        final = self.seen[time + 1, env]
        if self.final_overrides:
            rows = np.concatenate([rows for rows, _ in self.final_overrides])
            order = np.argsort(rows)
            rows, last = rows[order], np.concatenate([last for _, last in self.final_overrides])[order]
            flat = time * self.reward.shape[1] + env
            place = np.searchsorted(rows, flat).clip(max=len(rows) - 1)
            known = rows[place] == flat
            final[known] = last[place[known]]
        return final


def empty_rollout_buffer(count: int, seen: Array, action: spaces.Space) -> RolloutBuffer:
    """An empty buffer for `count` steps of environments with observations `seen` `[B, *observation]`."""
    shape = (count, len(seen))
    kind = np.int64 if isinstance(action, spaces.Discrete) else np.float32
    terminated, truncated, junk = (np.zeros(shape, np.bool_) for _ in range(3))
    return RolloutBuffer(
        seen=np.empty((count + 1, *seen.shape), seen.dtype),
        chosen=np.empty((*shape, *(action.shape or ())), kind),
        logp=np.zeros(shape, np.float32),
        reward=np.zeros(shape, np.float32),
        terminated=terminated,
        truncated=truncated,
        reset_rows=junk,
        lost_status=np.zeros(shape, np.uint8),
    )
