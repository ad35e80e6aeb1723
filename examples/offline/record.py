"""Records a log to learn from: CartPole, half of it decided at random, half by a rule of thumb that is often obeyed.

python examples/offline/record.py cartpole.parquet
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hone.control.environments.make import GymConfig
from hone.control.environments.world import open_world
from hone.control.logs.parquet import BehaviourLog, write_log
from hone.core.episodes import Episodes, concatenate

ENVIRONMENTS = 8
STEPS = 625  # of each environment: 5,000 decisions a policy


@dataclass
class Rule:
    """Pushes towards the side to which the pole falls; with probability `chance` it tosses a coin instead."""

    chance: float
    version: int = 0

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """What `decide` needs to be random: two uniform numbers a decision."""
        return draws.random((*shape, 2), dtype=np.float32)

    def decide(
        self, seen: NDArray[np.generic], noise: NDArray[np.float32]
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        """`[B, 4]` -> actions `[B]` and the log-probability of each, in nats."""
        state = seen.astype(np.float64)
        falling_right = (state[:, 2] + state[:, 3] > 0).astype(np.int64)
        tossed = (noise[:, 1] < 0.5).astype(np.int64)
        action = np.where(noise[:, 0] < self.chance, tossed, falling_right)
        probability = self.chance / 2 + (1 - self.chance) * (action == falling_right)
        return action, np.log(probability).astype(np.float32)


def record(path: Path) -> Episodes:
    """Write the log, and return what is in it."""
    pieces: list[Episodes] = []
    for seed, chance in enumerate((1.0, 0.4)):
        world = open_world(GymConfig(id="CartPole-v1", num_envs=ENVIRONMENTS), steps=STEPS, seed=seed)
        pieces.append(world.rollout(Rule(chance=chance)))
        spaces = world.envs.single_observation_space, world.envs.single_action_space
        world.close()
    episodes = concatenate(pieces)
    write_log(path, BehaviourLog(episodes=episodes, observation_space=spaces[0], action_space=spaces[1]))
    return episodes


if __name__ == "__main__":
    written = record(Path(sys.argv[1]))
    ended = written.terminated | written.truncated
    print(f"{written.decisions} decisions, {ended.sum()} whole episodes, mean return {written.score[ended].mean():.1f}")
