"""A package that registers its environments with Gymnasium: when it is imported, or when `register_envs` is called."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

SEEDS: list[int] = []


class Step(gymnasium.Env[Any, Any]):
    """Three steps; action 1 is paid. `reward` says in which form."""

    def __init__(self, reward: str = "float", render_mode: str | None = None, bound: float | None = 1.0) -> None:
        self.form, self.render_mode, self.time = reward, render_mode, 0
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.bound = np.inf if bound is None else bound
        self.action_space = spaces.Discrete(2) if reward != "box" else spaces.Box(-self.bound, self.bound, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        forms = {
            "bool": bool, "0-d": lambda paid: np.array(paid, np.float64), "float": float, "np": np.bool_,
            "fraction": lambda paid: Fraction(int(paid)), "decimal": lambda paid: Decimal(int(paid)),
        }  # fmt: skip
        paid = forms[self.form](action == 1) if self.form in forms else -float(abs(action[0] - 0.5))
        return np.full(2, self.time / 3, np.float32), paid, self.time == 3, False, {}


class Hidden(Step):
    """Keeps its clock where nobody can read it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = iter(range(1000)).__next__

    def step(self, action):
        seen, paid, ended, cut, info = super().step(action)
        return seen - np.float32(1e-6 * self.clock()), paid, ended, cut, info


class Steps(VectorEnv[Any, Any, Any]):
    """The same as a native vector form, whose seeds are signed numbers of 32 bits, as ALE's."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 3) -> None:
        self.num_envs, self.limit = num_envs, max_episode_steps
        self.single_observation_space, self.single_action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)
        self.action_space = spaces.MultiDiscrete([2] * num_envs)
        self.time = np.zeros(num_envs, np.int64)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            SEEDS.append(seed)
            np.int32(seed + self.num_envs)  # OverflowError past 2^31
        self.time[:] = 0
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions):
        fresh = self.time == self.limit
        self.time = np.where(fresh, 0, self.time + 1)
        ended = self.time == self.limit
        seen = np.repeat(self.time[:, None] / self.limit, 2, axis=1).astype(np.float32)
        return seen, np.where(fresh, 0.0, actions == 1), ended, np.zeros_like(ended), {}


class Silent(Steps):
    """A native vector form that does not say how it resets."""

    metadata = {}


def make_vector() -> Steps:
    return Steps(2)


if "Foreign/Step-v0" not in gymnasium.registry:
    gymnasium.register("Foreign/Step-v0", entry_point="foreign_package:Step")


def register_envs() -> None:
    if "Foreign/Late-v0" not in gymnasium.registry:
        gymnasium.register("Foreign/Late-v0", entry_point="foreign_package:Step", max_episode_steps=2)
