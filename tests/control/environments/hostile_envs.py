"""Environments that hang, crash, lie and breed; made in processes of their own only, never imported by a test."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces


def _loop():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def _raise():
    raise ValueError("the gripper is stuck")


def _flood():
    for _ in range(300):
        print("x" * 5000)
        sys.stderr.write("y" * 5000)
        os.write(1, b"z" * 5000)


def _say_and_die():
    print("licence server gone", flush=True)
    os._exit(7)


def _breed():
    """A simulator in the same group, and a daemon that left it."""
    for new_session in (False, True):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1001)"], start_new_session=new_session)
    os._exit(1)


ACTS = {
    "segfault": lambda: ctypes.string_at(0),
    "_exit": _say_and_die,
    "exit": lambda: sys.exit(3),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "loop": _loop,
    "gil": lambda: ctypes.PyDLL(None).sleep(1000),
    "sleep": lambda: time.sleep(1000),
    "slow": lambda: time.sleep(0.6),
    "raise": _raise,
    "flood": _flood,
    "breed": _breed,
}


class Walk(gymnasium.Env):
    """A random walk of random length. The environment that was reset with `seed` acts at step `at` of its life; with
    `seed` None each does."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, act="", at=10, seed=None, where="step", longest=20):
        self.act, self.at, self.seed, self.where, self.longest = act, at, seed, where, longest
        self.given, self.life, self.begun = 0, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.given = self.given if seed is None else seed
        self.begun += 1
        if self.where == "reset" and self.begun > 1:
            self._act()
        self.time, self.place = 0, float(self.np_random.normal())
        self.length = int(self.np_random.integers(1, self.longest))
        return self._seen(), {}

    def step(self, action):
        self.life += 1
        self.time += 1
        if self.where == "step" and self.life == self.at:
            self._act()
        self.place += float(self.np_random.normal()) + float(action)
        over = self.time >= self.length
        return self._seen(), self.place, over and self.begun % 2 == 0, over and self.begun % 2 == 1, {}

    def _act(self):
        if self.seed in (None, self.given) and self.act in ACTS:
            ACTS[self.act]()

    def _seen(self):
        mine = self.seed in (None, self.given) and self.life == self.at
        if mine and self.act == "shape":
            return np.zeros(4, np.float32)
        seen = np.array([self.begun, self.time, self.place], np.float32)
        return seen.astype(np.float64) if mine and self.act == "type" else seen


class DiesWhenMade(Walk):
    def __init__(self):
        os._exit(9)


class DiesAtReset(Walk):
    def reset(self, *, seed=None, options=None):
        os._exit(9)
