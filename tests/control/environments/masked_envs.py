"""Environments that tell masks of legal actions, in each of the ways; an illegal action raises an error in all."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

CHOICES = 5


class Ladder(gymnasium.Env[Any, Any]):
    """At rung t only the actions t % 5 and (t + 2) % 5 are legal; the episode ends at the top.

    `way`: where the mask is told (`info`, `method`, `leaf`, `leaves`, `late`, `stuck`, `wide`).
    """

    def __init__(self, way: str = "info", length: int = 4, start: int = 0) -> None:
        self.way, self.length, self.rung = way, length, 0
        self.action_space = spaces.Discrete(CHOICES, start=start)
        box = spaces.Box(0.0, 1.0, (2,), np.float32)
        bits = spaces.Box(0, 1, (CHOICES,), np.int8)
        parts = {"observation": box, "action_mask": bits}
        if way == "leaves":
            parts["more"] = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Dict(parts) if way.startswith("lea") else box

    def legal(self) -> np.ndarray:
        bits = np.zeros(CHOICES, np.int8)
        if self.rung < self.length:
            bits[[self.rung % CHOICES, (self.rung + 2) % CHOICES]] = 1
        if self.way == "stuck" and self.rung == 2:
            bits[:] = 0
        return bits

    def _told(self) -> tuple[Any, dict[str, Any]]:
        seen: Any = np.array([self.rung / self.length, 1.0], np.float32)
        if self.way.startswith("lea"):
            seen = {"observation": seen, "action_mask": self.legal()}
            if self.way == "leaves":
                seen["more"] = np.ones(1, np.float32)
        in_info = self.way in {"info", "stuck"} or (self.way == "late" and self.rung > 0)
        mask = np.ones(CHOICES + 1, np.int8) if self.way == "wide" else self.legal()
        return seen, {"action_mask": mask} if in_info or self.way == "wide" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rung = 0
        return self._told()

    def step(self, action):
        if self.way not in {"wide", "late"} and not self.legal()[int(action) - int(self.action_space.start)]:
            raise ValueError(f"illegal action {action} at rung {self.rung}")
        better = int(action) - int(self.action_space.start) == self.rung % CHOICES
        self.rung += 1
        seen, info = self._told()
        return seen, float(better), self.rung == self.length, False, info


class LadderMethod(Ladder):
    """The mask as a method, as sb3-contrib's environments have it."""

    def __init__(self, length: int = 4) -> None:
        super().__init__("method", length)

    def action_masks(self) -> list[bool]:
        return [bool(bit) for bit in self.legal()]


class LadderVector(VectorEnv[Any, Any, Any]):
    """A native vector form, with the masks `[B, n]` in `info`."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self.envs_in = [Ladder("info", 3 + number) for number in range(num_envs)]
        self.single_observation_space, self.single_action_space = spaces.Box(0.0, 1.0, (2,)), spaces.Discrete(CHOICES)

    def reset(self, *, seed=None, options=None):
        told = [env.reset() for env in self.envs_in]
        return np.stack([seen for seen, _ in told]), {"action_mask": np.stack([one["action_mask"] for _, one in told])}

    def step(self, actions):
        told = [env.step(action) for env, action in zip(self.envs_in, actions, strict=True)]
        final = [(one[0], one[4]["action_mask"]) for one in told]
        now = [env.reset() if one[2] else (one[0], one[4]) for env, one in zip(self.envs_in, told, strict=True)]
        ended = np.array([one[2] for one in told])
        info = {"action_mask": np.stack([one["action_mask"] for _, one in now])}
        if ended.any():
            info["final_obs"] = np.array([seen for seen, _ in final] + [None], dtype=object)[:-1]
            info["final_info"] = {"action_mask": np.stack([mask for _, mask in final])}
        reward = np.array([one[1] for one in told])
        return np.stack([seen for seen, _ in now]), reward, ended, np.zeros(len(told), np.bool_), info
