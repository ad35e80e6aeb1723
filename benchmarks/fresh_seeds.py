"""Fresh seeds: the final policy of the examples for control and tables, on seeds that chose no setting.

    python benchmarks/fresh_seeds.py                 seeds 2000 to 2019 of every part, half an hour on one core
    python benchmarks/fresh_seeds.py --only a2c      one part: ppo, a2c, rnd, tables, dqn, sac
    python benchmarks/fresh_seeds.py --quick         one seed and short runs, a minute: decides nothing

Every run is an example of `examples/control/` as it stands there, with another seed. What is scored is the policy at
the end of the run, never the best on the way. Networks play 100 episodes that no evaluation of the run played; tables
are scored by dynamic programming, as a share of the best policy's return. A row holds the mean over seeds with a 95%
bootstrap interval, the worst seed by name, the median of the environment steps after which the last 20 training
episodes averaged the bar, and the CPU seconds of a run. Ends with one JSON line per row, and rewrites the tables of its
parts in `benchmarks/RESULTS.md` after every row. Fewer seeds than twenty decide nothing.
"""

import argparse
import os
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from tables import Row, grow, tell

from control import run
from hone.control.environments.world import GymConfig
from hone.control.evaluate.returns import evaluate_returns
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.recipes.registry import load_recipe

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "control"
FIRST_SEED, SEEDS = 2000, 20
"""Settings were chosen while looking at seeds below 1020."""
JUDGED, LATELY = 100, 20
"""Episodes of a score, and training episodes whose mean is compared with the bar."""


@dataclass(frozen=True, kw_only=True)
class ScoredExample:
    """An example, and the score that the seeds should reach."""

    name: str
    """File of `examples/control/`."""
    title: str
    bar: float
    unit: str = "return"
    may_fail: int = 0
    """Seeds that may stay below the bar."""
    share_of_best: bool = False
    """Score a table by its share of the best return, computed exactly."""


@dataclass(kw_only=True)
class StepsToBar:
    """Environment steps until the last training episodes averaged the bar."""

    bar: float
    steps: int = 0
    reached: float = np.nan
    scores: list[float] = field(default_factory=list[float])

    def __call__(self, step: int, episodes: Episodes, *_: object) -> None:
        del step
        self.steps += episodes.decisions
        self.scores += episodes.score[episodes.terminated | episodes.truncated].tolist()
        if np.isnan(self.reached) and len(self.scores) >= LATELY and np.mean(self.scores[-LATELY:]) >= self.bar:
            self.reached = self.steps


def table_example(name: str, title: str) -> ScoredExample:
    """Example whose policy is scored exactly."""
    return ScoredExample(name=name, title=title, bar=0.98, unit="of the best return", share_of_best=True)


MAZE = "ppo_rnd, maze of 48 steps"
PARTS: dict[str, list[ScoredExample]] = {
    "ppo": [ScoredExample(name="ppo_cartpole", title="ppo, CartPole-v1, 99,840 steps", bar=475.0)],
    "a2c": [ScoredExample(name="a2c_cartpole", title="a2c, CartPole-v1, 500,000 steps", bar=475.0)],
    "rnd": [ScoredExample(name="ppo_rnd_maze", title=MAZE, bar=0.9, unit="of episodes", may_fail=1)],
    "tables": [
        table_example("q_learning_taxi", "q_learning, Taxi-v4"),
        table_example("expected_sarsa_taxi", "expected_sarsa, Taxi-v4"),
        table_example("double_q_learning_cliff_walking", "double_q_learning, CliffWalking-v1"),
        table_example("sarsa_cliff_edge", "sarsa, CliffWalking-v1"),
        table_example("dyna_q_maze", "dyna_q, maze of Sutton (1990)"),
        table_example("prioritized_sweeping_maze", "prioritized_sweeping, maze of Sutton (1990)"),
        table_example("monte_carlo_frozen_lake", "monte_carlo, FrozenLake-v1"),
        table_example("sarsa_lambda_frozen_lake", "sarsa_lambda, FrozenLake-v1"),
    ],
    "dqn": [ScoredExample(name="dqn_cartpole", title="dqn, CartPole-v1", bar=475.0)],
    "sac": [ScoredExample(name="sac_pendulum", title="sac, Pendulum-v1", bar=-200.0)],
}


def scored(example: ScoredExample, seed: int, *, quick: bool) -> tuple[float, float]:
    """Score of the final policy, and the environment steps to the bar."""
    tables: dict[str, Any] = tomllib.loads((EXAMPLES / f"{example.name}.toml").read_text(encoding="utf-8"))
    entry = load_recipe(tables["recipe"])
    steps = 3 if quick else tables["steps"]
    config = entry.config.model_validate({**tables, "seed": seed, "steps": steps})
    job, reached = entry.build(config), StepsToBar(bar=example.bar)
    policy = run(job, steps, reached)
    if example.share_of_best:
        assert job.evaluate is not None
        return job.evaluate().metrics["eval/of_best"], np.nan
    env = GymConfig.model_validate(tables["env"])
    returns = evaluate_returns(policy, env, episodes=10 if quick else JUDGED, seed=10_000 + seed)
    return float(returns.mean()), reached.reached


def row_of(example: ScoredExample, seeds: range, *, quick: bool) -> Row:
    """Row of one example: all seeds, each told as it ends."""
    found, steps, seconds = list[float](), list[float](), list[float]()
    for seed in seeds:
        begin = time.process_time()
        score, reached = scored(example, seed, quick=quick)
        seconds.append(time.process_time() - begin)
        found.append(score)
        steps.append(reached)
        print(f"{example.title}, seed {seed}: {score:.4g}, bar after {reached:.0f} steps", flush=True)
    return summary(example, seeds, found, steps, seconds, quick=quick)


def summary(
    example: ScoredExample, seeds: range, found: list[float], steps: list[float], seconds: list[float], *, quick: bool
) -> Row:
    """Row of the scores, the steps to the bar and the CPU seconds of each seed."""
    values = np.array(found)
    draws = generator(0, "bench").integers(0, len(values), (2000, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    worst, below = int(values.argmin()), int((values < example.bar).sum())
    took = "" if np.isnan(steps).all() else f", bar after {np.nanmedian(steps):,.0f} steps"
    enough = f"{SEEDS - example.may_fail} of {SEEDS} seeds" if example.may_fail else "every seed"
    title = f"{example.title}, seeds {seeds[0]} to {seeds[-1]}"
    return Row(
        row=f"{title} (worst seed {seeds[worst]}: {values[worst]:.4g}{took}, {np.median(seconds):.0f} CPU s)",
        value=float(values.mean()), unit=example.unit, low=float(low), high=float(high), seeds=len(values),
        bar=f">= {example.bar:g} in {enough}", met=None if quick or len(values) < SEEDS else below <= example.may_fail,
    )  # fmt: skip


def rows_of(part: str, seeds: range, *, quick: bool) -> Iterator[Row]:
    """Rows of a part."""
    for example in PARTS[part]:
        yield row_of(example, seeds, quick=quick)


def main() -> None:
    parser = argparse.ArgumentParser(description="Score the examples on fresh seeds.")
    parser.add_argument("--quick", action="store_true", help="one seed and short runs")
    parser.add_argument("--only", choices=list(PARTS), help="score this part, and leave the others' tables alone")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(asked.first, asked.first + (1 if asked.quick else asked.seeds))
    rows: list[Row] = []
    for part in PARTS:
        if asked.only in (None, part):
            found = rows_of(part, seeds, quick=asked.quick)
            rows += grow(f"Fresh seeds, {part}", "benchmarks/fresh_seeds.py", found, threads=1, quick=asked.quick)
    tell(rows)


if __name__ == "__main__":
    main()
