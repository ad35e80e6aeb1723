"""Steps of a vector environment in order, before they are cut into episodes.

Belongs here: the rows of a rollout while it is collected, and the last observation of each episode. Returns are
computed in `world.py`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.control.environments.layout import ActionRowSpace
from hone.core.episodes import MAX_ABS_REWARD
from hone.core.errors import ConfigError, DivergedError, UserCodeError
from hone.core.ragged import Ints

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
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
    memory: Floats
    """`[B, H]` state of the policy before the first step; without columns where it has no memory."""
    initial_memory: Floats
    """`[H]` state where an episode begins."""
    lost_status: NDArray[np.uint8]
    """`[T, B]` `ScoreStatus` of episodes that ended because their environment was lost; 0 where none was."""
    mask: Flags | None = None
    """`[T+1, B, M]` legal actions at each row of `seen`; None: the environments tell no masks."""
    final_overrides: list[tuple[Ints, Array, Flags | None]] = field(
        default_factory=list[tuple[Ints, Array, Flags | None]]
    )
    """Flat `[*]` positions in `[T * B]` of ends whose last observation is not the next row of `seen`, those
    observations `[*, *observation]`, and their masks `[*, M]`."""

    def set_reward(self, t: int, reward: Array) -> None:
        """Store the rewards `[B]` of step `t`; one that 32-bit floats cannot hold becomes infinite."""
        with np.errstate(over="ignore"):
            self.reward[t] = reward

    def begun_after(self, t: int, *, next_step: bool) -> Flags:
        """`[B]` whether the observation after step `t` is the first of an episode; `next_step`: ended episodes are
        reset in the step after."""
        over = self.reset_rows[t] if next_step else self.terminated[t] | self.truncated[t]
        return over | (self.lost_status[t] != 0)

    def memory_before(self, env: Ints, time: Ints) -> Floats:
        """`[E, H]` state before pieces that begin in step `time` `[E]` of environments `env` `[E]`: what it was when
        the rollout began, or that of a new episode."""
        return np.where((time == 0)[:, None], self.memory[env], self.initial_memory)

    def end_episodes(self, t: int, which: Ints, last: Array, masks: Flags | None = None) -> None:
        """End the episodes of the environments `which` in step `t`, after observations `last` `[*, *observation]` with
        `masks` `[*, M]`."""
        self.final_overrides.append((t * self.reward.shape[1] + which, last, masks))

    def end_lost_episodes(self, t: int, status: NDArray[np.uint8], last: Array) -> None:
        """End the episodes of environments with a `status` `[B]`, lost in step `t` after `last` `[B, *observation]`."""
        which = np.flatnonzero(status)
        self.lost_status[t, which] = status[which]
        self.terminated[t, which], self.truncated[t, which] = False, True
        self.end_episodes(t, which, last[which].copy(), None if self.mask is None else self.mask[t, which])

    def final_observations(self, env: Ints, time: Ints) -> tuple[Array, Flags | None]:
        """Observation after each end and, where there are masks, its mask: the next row, unless that is of a new
        episode already."""
        final = self.seen[time + 1, env]
        masks = None if self.mask is None else self.mask[time + 1, env]
        if self.final_overrides:
            rows = np.concatenate([rows for rows, _, _ in self.final_overrides])
            order = np.argsort(rows)
            rows, last = rows[order], np.concatenate([last for _, last, _ in self.final_overrides])[order]
            flat = time * self.reward.shape[1] + env
            place = np.searchsorted(rows, flat).clip(max=len(rows) - 1)
            known = rows[place] == flat
            final[known] = last[place[known]]
            if masks is not None:
                legal = np.concatenate([own for _, _, own in self.final_overrides if own is not None])[order]
                masks[known] = legal[place[known]]
        return final, masks


def empty_rollout_buffer(count: int, seen: Array, action: spaces.Space, mask: Flags | None = None) -> RolloutBuffer:
    """An empty buffer for `count` steps of environments with observations `seen` `[B, *observation]`, and masks of the
    size of `mask` `[B, M]`."""
    shape = (count, len(seen))
    is_finite = isinstance(action, spaces.Discrete) or (
        isinstance(action, ActionRowSpace) and np.dtype(action.dtype).kind == "i"
    )
    kind = np.int64 if is_finite else np.float32
    terminated, truncated, junk = (np.zeros(shape, np.bool_) for _ in range(3))
    return RolloutBuffer(
        seen=np.empty((count + 1, *seen.shape), seen.dtype),
        chosen=np.empty((*shape, *(action.shape or ())), kind),
        logp=np.zeros(shape, np.float32),
        reward=np.zeros(shape, np.float32),
        terminated=terminated,
        truncated=truncated,
        reset_rows=junk,
        memory=np.zeros((len(seen), 0), np.float32),
        initial_memory=np.zeros(0, np.float32),
        lost_status=np.zeros(shape, np.uint8),
        mask=None if mask is None else np.empty((count + 1, *mask.shape), np.bool_),
    )


# ---------------------------------------------------------------------------------------------------------- step checks


_HISTORY_STEPS = 8
"""Actions that an error message shows."""


def env_actions(chosen: Array, space: spaces.Space[Any], *, clip: bool | None) -> Array:
    """Actions `[B, *action]` as an environment takes them: within the bounds of its box, whole numbers in a box of
    integers.

    `clip` None clips where an action is outside only. Raises ConfigError for an action outside its box when `clip` is
    False, DivergedError for one that is not finite.
    """
    if not isinstance(space, spaces.Box):
        return chosen
    whole = np.dtype(space.dtype).kind in "iu"
    acted = np.rint(chosen) if whole else chosen
    if clip:
        acted = np.clip(acted, space.low, space.high)
    outside = ~((acted >= space.low) & (acted <= space.high))
    if outside.any():
        number = int(np.argwhere(outside)[0][0])
        if not np.isfinite(chosen[number]).all():
            raise DivergedError(
                f"the policy's action for environment {number} is not finite: {chosen[number].tolist()}; its weights "
                "or its observations have become too large; lower learner.lr, or scale observations"
            )
        if clip is None:
            return env_actions(chosen, space, clip=True)
        raise ConfigError(
            f"action {chosen[number].tolist()} of environment {number} is outside {space.low.tolist()} .. "
            f"{space.high.tolist()}; set env.clip_actions = true to clip it"
        )
    return acted.astype(space.dtype) if whole else acted


def not_finite(values: Array) -> NDArray[np.bool_]:
    """Flags of numbers that are not finite, or too large for the 32-bit floats of networks."""
    if values.dtype.kind != "f":
        return np.zeros(values.shape, np.bool_)
    if values.dtype.itemsize > np.dtype(np.float32).itemsize:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
    return ~np.isfinite(values)


class StepFaultError(UserCodeError):
    """An environment gave numbers that are not finite; the message names environment, step and actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChecker:
    """Checks of the steps of one rollout; its errors name environment, step and actions."""

    seed: int
    """Seed of the run."""
    rollout: int
    """Number of the rollout."""

    def require_finite(self, steps: RolloutBuffer, *, observations: int, rewards: int) -> None:
        """Check the first `observations` and `rewards` rows `[T, B, ...]`. Raises StepFaultError."""
        for name, values in (("observation", steps.seen[:observations]), ("reward", steps.reward[:rewards])):
            wrong = not_finite(values)
            if wrong.any():
                time, env = (int(position) for position in np.argwhere(wrong)[0][:2])
                raise self._fault(name, values[time, env], steps, time, env)
        large = np.abs(steps.reward[:rewards]) > MAX_ABS_REWARD
        if large.any():
            time, env = (int(position) for position in np.argwhere(large)[0])
            fault = f"is larger than {MAX_ABS_REWARD:g}, so that its square is no number; scale it"
            raise self._fault("reward", steps.reward[time, env], steps, time, env, fault=fault)

    def usable_ends(self, steps: RolloutBuffer, t: int, which: Ints, last: Array, notes: list[str]) -> Array:
        """Last observations `[*, *observation]` of the episodes of environments `which` that ended in step `t`.

        No value is asked of an end that is terminal: one that is not finite is replaced by the observation before it,
        and `notes` say so. Raises StepFaultError where the episode was truncated, as its value is needed.
        """
        wrong = not_finite(last).reshape(len(which), -1).any(axis=1)
        if not wrong.any():
            return last
        terminal: Flags = steps.terminated[t, which]
        if (wrong & ~terminal).any():
            row = int(np.flatnonzero(wrong & ~terminal)[0])
            raise self._fault("last observation", last[row], steps, t, int(which[row]))
        row = int(np.flatnonzero(wrong)[0])
        notes.append(
            f"{self._place('last observation', t, int(which[row]))} is not finite: {_shown(last[row])}; the episode "
            "terminated, so that no value of it is needed, and the observation before it stands in its place"
        )
        kept = last.copy()
        kept[wrong] = steps.seen[t, which[wrong]]
        return kept

    def _place(self, name: str, time: int, env: int) -> str:
        return f"{name} of environment {env} at step {time} of rollout {self.rollout}"

    def _fault(
        self,
        name: str,
        value: Any,  # noqa: ANN401 - a number or an array
        steps: RolloutBuffer,
        time: int,
        env: int,
        *,
        fault: str = "is not finite",
    ) -> StepFaultError:
        history = steps.chosen[max(0, time - _HISTORY_STEPS) : time + 1, env].tolist()
        return StepFaultError(
            f"{self._place(name, time, env)} {fault}: {_shown(value)}; run seed {self.seed}, its last actions {history}"
        )


def _shown(value: Any) -> str:  # noqa: ANN401 - a number or an array
    numbers = np.asarray(value).ravel()
    return f"{numbers[:_HISTORY_STEPS].tolist()}{' ...' if numbers.size > _HISTORY_STEPS else ''}"
