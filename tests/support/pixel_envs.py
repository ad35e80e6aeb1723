"""Small environments of images and of memory, for networks that read them."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class LitCorner(gymnasium.Env[Any, Any]):
    """One of two corners of an image is lit; the action that names it is paid 1. `steps` pictures an episode."""

    def __init__(
        self, side: int = 10, *, steps: int = 8, channels: int = 1, kind: str = "uint8", first: bool = False
    ) -> None:
        self.side, self.steps, self.channels, self.kind, self.first = side, steps, channels, kind, first
        shape = (channels, side, side) if first else (side, side, channels)
        high = 255 if kind == "uint8" else 1
        self.observation_space = (
            spaces.Box(0, 1, shape, np.bool_) if kind == "bool" else spaces.Box(0, high, shape, np.dtype(kind))
        )
        self.action_space = spaces.Discrete(2)
        self.corner, self.step_count = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_count = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.corner)
        self.step_count += 1
        return self._picture(), reward, self.step_count >= self.steps, False, {}

    def _picture(self) -> NDArray[Any]:
        self.corner = int(self.np_random.integers(2))
        image = self.np_random.integers(0, 2, (self.side, self.side, self.channels)) * (
            60 if self.kind == "uint8" else 0
        )
        image[-2:, -2:] = image[:2, :2] = 0
        image[-2:, -2:] += self.corner
        image[:2, :2] += 1 - self.corner
        image = np.where(image == 1, 255 if self.kind == "uint8" else 1, image)
        return (image.transpose(2, 0, 1) if self.first else image).astype(self.observation_space.dtype)


class RepeatFirst(gymnasium.Env[Any, Any]):
    """Say the symbol that was shown first, at every step but the one that shows it: +1 / (steps - 1) where right, the
    same lost where wrong, so that memory scores 1 and chance among four -0.5 (Morad et al., POPGym, 2023)."""

    def __init__(self, steps: int = 6, symbols: int = 4) -> None:
        self.steps, self.symbols = steps, symbols
        self.observation_space = spaces.Box(0.0, 1.0, (symbols + 1,), np.float32)
        self.action_space = spaces.Discrete(symbols)
        self.first, self.step_count = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.first, self.step_count = int(self.np_random.integers(self.symbols)), 0
        return self._seen(self.first, begins=True), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_count += 1
        paid = 0.0 if self.step_count == 1 else (1.0 if action == self.first else -1.0) / (self.steps - 1)
        symbol = int(self.np_random.integers(self.symbols))
        return self._seen(symbol, begins=False), paid, self.step_count >= self.steps, False, {}

    def _seen(self, symbol: int, *, begins: bool) -> NDArray[np.float32]:
        seen = np.zeros(self.symbols + 1, np.float32)
        seen[symbol], seen[-1] = 1.0, float(begins)
        return seen


class Lengths(gymnasium.Env[Any, Any]):
    """Episodes of the given lengths in turn, terminated or truncated by turns; noise to be seen."""

    def __init__(self, lengths: list[int], *, truncate: bool = True) -> None:
        self.lengths, self.truncate = lengths, truncate
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.number, self.step_count = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number += 1
        self.step_count = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_count += 1
        over = self.step_count >= self.lengths[self.number % len(self.lengths)]
        cut = self.truncate and self.number % 2 == 1
        return self._seen(), float(action), over and not cut, over and cut, {}

    def _seen(self) -> NDArray[np.float32]:
        return self.np_random.standard_normal(3, dtype=np.float32)
