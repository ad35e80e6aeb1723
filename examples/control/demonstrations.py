"""Records demonstrations to imitate: five episodes of a controller written by hand.

python examples/control/demonstrations.py cartpole                  writes cartpole_shown.parquet
python examples/control/demonstrations.py mountain_car
python examples/control/demonstrations.py cartpole --every 100      keeps every 100th decision of an episode
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hone.control.environments.make import GymConfig
from hone.control.environments.world import open_world
from hone.control.logs.parquet import BehaviourLog, write_log

Controller = Callable[[np.ndarray], np.ndarray]
EPISODES, STEPS = 5, 500  # neither world lets an episode last longer


def steady(observations: np.ndarray) -> np.ndarray:
    """`[n, 4]` (position, velocity, angle, angular velocity) -> `[n]` push right (1) or left (0)."""
    return (observations @ np.array([0.1, 0.4, 3.0, 1.0]) > 0.0).astype(np.int64)


def swinging(observations: np.ndarray) -> np.ndarray:
    """`[n, 2]` (position, velocity) -> `[n]` push the way the car moves, right (2) or left (0)."""
    return np.where(observations[:, 1] >= 0.0, 2, 0).astype(np.int64)


CONTROLLERS: dict[str, tuple[str, Controller]] = {
    "cartpole": ("CartPole-v1", steady),
    "mountain_car": ("MountainCar-v0", swinging),
}


@dataclass
class Controlled:
    """Decides by a controller, by no chance."""

    controller: Controller
    version: int = 0

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Nothing is random."""
        del draws
        return np.zeros(shape, np.float32)

    def decide(
        self, seen: NDArray[np.generic], noise: NDArray[np.float32]
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        """`[B, *observation]` -> actions `[B]`, and the log-probability of what is certain: 0."""
        return self.controller(seen), np.zeros_like(noise)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record demonstrations to imitate.")
    parser.add_argument("task", choices=list(CONTROLLERS))
    parser.add_argument("--every", type=int, default=1, help="keep every so many decisions of an episode")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    name, controller = CONTROLLERS[asked.task]
    world = open_world(GymConfig(id=name, num_envs=EPISODES), steps=STEPS, seed=asked.seed)
    lived, envs = world.rollout(Controlled(controller)), world.envs
    whole = lived.take(np.flatnonzero(lived.terminated | lived.truncated)[:EPISODES])
    place = np.arange(whole.decisions) - whole.offsets[whole.owner]
    kept = whole.transitions().take(np.flatnonzero(place % asked.every == 0))
    path = Path(f"{asked.task}_shown.parquet")
    spaces = envs.single_observation_space, envs.single_action_space
    write_log(path, BehaviourLog(episodes=kept, observation_space=spaces[0], action_space=spaces[1]))
    world.close()
    print(f"{path}: {kept.decisions} decisions of {len(whole)} episodes, mean return {whole.score.mean():.1f}")


if __name__ == "__main__":
    main()
