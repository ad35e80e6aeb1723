"""Checks of what passes between a policy and environments at each step: actions, observations and rewards.

Belongs here: actions in the form that an environment takes, and the errors for numbers that are not finite. The checks
before a run are `check.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.control.environments.rollout import Array, Flags, RolloutBuffer
from hone.core.episodes import MAX_ABS_REWARD
from hone.core.errors import ConfigError, DivergedError, UserCodeError
from hone.core.ragged import Ints

HISTORY_STEPS = 8
"""Actions that an error message shows."""


def env_actions(chosen: Array, space: spaces.Space[Any], *, clip: bool) -> Array:
    """Actions `[B, *action]` as an environment takes them: within the bounds of its box, whole numbers in a box of
    integers.

    Raises ConfigError for an action outside its box when `clip` is off, DivergedError for one that is not finite.
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

    def usable_ends(self, steps: RolloutBuffer, t: int, which: Ints, last: Array, note: Callable[[str], None]) -> Array:
        """Last observations `[*, *observation]` of the episodes of environments `which` that ended in step `t`.

        No value is asked of an end that is terminal: one that is not finite is replaced by the observation before it,
        with a note. Raises StepFaultError where the episode was truncated, as its value is needed.
        """
        wrong = not_finite(last).reshape(len(which), -1).any(axis=1)
        if not wrong.any():
            return last
        terminal: Flags = steps.terminated[t, which]
        if (wrong & ~terminal).any():
            row = int(np.flatnonzero(wrong & ~terminal)[0])
            raise self._fault("last observation", last[row], steps, t, int(which[row]))
        row = int(np.flatnonzero(wrong)[0])
        note(
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
        history = steps.chosen[max(0, time - HISTORY_STEPS) : time + 1, env].tolist()
        return StepFaultError(
            f"{self._place(name, time, env)} {fault}: {_shown(value)}; run seed {self.seed}, its last actions {history}"
        )


def _shown(value: Any) -> str:  # noqa: ANN401 - a number or an array
    numbers = np.asarray(value).ravel()
    return f"{numbers[:HISTORY_STEPS].tolist()}{' ...' if numbers.size > HISTORY_STEPS else ''}"
