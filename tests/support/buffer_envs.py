"""Environments that return the same arrays at every step, and their equals that return fresh ones."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

LENGTH = 5
SHARED = np.zeros(3, np.float32)
"""One array for the observations of all environments of a process."""
PAID = np.zeros((), np.float64)
INFO: dict[str, Any] = {}


class Walker(gymnasium.Env):
    """A random walk of `LENGTH` steps: observes (begin, place, time), pays the place.

    `reuse`: observation, reward and info are the same objects at each step. `ends`: the end is terminal in every other
    episode, otherwise a truncation. `box`: actions are a box; `states`: observations are numbers.
    """

    def __init__(self, *, reuse: bool = False, box: bool = False, states: bool = False, trials: int = 0) -> None:
        self.reuse, self.box, self.states, self.episode, self.place, self.time = reuse, box, states, 0, 0.0, 0
        self.own = np.zeros((), np.int64)
        self.observation_space = spaces.Discrete(LENGTH + 1) if states else spaces.Box(-10.0, 10.0, (3,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32) if box else spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = float(self.np_random.normal()), 0
        return self._seen(), self._info()

    def step(self, action):
        self.place += float(np.asarray(action).reshape(-1)[0]) - 0.3 + 0.1 * float(self.np_random.normal())
        self.place, self.time = float(np.clip(self.place, -9.0, 9.0)), self.time + 1
        ended = self.time == LENGTH
        self.episode += ended
        terminal = bool(self.episode % 2)
        return self._seen(), self._paid(), ended and terminal, ended and not terminal, self._info()

    def _seen(self) -> Any:
        if self.states:
            self.own[...] = self.time
            return self.own if self.reuse else np.int64(self.time)
        fresh = np.array([self.time == 0, self.place, self.time / LENGTH], np.float32)
        if not self.reuse:
            return fresh
        SHARED[:] = fresh
        return SHARED

    def _paid(self) -> Any:
        PAID[...] = self.place
        return PAID if self.reuse else float(self.place)

    def _info(self) -> dict[str, Any]:
        INFO.update(lost=self.time, final_obs=self.place)
        return INFO if self.reuse else {}


class WalkerVector(VectorEnv):
    """Walkers with a vector form of their own, in any mode of resetting; with `reuse` it returns its own arrays."""

    def __init__(self, count: int, *, mode: AutoresetMode, reuse: bool) -> None:
        self.num_envs, self.mode, self.reuse = count, mode, reuse
        self.singles = [Walker() for _ in range(count)]
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = (
            self.singles[0].observation_space,
            self.singles[0].action_space,
        )
        self.seen, self.paid = np.zeros((count, 3), np.float32), np.zeros(count)
        self.over = np.zeros((2, count), np.bool_)

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        for number in np.flatnonzero(mask):
            self.seen[number] = self.singles[number].reset(seed=None if seed is None else seed + int(number))[0]
        self.over[:, mask] = False
        return self._handed(self.seen), {"lost": np.ones(self.num_envs, np.uint8)}

    def step(self, actions):
        ended, info = self.over.any(axis=0), {"lost": np.ones(self.num_envs, np.uint8)}
        for number, single in enumerate(self.singles):
            if ended[number]:
                self.seen[number], self.paid[number], self.over[:, number] = single.reset()[0], 0.0, False
                continue
            seen, self.paid[number], *flags, _ = single.step(actions[number])
            self.seen[number], self.over[:, number] = seen, flags
        terminated, truncated = self._handed(self.over[0]), self._handed(self.over[1])
        return self._handed(self.seen), self._handed(self.paid), terminated, truncated, info

    def _handed(self, values: np.ndarray) -> np.ndarray:
        return values if self.reuse else values.copy()
