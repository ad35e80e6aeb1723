"""Blocks of environments: which stand together in one process, what they were reset with, what is lost with it."""

from dataclasses import dataclass, field

import numpy as np

from hone.core.clock import Clock
from hone.core.random import key
from hone.envs.gym.fault_budget import EnvProcessLoss
from hone.envs.gym.make import env_seeds
from hone.envs.gym.protocol import SharedStep
from hone.envs.gym.worker_process import EnvProcess
from hone.process.child import ChildLostError


@dataclass
class EnvBlock:
    """The environments `first ... first + count - 1`, and the process that they are in."""

    number: int
    first: int
    count: int
    process: EnvProcess
    native: bool = False
    """They are stepped as one, by a vector form of their own."""
    shared_step: SharedStep | None = None
    """Memory that is shared with the process; None before the first reset."""
    seeds: list[int] = field(default_factory=list[int])
    """`[count]` that they were last reset with."""
    steps_since_reset: int = 0
    """Steps since then."""
    restarts: int = 0

    @property
    def rows(self) -> slice:
        """Of arrays `[B, ...]`."""
        return slice(self.first, self.first + self.count)

    @property
    def require_shared_step(self) -> SharedStep:
        assert self.shared_step is not None, "reset the environments before they are stepped"
        return self.shared_step

    def set_seeds(self, seeds: list[int]) -> None:
        self.seeds, self.steps_since_reset = seeds, 0

    def next_seeds(self, base: int) -> list[int]:
        """`[count]` after one more restart: a function of the run's first seed and of how often it came to that."""
        again = key(base, "restart", self.number, self.restarts + 1) & 0xFFFFFFFF
        return env_seeds(again, self.first + self.count)[self.rows]

    def describe_loss(self, how: ChildLostError) -> EnvProcessLoss:
        """What is known of the end of its process."""
        number = int(self.process.calls[1])
        alone = self.count == 1 or (not self.native and number >= 0)
        place = max(number, 0)
        last = self.first + self.count - 1
        which = f"environment {self.first + place}" if alone else f"environments {self.first} to {last}"
        seed = f"seed {self.seeds[place]}" if place < len(self.seeds) else "not reset yet"
        return EnvProcessLoss(
            env_range=which, seeds=seed, step=self.steps_since_reset, reason=str(how), lost_episodes=self.count
        )


def split_into_blocks(first: EnvBlock, *, num_envs: int, processes: int, clock: Clock) -> list[EnvBlock]:
    """Neighbours stand together, and early blocks have one more where it does not come out even. `first` goes on with
    its share; nothing is started."""
    counts = [len(part) for part in np.array_split(np.arange(num_envs), processes)]
    first.count = counts[0]
    blocks = [first]
    for number, count in enumerate(counts[1:], start=1):
        blocks.append(EnvBlock(number, sum(counts[:number]), count, EnvProcess(clock)))
    return blocks
