"""Control: speed of PPO (rl-zoo's settings), SAC and TD3 beside Stable-Baselines3; scores of these, DDPG and A2C.

    python benchmarks/control_policy.py              about an hour on two cores, most of it the scores
    python benchmarks/control_policy.py --quick      short runs, a few minutes: decides nothing
    python benchmarks/control_policy.py --only speed one part: speed (the comparison), or another one of PARTS

Speeds are steps of the world per second of the process's own CPU time: medians of interleaved repetitions, and the
median of the ratios pair by pair; what comes before the first update is left out. `CPU seconds to solve` ends when the
last 20 training episodes average 475; both sides are told by their own episodes. Both use the same hyperparameters. The
peer runs in an environment of its own, as in `benchmarks/control.py`.

`products` compares runs with `learner.products = "bfloat16"` and without, seed by seed: the mean return of all training
episodes, which is the area under the learning curve, and that of the final policy.
"""

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from peers import require_peer
from tables import Row, grow, tell

from control import PEER, interval, run, score, scored, seeded
from hone.core.episodes import Episodes
from hone.models.native.perceptron import supports_bfloat16
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob

PEER_NAME = "Stable-Baselines3 2.9"
ZOO: dict[str, Any] = {
    "recipe": "ppo", "env": {"id": "CartPole-v1", "num_envs": 8}, "rollout_steps": 32,
    "learner": {"lr": 1e-3, "lr_decay": "linear", "epochs": 20, "minibatches": 1, "max_grad_norm": 0.5},
    "algorithm": {"discount": 0.98, "gae_lambda": 0.8, "clip_decay": "linear"},
}  # fmt: skip
PENDULUM: dict[str, dict[str, Any]] = {
    "sac": {"recipe": "sac", "env": {"id": "Pendulum-v1"}},
    "td3": {"recipe": "td3", "env": {"id": "Pendulum-v1"}, "replay": {"warmup": 100}},
}
ROUNDED: dict[str, tuple[dict[str, Any], int, float]] = {
    "sac": (PENDULUM["sac"], 3000, 100.0),
    "td3": (PENDULUM["td3"], 3000, 100.0),
    "dqn": (
        {
            "recipe": "dqn", "env": {"id": "CartPole-v1", "num_envs": 8},
            "network": {"layer_norm": False}, "learner": {"updates_per_iteration": 32},
            "replay": {"collect": 8, "batch": 64}, "algorithm": {"target_every": 8},
        },
        300, 50.0,
    ),
}  # fmt: skip
"""Settings of runs with both kinds of products, their iterations, and the loss of return that counts as none."""
ROUNDED_SEEDS = 5400
"""First seed of theirs, none of which chose a setting."""
WARMUP = {"sac": 100, "td3": 1000, "ddpg": 1000}
"""Steps that each recipe takes at random, by default, before it learns: part of the budget."""
PEER_ZOO = """
import sys, time, torch
torch.set_num_threads(1)
from collections import deque
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
seed, turns = map(int, sys.argv[1:])
class Solved(BaseCallback):
    took = float("nan")
    def _on_step(self):
        lately = self.model.ep_info_buffer
        if self.took != self.took and len(lately) >= 20:
            last = list(lately)[-20:]
            if sum(one["r"] for one in last) / 20 >= 475: self.took = time.process_time() - begin
        return True
linear = lambda top: (lambda left: left * top)
model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=seed), n_steps=32, batch_size=256, n_epochs=20,
            learning_rate=linear(1e-3), clip_range=linear(0.2), gamma=0.98, gae_lambda=0.8, ent_coef=0.0, device="cpu",
            seed=seed)
seen = Solved()
begin = time.process_time()
model.learn(turns * 256, callback=seen)
print(turns * 256 / (time.process_time() - begin), seen.took)
"""
PEER_PENDULUM = """
import sys, time, torch
torch.set_num_threads(1)
import stable_baselines3
name, steps = sys.argv[1], int(sys.argv[2])
more = dict(gamma=0.98, buffer_size=200000, train_freq=1, gradient_steps=1, learning_starts=100,
            policy_kwargs=dict(net_arch=[400, 300])) if name == "td3" else {}
model = getattr(stable_baselines3, name.upper())("MlpPolicy", "Pendulum-v1", learning_rate=1e-3, batch_size=256,
                                                 device="cpu", seed=0, **more)
model.learn(150)
begin = time.process_time()
model.learn(steps, reset_num_timesteps=False)
print(steps / (time.process_time() - begin))
"""


def built(settings: dict[str, Any], *, seed: int, steps: int) -> TrainingJob[Any]:
    entry = load_recipe(settings["recipe"])
    return entry.build(entry.config.model_validate({**settings, "name": "bench", "seed": seed, "steps": steps}))


def peer(program: str, *arguments: object) -> list[float]:
    command = [str(require_peer(PEER)), "-c", program, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(word) for word in answer.stdout.split("\n")[-2].split()]


def zoo(seed: int, turns: int) -> tuple[float, float]:
    """Steps per CPU second, and CPU seconds until it was solved."""
    job = built(ZOO, seed=seed, steps=turns)
    lately: list[float] = []
    solved = [float("nan")]
    begin = time.process_time()

    def report(_: int, episodes: Episodes, *__: object) -> None:
        lately.extend(episodes.score[episodes.terminated | episodes.truncated].tolist())
        if np.isnan(solved[0]) and len(lately) >= 20 and np.mean(lately[-20:]) >= 475:
            solved[0] = time.process_time() - begin

    run(job, turns, report)
    return turns * 256 / (time.process_time() - begin), solved[0]


def with_products(settings: dict[str, Any], products: str) -> dict[str, Any]:
    return {**settings, "learner": {**settings.get("learner", {}), "products": products}}


def pendulum_speed(name: str, steps: int, products: str = "float32") -> float:
    marks: list[float] = []
    run(
        built(with_products(PENDULUM[name], products), seed=0, steps=steps + 50),
        steps + 50,
        lambda *_: marks.append(time.process_time()),
    )
    return steps / (marks[-1] - marks[49])


def paired(name: str, unit: str, pairs: list[tuple[float, float]], bar: float, *, quick: bool) -> Row:
    """`bar` is of the ratio ours / theirs: at least that where more is better, at most where it is below 1."""
    here, there = (float(np.nanmedian([pair[side] for pair in pairs])) for side in (0, 1))
    ratio = float(np.nanmedian([ours / theirs for ours, theirs in pairs]))
    enough = ratio >= bar if bar >= 1 else ratio <= bar
    sign = ">=" if bar >= 1 else "<="
    return Row(
        row=name, value=here, unit=unit, seeds=len(pairs), peer=PEER_NAME, peer_value=there, ratio=ratio,
        bar=f"{sign} {bar:.2g} x peer", met=None if quick else enough,
    )  # fmt: skip


def speed_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    del seeds  # of speeds, repetitions are what counts
    require_peer(PEER)
    repetitions, turns = (1, 60) if quick else (7, 390)
    runs = [(zoo(seed, turns), peer(PEER_ZOO, seed, turns)) for seed in range(10, 10 + repetitions)]
    what = "PPO, CartPole-v1, 8 environments x 32 steps, 20 epochs (rl-zoo)"
    speeds = [(ours[0], theirs[0]) for ours, theirs in runs]
    yield paired(what, "steps per CPU second", speeds, 2.0, quick=quick)
    solved = [(ours[1], theirs[1]) for ours, theirs in runs]
    yield paired(f"{what}, to solve", "CPU seconds", solved, 1 / 3, quick=quick)


def pendulum_speed_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    del seeds
    require_peer(PEER)
    repetitions, steps = (1, 200) if quick else (3, 400)
    for name in PENDULUM:
        speeds = []
        for _ in range(repetitions):
            rounded = pendulum_speed(name, steps, "bfloat16") if supports_bfloat16() else float("nan")
            speeds.append((pendulum_speed(name, steps), rounded, peer(PEER_PENDULUM, name, steps)[0]))
        title, unit = f"{name.upper()}, Pendulum-v1", "steps per CPU second"
        yield paired(title, unit, [(exact, theirs) for exact, _, theirs in speeds], 2.0, quick=quick)
        if supports_bfloat16():
            pairs = [(rounded, theirs) for _, rounded, theirs in speeds]
            yield paired(f"{title}, bfloat16 products", unit, pairs, 3.0, quick=quick)


def trained_score(settings: dict[str, Any], steps: int) -> Callable[[int], float]:
    name = settings["env"]["id"]
    return lambda seed: score(run(built(settings, seed=seed, steps=steps), steps), name, seed)


def both_returns(settings: dict[str, Any], steps: int, seed: int) -> tuple[float, float]:
    """Mean return of the training episodes of a run, and of its final policy."""
    ended: list[float] = []

    def report(_: int, episodes: Episodes, *__: object) -> None:
        ended.extend(episodes.score[episodes.terminated | episodes.truncated].tolist())

    policy = run(built(settings, seed=seed, steps=steps), steps, report)
    return float(np.mean(ended)), score(policy, settings["env"]["id"], seed)


def product_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    """Returns of rounded products less those of float32, and the CPU seconds of a run."""
    for name, (settings, steps, tolerance) in ROUNDED.items():
        results, seconds = {}, {}
        for products in ("bfloat16", "float32"):
            begun, turns = time.process_time(), 300 if quick else steps
            results[products] = [
                both_returns(with_products(settings, products), turns, ROUNDED_SEEDS + seed) for seed in range(seeds)
            ]
            seconds[products] = (time.process_time() - begun) / seeds
        for part, what in enumerate(("mean return of training", "final policy's return")):
            rounded, exact = ([pair[part] for pair in results[products]] for products in ("bfloat16", "float32"))
            middle, low, high = interval([ours - theirs for ours, theirs in zip(rounded, exact, strict=True)])
            costs = f"{seconds['bfloat16']:.0f} and {seconds['float32']:.0f} CPU s a run"
            yield Row(
                row=f"{name.upper()}, {settings['env']['id']}, {turns:,} iterations, {what}, bfloat16 products less "
                f"float32 (worst seed {min(rounded):.4g}, {costs})",
                value=middle, unit="return", low=low, high=high, seeds=seeds, peer="float32",
                peer_value=float(np.mean(exact)), bar=f"lower end >= -{tolerance:g}",
                met=None if quick else low >= -tolerance,
            )  # fmt: skip


def ppo_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    found, name = (
        seeded(trained_score(ZOO, 40 if quick else 390), seeds, "ppo"),
        "PPO, CartPole-v1, 100k steps (rl-zoo)",
    )
    yield scored(name, "return", 475, found, quick=quick)
    yield worst(name, 475, found, quick=quick)


def pendulum_rows(recipe: str) -> Callable[..., Iterator[Row]]:
    def rows(*, quick: bool, seeds: int) -> Iterator[Row]:
        settings = {"recipe": recipe, "env": {"id": "Pendulum-v1"}}
        steps = 300 if quick else 20_000 - WARMUP[recipe]
        found = seeded(trained_score(settings, steps), seeds, recipe)
        yield scored(f"{recipe.upper()}, Pendulum-v1, 20k steps", "return", -160, found, quick=quick)

    return rows


def a2c_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    cartpole = {"recipe": "a2c", "env": {"id": "CartPole-v1", "num_envs": 8}}
    found = seeded(trained_score(cartpole, 500 if quick else 12_500), seeds, "a2c")
    yield scored("A2C, CartPole-v1, 500k steps", "return", 475, found, quick=quick)
    yield worst("A2C, CartPole-v1, 500k steps", 475, found, quick=quick)


def worst(name: str, bar: float, found: list[float], *, quick: bool) -> Row:
    least = min(found)
    return Row(
        row=f"{name}: worst seed", value=least, unit="return", seeds=len(found), bar=f">= {bar:g}",
        met=None if quick else least >= bar,
    )  # fmt: skip


PARTS = {
    "speed": speed_rows,
    "pendulum": pendulum_speed_rows,
    "ppo": ppo_rows,
    "td3": pendulum_rows("td3"),
    "sac": pendulum_rows("sac"),
    "ddpg": pendulum_rows("ddpg"),
    "a2c": a2c_rows,
    "products": product_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the policy methods.")
    parser.add_argument("--quick", action="store_true", help="one seed and short runs")
    parser.add_argument("--only", choices=list(PARTS), help="measure this part, and leave the others' tables alone")
    parser.add_argument("--seeds", type=int, default=10, help="of the scores")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for part, measure in PARTS.items():
        if asked.only in (None, part):
            found: Iterable[Row] = measure(quick=asked.quick, seeds=1 if asked.quick else asked.seeds)
            title, program = f"Control, policy methods, {part}", "benchmarks/control_policy.py"
            rows += grow(title, program, found, threads=1, quick=asked.quick)
    tell(rows)


if __name__ == "__main__":
    main()
