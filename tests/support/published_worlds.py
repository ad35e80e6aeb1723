"""Games of MinAtar and rooms of MiniGrid played by their Python packages from the chance of the compiled ones, and
policies that see much of each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOMS = ("empty_5", "empty_8", "door_key_5", "door_key_6", "door_key_8", "memory_7", "memory_13")
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
_WORD = (1 << 64) - 1


@dataclass
class SplitMix:
    """Slow twin of `Random` in compiled/world.h, with the calls of numpy's generators that the packages make."""

    state: int

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _WORD
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
        return z ^ (z >> 31)

    def rand(self, count: int | None = None) -> Any:
        return (self.next() >> 11) * 2.0**-53 if count is None else np.array([self.rand() for _ in range(count)])

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        low, high = (0, low) if high is None else (low, high)
        one = lambda: low + int(self.rand() * (high - low))  # noqa: E731 - of three lines of use
        return one() if size is None else np.array([one() for _ in range(size)])

    def integers(self, low: int, high: int | None = None) -> int:
        return self.randint(low, high)


def first_seed(seed: int) -> int:
    """Chance of the only world of `CompiledVectorEnv.reset(seed=seed)`."""
    draws = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    return int(draws.integers(0, 2**63, 1, dtype=np.uint64)[0])


Step = tuple[NDArray[np.bool_], float, bool]
"""Board after the step, before another episode begins; reward; whether the episode ended."""


def play_minigrid(world: str, seed: int, steps: int) -> Iterator[Step]:
    """Steps of the Python package; needs `minigrid`."""
    from minigrid.envs import DoorKeyEnv, EmptyEnv, MemoryEnv

    kind, _, size = world.rpartition("_")
    makers = {"empty": lambda size: EmptyEnv(size=size, agent_start_pos=None), "door_key": DoorKeyEnv}
    env = (makers | {"memory": MemoryEnv})[kind](size=int(size))
    env._np_random = SplitMix(first_seed(seed))
    env.reset()
    choose = chooser(world, seed)
    for _ in range(steps):
        seen, reward, terminated, truncated, _ = env.step(choose(np.empty(0, np.bool_)))
        yield flags_of(seen["image"]), float(reward), terminated or truncated
        if terminated or truncated:
            env.reset()


def flags_of(image: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """`[7, 7, 3]` object, colour and state of each cell -> `[7, 7, 20]`, one-hot one after the other."""
    return np.concatenate([np.arange(n) == image[..., k, None] for k, n in enumerate((11, 6, 3))], axis=-1)


def play_minatar(game: str, seed: int, steps: int, *, sticky: float = 0.1, ramping: bool = True) -> Iterator[Step]:
    """Steps of the Python package; needs `minatar`."""
    from minatar import Environment

    env = Environment(game, sticky_action_prob=sticky, difficulty_ramping=ramping)
    env.random = env.env.random = SplitMix(first_seed(seed))
    env.reset()
    choose = chooser(game, seed)
    seen = env.state()
    for _ in range(steps):
        reward, over = env.act(choose(seen))
        yield env.state(), float(reward), bool(over)
        if over:
            env.reset()
        seen = env.state()


def chooser(game: str, seed: int) -> Callable[[NDArray[np.bool_]], int]:
    """A policy of all actions: random walks of several steps; in Seaquest it surfaces with a diver only. In rooms it
    goes ahead more often than it turns."""
    draws = np.random.default_rng(seed)
    if game in ROOMS:
        return lambda _: int(draws.choice(7, p=(0.15, 0.15, 0.4, 0.1, 0.02, 0.17, 0.01)))
    held, left, up, down = 0, 0, 2, 4

    def choose(seen: NDArray[np.bool_]) -> int:
        nonlocal held, left
        if left == 0:
            held, left = int(draws.integers(6)), int(draws.integers(1, 5))
            if game == "freeway" and draws.random() < 0.7:
                held = up
        left -= 1
        if game != "seaquest":
            return held
        divers, oxygen = int(seen[9, :, 8].sum()), int(seen[9, :, 7].sum())
        row = int(np.argwhere(seen[:, :, 0])[0][0])
        if divers and (oxygen < 4 or divers == 6):
            return up
        return down if (held == up and row <= 1) or row == 0 else held

    return choose
