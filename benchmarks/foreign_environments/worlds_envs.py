"""Small environments with spaces, masks and ends of their own, each with a known best return: rows of `worlds.py`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

STEPS = 10
COLOURS = 4


class Masked(gymnasium.Env[Any, Any]):
    """Ten steps, each paid 1 for the action that the observation names; all but a few actions are illegal and raise an
    error. `kind`: Discrete, MultiDiscrete or MultiBinary actions. The best return is 10."""

    def __init__(self, kind: str = "discrete", size: int = 12, told: str = "info") -> None:
        self.kind, self.size, self.told = kind, size, told
        self.observation_space: spaces.Space[Any] = spaces.Discrete(size)
        self.action_space: spaces.Space[Any] = {
            "discrete": spaces.Discrete(size),
            "multi_discrete": spaces.MultiDiscrete([size, 3]),
            "multi_binary": spaces.MultiBinary(4),
        }[kind]
        if told == "leaf":
            bits = spaces.Box(0, 1, (len(self._mask(0)),), np.int8)
            self.observation_space = spaces.Dict({"observation": spaces.Discrete(size), "action_mask": bits})
        self.want = self.time = 0

    def _mask(self, want: int) -> Any:
        few = np.zeros(self.size, np.int8)
        few[[want, (want + 1) % self.size, (want + 5) % self.size]] = 1
        if self.kind == "discrete":
            return few
        if self.kind == "multi_discrete":
            return np.concatenate([few, np.ones(3, np.int8)])
        free = np.ones((4, 2), np.int8)
        free[want % 4] = (0, 1)  # this bit has to be set
        return free.ravel()

    def _right(self, action: Any) -> bool:
        if self.kind == "discrete":
            return int(action) == self.want
        if self.kind == "multi_discrete":
            return int(action[0]) == self.want and int(action[1]) == self.want % 3
        return [int(bit) for bit in action] == [int(place in {self.want % 4, 0}) for place in range(4)]

    def _legal(self, action: Any) -> bool:
        mask = self._mask(self.want)
        if self.kind == "discrete":
            return bool(mask[int(action)])
        if self.kind == "multi_discrete":
            return bool(mask[int(action[0])])
        return all(mask[2 * place + int(bit)] for place, bit in enumerate(action))

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        self.want = int(self.np_random.integers(self.size))
        mask = self._mask(self.want)
        if self.told == "leaf":
            return {"observation": np.int64(self.want), "action_mask": mask}, {}
        return np.int64(self.want), {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._legal(action):
            raise ValueError(f"illegal action {action}")
        reward = float(self._right(action))
        self.time += 1
        seen, info = self._seen()
        return seen, reward, self.time == STEPS, False, info


class Nested(gymnasium.Env[Any, Any]):
    """Ten steps; the colour to name is spread over a picture, a number and bits of a nested observation. Actions are a
    Dict of a choice, bits and a box, each worth a third. The best return is 10."""

    observation_space = spaces.Dict(
        {
            "eye": spaces.Dict({"image": spaces.Box(0, 255, (4, 4, 3), np.uint8), "on": spaces.MultiBinary(2)}),
            "code": spaces.Tuple((spaces.MultiDiscrete([2, 2], start=[3, 0]), spaces.Box(-1.0, 1.0, (), np.float64))),
        }
    )
    action_space = spaces.Dict(
        {
            "name": spaces.Discrete(COLOURS, start=-1),
            "set": spaces.MultiBinary(2),
            "by": spaces.Box(-np.inf, np.inf, (1,), np.float32),
        }
    )

    def _seen(self) -> Any:
        self.colour = int(self.np_random.integers(COLOURS))
        image = np.zeros((4, 4, 3), np.uint8)
        image[self.colour] = 255
        return {
            "eye": {"image": image, "on": np.array([self.colour % 2, 1], np.int8)},
            "code": (np.array([3 + self.colour // 2, self.colour % 2]), np.array(self.colour / COLOURS)),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        named = int(action["name"]) + 1 == self.colour
        bits = list(action["set"]) == [self.colour % 2, 1]
        near = max(0.0, 1.0 - abs(float(action["by"][0])) / 10.0)
        self.time += 1
        return self._seen(), (float(named) + float(bits) + near) / 3.0, self.time == STEPS, False, {}


class Truncated(gymnasium.Env[Any, Any]):
    """Ends by truncation alone, after ten steps; rewards are arrays without axes. The best return is 10."""

    observation_space = spaces.MultiBinary(3)
    action_space = spaces.MultiDiscrete([2, 2, 2])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self.bits = self.np_random.integers(0, 2, 3).astype(np.int8)
        return self.bits, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        reward = np.array(np.mean(np.asarray(action) == self.bits))
        self.time += 1
        self.bits = self.np_random.integers(0, 2, 3).astype(np.int8)
        return self.bits, reward, False, self.time == STEPS, {}


class NativeVector(VectorEnv[Any, Any, Any]):
    """A vector form of its own, reset at the next step, with observations of two parts. The best return is 10."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0.0, 1.0, (1,))})
        self.single_action_space = spaces.Discrete(3)
        self.action_space = spaces.MultiDiscrete([3] * num_envs)
        self.draws = np.random.default_rng(0)
        self.time, self.ended = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_)

    def _seen(self) -> dict[str, Any]:
        self.want = self.draws.integers(0, 3, self.num_envs)
        return {"a": self.want, "b": (self.time[:, None] / STEPS).astype(np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.draws = np.random.default_rng(seed)
        self.time[:], self.ended[:] = 0, False
        return self._seen(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        fresh = self.ended
        reward = np.where(fresh, 0.0, np.asarray(actions) == self.want)
        self.time = np.where(fresh, 0, self.time + 1)
        self.ended = self.time == STEPS
        return self._seen(), reward, self.ended.copy(), np.zeros_like(self.ended), {}


class Words(gymnasium.Env[Any, Any]):
    """Observations with words: refused, with the name of the part."""

    observation_space = spaces.Dict({"words": spaces.Text(5), "x": spaces.Box(0.0, 1.0, (1,))})
    action_space = spaces.Discrete(2)


def make_two_players() -> object:
    """A game of PettingZoo's kind: no environment of Gymnasium's."""

    class AECEnv:
        """Stands for PettingZoo's, as far as its module's name goes."""

    AECEnv.__module__ = "pettingzoo.utils.env"
    return AECEnv()
