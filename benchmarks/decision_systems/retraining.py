"""Retraining without forgetting: a policy that is trained on in a second hall still parks in the first.

A cart parks at the bay of its hall, +0.6 in the first and -0.6 in the second; the observation says which hall. Elastic
weight consolidation holds the weights that the first hall needs. The weight 10 of 1, 10 and 100 was chosen on seeds 0
and 1; every figure is of seeds from 100. An episode of 20 steps returns about -2.7 by the best way, -17 or less at the
wrong bay.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from decision_systems import AcceptanceLine, cpu_seconds
from hone.api import train
from hone.control.environments.world import GymConfig
from hone.control.evaluate.returns import evaluate_returns
from hone.control.networks.checkpoint import load_policy
from hone.estimators.means import mean_interval
from hone.run.saved_config import policy_folder

TITLE = "Retraining without forgetting"
SEED = 100
WEIGHT = 10.0
BAY = 0.6


class Parking(gymnasium.Env[np.ndarray, int]):
    """A cart that moves a fifth to the left or to the right, or stays; a step costs the distance from the bay."""

    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, hall: int = 0) -> None:
        self.hall, self.place = hall, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed, options=options)
        self.place = float(self.np_random.uniform(-1.0, 1.0))
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place = float(np.clip(self.place + 0.2 * (int(action) - 1), -1.5, 1.5))
        return self._seen(), -abs(self.place - (BAY if self.hall == 0 else -BAY)), False, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self.place, 1.0 - self.hall, self.hall], np.float32)


@dataclass(frozen=True)
class Retrained:
    """Mean returns of one seed, in the first hall and in the second."""

    before: tuple[float, float]
    plain: tuple[float, float]
    consolidated: tuple[float, float]


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system."""
    if "benchmark/Parking-v0" not in gymnasium.registry:
        gymnasium.register("benchmark/Parking-v0", entry_point=Parking)
    seeds = range(SEED, SEED + (1 if fast else 12))
    with tempfile.TemporaryDirectory(prefix="hone-retraining-") as name, cpu_seconds() as spent:
        runs = [retrained(Path(name) / str(seed), seed, fast=fast) for seed in seeds]
    lost, before = [run.before[0] - run.consolidated[0] for run in runs], np.mean([run.before[0] for run in runs])
    yield AcceptanceLine(
        figure="first hall, return lost by training in the second with consolidation", value=float(np.mean(lost)),
        at_most=0.5, seeds=len(seeds), cpu_s=spent.spent, words=f"{spread(lost)}, of {before:.2f}",
    )  # fmt: skip
    lost = [run.before[0] - run.plain[0] for run in runs]
    yield AcceptanceLine(
        figure="first hall, return lost by training in the second without", value=float(np.mean(lost)), at_least=2.0,
        seeds=len(seeds), negative=True, words=spread(lost),
    )  # fmt: skip
    cost = [run.plain[1] - run.consolidated[1] for run in runs]
    yield AcceptanceLine(
        figure="second hall, return that consolidation costs", value=float(np.mean(cost)), at_most=0.5,
        seeds=len(seeds), words=spread(cost),
    )  # fmt: skip


def spread(lost: list[float]) -> str:
    """Interval of the mean over seeds, and the worst seed."""
    estimate = mean_interval(np.array(lost))
    interval = f"95% interval {estimate.low:.2f} to {estimate.high:.2f}, " if len(lost) > 1 else ""
    return f"{interval}worst seed {max(lost):.2f}"


def retrained(folder: Path, seed: int, *, fast: bool) -> Retrained:
    """A policy of the first hall, and the two that go on from it in the second."""

    def run(name: str, hall: int, steps: int, init: Path | None = None, weight: float = 0) -> tuple[float, float]:
        settings = {"rollouts_every": 5, "certify": False, **({"init": str(init)} if init else {})}
        held = {"consolidation": {"weight": weight}} if weight else {}
        result = train(
            {
                "recipe": "ppo", "seed": seed, "name": name, "steps": steps, "rollout_steps": 64,
                "env": environment(hall), "network": {"hidden": [32]}, "learner": {"lr": 3e-3},
                "evaluation": {"episodes": 1}, "run": settings, **held,
            },
            runs=folder,
        )  # fmt: skip
        policy = load_policy(policy_folder(result.folder))
        halls = (GymConfig(**environment(hall)) for hall in (0, 1))
        first, second = (evaluate_returns(policy, one, episodes=100, seed=seed + 10_000).mean() for one in halls)
        return float(first), float(second)

    def environment(hall: int) -> dict[str, Any]:
        return {
            "id": "benchmark/Parking-v0", "num_envs": 8, "max_episode_steps": 20, "isolation": "none", "check": False,
            "kwargs": {"hall": hall},
        }  # fmt: skip

    steps = 50 if fast else 90
    before = run("first", 0, 25 if fast else 30)
    first = folder / "first"
    return Retrained(before, run("plain", 1, steps, first), run("consolidated", 1, steps, first, WEIGHT))
