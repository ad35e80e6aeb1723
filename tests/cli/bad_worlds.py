"""Environments with faults, run by `test_cli_bad_input.py` through `env.id = "bad_worlds.py:Class"`."""

import ctypes
import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces

SEEN = np.zeros(2, np.float32)


class Good(gymnasium.Env):
    """Two numbers, two actions, an end after eight steps."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    length = 8

    def __init__(self):
        self.time = self.life = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return SEEN.copy(), {}

    def step(self, action):
        self.time += 1
        self.life += 1
        return SEEN.copy(), 1.0, self.time >= self.length, False, {}

    def late(self):
        """Later than the trial before the run goes."""
        return self.life > 210


class NanAtOnce(Good):
    def reset(self, *, seed=None, options=None):
        return np.full(2, np.nan, np.float32), {}


class NanLater(Good):
    def step(self, action):
        _, *rest = super().step(action)
        return np.full(2, np.nan if self.late() else 0, np.float32), *rest


class WrongShape(Good):
    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}


class WrongType(Good):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float64), {}


class Outside(Good):
    def step(self, action):
        _, *rest = super().step(action)
        return np.full(2, 7, np.float32), *rest


class OldReset(Good):
    def reset(self, *, seed=None, options=None):
        return SEEN.copy()


class OldStep(Good):
    def step(self, action):
        seen, reward, terminated, _, info = super().step(action)
        return seen, reward, terminated, info


class NoReward(Good):
    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, None, *rest


class DoneIsANumber(Good):
    def step(self, action):
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward, int(terminated), truncated, info


class InfiniteReward(Good):
    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, float("inf"), *rest


class CannotBeMade(Good):
    def __init__(self):
        raise OSError("no licence for the simulator")


class FailsAtOnce(Good):
    def step(self, action):
        raise RuntimeError("the simulator fell over")


class FailsLater(Good):
    def step(self, action):
        if self.late():
            raise RuntimeError("the simulator fell over")
        return super().step(action)


class SegfaultsLater(Good):
    def step(self, action):
        if self.late():
            ctypes.string_at(0)
        return super().step(action)


class LeavesLater(Good):
    def step(self, action):
        if self.late():
            print("the licence has run out", flush=True)
            os._exit(7)
        return super().step(action)


class HangsLater(Good):
    def step(self, action):
        if self.late():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                pass
        return super().step(action)


class SleepsInReset(Good):
    def reset(self, *, seed=None, options=None):
        if self.late():
            time.sleep(1000)
        return super().reset(seed=seed)


class SlowLater(Good):
    """A hundred times slower than a millisecond."""

    def step(self, action):
        if 210 < self.life < 214:
            time.sleep(0.1)
        return super().step(action)


class DiesAtOnce(Good):
    def step(self, action):
        os._exit(9)


class DiesAtReset(Good):
    def reset(self, *, seed=None, options=None):
        os._exit(9)


class NeverEnds(Good):
    length = 10**9


class BoxOfActions(Good):
    action_space = spaces.Box(-1, 1, (1,), np.float32)


class Unbounded(Good):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class NoActions(Good):
    action_space = spaces.Box(-1, 1, (0,), np.float32)


class Nested(Good):
    observation_space = spaces.Dict({"a": spaces.Discrete(2)})
