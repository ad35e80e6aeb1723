"""Blocks of environments: their process, their seeds, and the loss when the process ends."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hone.control.environments.fault_budget import EnvProcessLoss
from hone.control.environments.make import env_seeds
from hone.control.environments.protocol import SharedStep
from hone.control.environments.worker_process import BlockProcess
from hone.core.random import key
from hone.process.child import ChildLostError


@dataclass
class EnvBlock:
    """The environments `first ... first + count - 1`, and their process."""

    number: int
    first: int
    count: int
    process: BlockProcess
    native: bool = False
    """The environments are stepped as one, by their own vector form."""
    shared_step: SharedStep | None = None
    """Memory shared with the process; None before the first reset."""
    seeds: list[int] = field(default_factory=list[int])
    """`[count]` seeds of the last reset with seeds."""
    steps_since_reset: int = 0
    """Steps since that reset."""
    restarts: int = 0

    @property
    def rows(self) -> slice:
        """Rows of this block in arrays `[B, ...]`."""
        return slice(self.first, self.first + self.count)

    @property
    def require_shared_step(self) -> SharedStep:
        """The shared memory, which must have been mapped."""
        assert self.shared_step is not None, "reset the environments before they are stepped"
        return self.shared_step

    def set_seeds(self, seeds: list[int]) -> None:
        """Set the seeds of a reset, and count steps from there."""
        self.seeds, self.steps_since_reset = seeds, 0

    def next_seeds(self, base: int) -> list[int]:
        """Seeds `[count]` after one more restart: a function of the run's first seed and of the number of restarts."""
        again = key(base, "restart", self.number, self.restarts + 1) & 0xFFFFFFFF
        return env_seeds(again, self.first + self.count)[self.rows]

    def describe_loss(self, how: ChildLostError) -> EnvProcessLoss:
        """A report of the end of its process."""
        number = int(self.process.calls[1])
        alone = self.count == 1 or (not self.native and number >= 0)
        place = max(number, 0)
        last = self.first + self.count - 1
        which = f"environment {self.first + place}" if alone else f"environments {self.first} to {last}"
        seed = f"seed {self.seeds[place]}" if place < len(self.seeds) else "not reset yet"
        return EnvProcessLoss(
            env_range=which, seeds=seed, step=self.steps_since_reset, reason=str(how), lost_episodes=self.count
        )


def split_into_blocks(
    first: EnvBlock, *, num_envs: int, processes: int, make: Callable[[], BlockProcess]
) -> list[EnvBlock]:
    """Blocks of contiguous environments, the earlier ones larger by one where the division leaves a rest. `first` keeps
    its share; nothing is started."""
    counts = [len(part) for part in np.array_split(np.arange(num_envs), processes)]
    first.count = counts[0]
    blocks = [first]
    for number, count in enumerate(counts[1:], start=1):
        blocks.append(EnvBlock(number, sum(counts[:number]), count, make()))
    return blocks
