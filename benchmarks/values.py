"""Value-based control: scores of the family on CartPole, and the speed of DQN beside Stable-Baselines3.

    python benchmarks/values.py             ten seeds of DQN and Rainbow and the speed pairs, half an hour on two cores
    python benchmarks/values.py --quick     one seed and short runs, under a minute: decides nothing
    python benchmarks/values.py --only speed    the comparison with Stable-Baselines3 alone, two minutes
    python benchmarks/values.py --only dqn      one part: speed, dqn, rainbow
    python benchmarks/values.py --only family   three seeds of each other member, half an hour

Every run has its recipe's default settings and 50,000 environment steps; the final greedy policy is evaluated over 100
episodes. Speeds are environment steps per second of the process's own CPU time at rl-zoo's settings for CartPole (128
updates of 64 transitions after every 256 steps, 256x256, target network copied per iteration): medians of interleaved
repetitions, and the median of the paired ratios, without warm-up and first iteration. The peer runs in
`benchmarks/.peers/sb3`. Ends with one JSON line per row, and rewrites its tables in `benchmarks/RESULTS.md`.
"""

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from peers import require_peer
from tables import Row, grow, tell

from control import CARTPOLE, PEER, interval, run, score
from hone.control.off_policy import ReplayRunConfig
from hone.core.episodes import Episodes
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob

BUDGET = 50_000
SOLVED = 475.0
OTHERS = ("double_dqn", "dueling_dqn", "prioritized_dqn", "n_step_dqn", "c51", "qr_dqn", "noisy_dqn", "discrete_sac")
PEER_PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
from stable_baselines3 import DQN
turns = int(sys.argv[1])
model = DQN("MlpPolicy", "CartPole-v1", learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1000,
            gamma=0.99, target_update_interval=10, train_freq=256, gradient_steps=128, exploration_fraction=0.16,
            exploration_final_eps=0.04, policy_kwargs={"net_arch": [256, 256]}, device="cpu", seed=0)
model.learn(1000 + 256)
begin = time.process_time()
model.learn(turns * 256, reset_num_timesteps=False)
print(turns * 256 / (time.process_time() - begin))
"""


def job_of(recipe: str, seed: int, *, budget: int) -> tuple[TrainingJob, int]:
    """A recipe with its defaults, and how many turns make up the budget."""
    entry = load_recipe(recipe)
    tables = {"recipe": recipe, "name": "bench", "seed": seed, "env": {"id": CARTPOLE}}
    defaults = entry.config.model_validate({**tables, "steps": 1})
    assert isinstance(defaults, ReplayRunConfig)
    steps = max(1, (budget - defaults.replay.warmup) // defaults.iteration_steps)
    return entry.build(entry.config.model_validate({**tables, "steps": steps})), steps


def returns_of(recipe: str, seeds: range, *, quick: bool) -> list[float]:
    found: list[float] = []
    for seed in seeds:
        begin = time.process_time()
        job, steps = job_of(recipe, seed, budget=4000 if quick else BUDGET)
        found.append(score(run(job, steps), CARTPOLE, seed))
        print(f"{recipe}, seed {seed}: {found[-1]} ({time.process_time() - begin:.0f} CPU s)", flush=True)
    return found


def rows_of(recipe: str, seeds: range, *, quick: bool) -> list[Row]:
    """The interquartile mean over seeds, and the worst of them: the bar is for all."""
    returns = returns_of(recipe, seeds, quick=quick)
    value, low, high = interval(returns)
    name = f"{recipe}, CartPole-v1, {BUDGET // 1000}k steps"
    worst = min(returns)
    return [
        Row(row=name, value=value, unit="return", low=low, high=high, seeds=len(returns)),
        Row(
            row=f"{name}: worst seed", value=worst, unit="return", seeds=len(returns), bar=f">= {SOLVED}",
            met=None if quick else worst >= SOLVED,
        ),
    ]  # fmt: skip


def rows_for(recipe: str) -> Callable[..., list[Row]]:
    return lambda *, quick, seeds: rows_of(recipe, range(1 if quick else seeds), quick=quick)


def family_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    looked_at = range(1 if quick else min(3, seeds))
    for recipe in OTHERS:
        yield from rows_of(recipe, looked_at, quick=quick)


def hone_speed(turns: int) -> float:
    entry = load_recipe("dqn")
    zoo = {
        "env": {"id": CARTPOLE},
        "network": {"hidden": [256, 256], "activation": "relu", "layer_norm": False},
        "learner": {"lr": 2.3e-3, "updates_per_iteration": 128, "max_grad_norm": 10.0, "lr_decay": "constant"},
        "replay": {"collect": 256, "batch": 64, "capacity": 100_000, "warmup": 1000},
        "algorithm": {"discount": 0.99, "target_every": 1, "tau": 1.0, "normalise_observations": False},
    }
    config = entry.config.model_validate({"recipe": "dqn", "name": "bench", "steps": turns + 1, **zoo})
    marks: list[float] = []

    def report(_: int, __: Episodes, *___: object) -> None:
        marks.append(time.process_time())

    run(entry.build(config), turns + 1, report)
    return turns * 256 / (marks[-1] - marks[0])


def peer_speed(turns: int) -> float:
    command = [str(require_peer(PEER)), "-c", PEER_PROGRAM, str(turns)]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return float(answer.stdout.split()[-1])


def speed_rows(*, quick: bool, seeds: int) -> list[Row]:
    del seeds  # of speeds, repetitions are what counts
    require_peer(PEER)
    turns, repetitions = (8, 2) if quick else (40, 7)
    pairs = [(hone_speed(turns), peer_speed(turns)) for _ in range(repetitions)]
    here, there = (float(np.median([pair[side] for pair in pairs])) for side in (0, 1))
    ratio = float(np.median([ours / theirs for ours, theirs in pairs]))
    return [
        Row(
            row="DQN, CartPole-v1, 128 updates of 64 per 256 steps, 256x256 relu", value=here,
            unit="steps per CPU second", seeds=repetitions, peer="Stable-Baselines3 2.9", peer_value=there,
            ratio=ratio, bar=">= 2.5 x peer", met=None if quick else ratio >= 2.5,
        )
    ]  # fmt: skip


PARTS = {"speed": speed_rows, "dqn": rows_for("dqn"), "rainbow": rows_for("rainbow"), "family": family_rows}
ASKED_FOR = ("family",)
"""Only when asked for by name."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the value-based recipes.")
    parser.add_argument("--quick", action="store_true", help="one seed and short runs, under a minute")
    parser.add_argument("--only", choices=list(PARTS), help="measure this part, and leave the others' tables alone")
    parser.add_argument("--seeds", type=int, default=10, help="of the scores")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for part, measure in PARTS.items():
        if asked.only == part or (asked.only is None and part not in ASKED_FOR):
            found: Iterable[Row] = measure(quick=asked.quick, seeds=asked.seeds)
            rows += grow(f"Values, {part}", "benchmarks/values.py", found, threads=1, quick=asked.quick)
    tell(rows)


if __name__ == "__main__":
    main()
