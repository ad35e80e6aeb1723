"""Environments whose observations and actions have several parts; their best returns are known."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

STEPS = 4
SEEN = {
    "image": spaces.Box(0, 255, (3, 3, 1), np.uint8),
    "hint": spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2))),
    "level": spaces.Box(-10.0, 10.0, (2,), np.float64),
    "pair": spaces.MultiDiscrete([2, 3]),
}
ACTIONS = {
    "multi_discrete": spaces.MultiDiscrete([3, 2], start=[1, 0]),
    "multi_binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(
        {"go": spaces.Discrete(3), "by": spaces.Box(-1.0, 1.0, (1,), np.float32), "do": spaces.MultiBinary(2)}
    ),
    "tuple": spaces.Tuple((spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 2]))),
    "discrete": spaces.Discrete(3),
}


def paid(kind: str, action: Any, want: int) -> float:
    """Share of the factors of an action that are as they should be; `want` 0 .. 2 is told by the observation."""
    match kind:
        case "multi_discrete":
            right = [int(action[0]) - 1 == want, int(action[1]) == want % 2]
        case "multi_binary":
            right = [int(bit) == (number <= want) for number, bit in enumerate(action)]
        case "dict":
            assert set(action) == {"go", "by", "do"} and action["by"].dtype == np.float32
            right = [int(action["go"]) == want, abs(float(action["by"][0])) < 1.01, list(action["do"]) == [1, want % 2]]
        case "tuple":
            right = [int(action[0]) - 2 == want, list(action[1]) == [want % 2, 1]]
        case _:
            right = [int(action) == want]
    return float(np.mean(right))


class Parts(gymnasium.Env[Any, Any]):
    """Four decisions, each paid for the share of its factors that are right."""

    def __init__(self, action: str = "discrete", masked: bool = False, text: bool = False, flat: bool = False) -> None:
        self.kind, self.masked, self.flat = action, masked, flat
        seen = dict(SEEN, words=spaces.Text(8)) if text else SEEN
        self.text = text
        self.observation_space = SEEN["level"] if flat else spaces.Dict(seen)
        self.action_space = ACTIONS[action]
        self.time = self.want = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._seen()

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = paid(self.kind, action, self.want)
        self.time += 1
        seen, info = self._seen()
        return seen, reward, self.time == STEPS, False, info

    def _seen(self):
        self.want = int(self.np_random.integers(3))
        image = np.zeros((3, 3, 1), np.uint8)
        image[self.want] = 255
        level = np.array([self.want, self.time], np.float64)
        seen: Any = {
            "image": image, "hint": (np.int64(1 + self.want), np.array([1, 0], np.int8)), "level": level,
            "pair": np.array([self.want % 2, self.want]),
        }  # fmt: skip
        if self.text:
            seen["words"] = "hello"
        return level if self.flat else seen, {"action_mask": self._mask()} if self.masked else {}

    def _mask(self) -> Any:
        """The right choice and one other of the first factor; the rest is free."""
        first = np.zeros(3, np.int8)
        first[[self.want, (self.want + 1) % 3]] = 1
        return np.concatenate([first, np.ones(2, np.int8)]) if self.kind == "multi_discrete" else first


class PartsVector(VectorEnv[Any, Any, Any]):
    """The same as a native vector form, with observations of several parts."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs, self.inside = num_envs, [Parts() for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = spaces.Dict(SEEN), ACTIONS["discrete"]
        self.action_space = spaces.MultiDiscrete([3] * num_envs)

    def reset(self, *, seed=None, options=None):
        return _stacked(
            [env.reset(seed=None if seed is None else seed + n)[0] for n, env in enumerate(self.inside)]
        ), {}

    def step(self, actions):
        told = [env.step(action) for env, action in zip(self.inside, actions, strict=True)]
        ended = np.array([one[2] for one in told])
        now = [env.reset()[0] if one[2] else one[0] for env, one in zip(self.inside, told, strict=True)]
        last = np.full(self.num_envs, None, dtype=object)
        for number, one in enumerate(told):
            last[number] = one[0]
        reward = np.array([one[1] for one in told])
        return _stacked(now), reward, ended, np.zeros_like(ended), {"final_obs": last} if ended.any() else {}


def _stacked(seen: list[dict[str, Any]]) -> dict[str, Any]:
    plain = {name: np.stack([one[name] for one in seen]) for name in ("image", "level", "pair")}
    hint = tuple(np.stack([one["hint"][place] for one in seen]) for place in (0, 1))
    return {**plain, "hint": hint}
