"""LunarLander-v3: what PPO reaches in a million steps, and Rainbow in a tenth of them.

    python benchmarks/lunar.py                 ten seeds of PPO and three of Rainbow, 40 minutes on one core
    python benchmarks/lunar.py --quick         one seed and short runs, some seconds: decides nothing
    python benchmarks/lunar.py --only ppo      one of them

The runs are `ppo_lunar_lander.toml` (rl-zoo's settings for it) and `rainbow_lunar_lander.toml` of
`examples/control/box2d/` as they stand there; a game is lost at -100 and solved at 200 (Gymnasium's threshold). What is
judged is the mode of the policy that a run ends with, over 100 games. Needs Box2D (the extra `envs`). Tells one JSON
line per seed so far, and rewrites its tables in `benchmarks/RESULTS.md` after every seed.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from control_sparse import settings
from tables import Row, rewrite, tell

from control import FIRST_SEED, interval, run, score
from hone.recipes.registry import load_recipe

LANDER = "LunarLander-v3"
SOLVED = 200.0
GAMES = {"ppo": "PPO, 1M steps", "rainbow": "Rainbow, 100k steps"}
SEEDS = {"ppo": 10, "rainbow": 3}
"""A run of PPO takes a minute, one of Rainbow seven."""
ZOO = {"ppo": 242.0, "rainbow": None}
"""What rl-zoo's one trained agent reached; it has no Rainbow (DQN at 100,000 steps: 154)."""


def watched(say: Callable[[], dict[str, float]], every: int) -> Callable[..., None]:
    """A report that prints the return of training now and then: these runs are long."""
    begin = time.process_time()

    def report(step: int, *_: object) -> None:
        if step % every == 0:
            reward = say().get("reward/mean", float("nan"))
            print(f"  turn {step}: return {reward:.0f}, {time.process_time() - begin:.0f} CPU s", flush=True)

    return report


def landed(recipe: str, seed: int, *, quick: bool) -> float:
    tables = settings(f"box2d/{recipe}_lunar_lander", seed, {})
    entry = load_recipe(recipe)
    steps = (1 if recipe == "ppo" else 5) if quick else tables["steps"]
    config = entry.config.model_validate({**tables, "steps": steps})
    job = entry.build(config)
    return score(run(job, steps, watched(job.recipe.source.metrics, max(1, steps // 15))), LANDER, seed)


def rows_of(recipe: str, *, seeds: int, quick: bool) -> Iterator[Row]:
    """A row, told again with every seed that is added to it: the table holds what there is when a run is stopped."""
    found, seconds = list[float](), list[float]()
    for seed in range(FIRST_SEED, FIRST_SEED + (1 if quick else seeds)):
        begin = time.process_time()
        found.append(landed(recipe, seed, quick=quick))
        seconds.append(time.process_time() - begin)
        print(f"{recipe}, seed {seed}: {found[-1]:.1f} ({seconds[-1]:.0f} CPU s)", flush=True)
        yield row_of(recipe, found, seconds, quick=quick)


def row_of(recipe: str, found: list[float], seconds: list[float], *, quick: bool) -> Row:
    value, low, high = interval(found)
    row = Row(
        row=f"{GAMES[recipe]}, {LANDER} (worst seed {min(found):.0f}, {np.median(seconds):.0f} CPU s)",
        value=value,
        unit="return",
        low=low,
        high=high,
        seeds=len(found),
        bar=f">= {SOLVED:g}",
        met=None if quick else value >= SOLVED,
    )
    zoo = ZOO[recipe]
    return row if zoo is None else replace(row, peer="rl-zoo, one agent, as published", peer_value=zoo)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure PPO and Rainbow on LunarLander-v3.")
    parser.add_argument("--quick", action="store_true", help="one seed and short runs, some seconds")
    parser.add_argument("--only", choices=list(GAMES), help="measure this one alone")
    parser.add_argument("--seeds", type=int, help="unless said, 10 and 3")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for recipe in GAMES:
        if asked.only in (None, recipe):
            for row in rows_of(recipe, seeds=asked.seeds or SEEDS[recipe], quick=asked.quick):
                rewrite(f"LunarLander, {recipe}", "benchmarks/lunar.py", [row], threads=1, quick=asked.quick)
                tell([row])


if __name__ == "__main__":
    main()
