"""Offline: how fast the recipes update beside d3rlpy, and what they learn from a mixed log beside imitation.

    python benchmarks/offline.py            ten seeds, some hours on one core, most of them the generative methods
    python benchmarks/offline.py --quick    one seed and short runs, two minutes: decides nothing
    python benchmarks/offline.py --only speed    one part: speed, the comparison with d3rlpy, some minutes; cartpole,
                                                 pendulum, stitching, generative: scores

Speeds are updates per second of the process's own CPU time, one thread, batches of 256, two hidden layers of 256
everywhere: medians of interleaved repetitions, and the median of the ratios pair by pair. Both sides sample from the
same kind of log (10,000 steps) and do what their library does for one update: draw a batch, step every network. The
peer runs in an environment of its own, `benchmarks/.peers/d3rlpy`, made on the first run.

Scores are of the last policy of each run, in the environment; no checkpoint is picked. Each row is the interquartile
mean over seeds with a 95% bootstrap interval over seeds; the gain over imitation is taken seed by seed, on one log.
Ends with one JSON line per row, and rewrites its tables in `benchmarks/RESULTS.md`.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from gymnasium import spaces
from peers import require_peer
from tables import Row, grow, tell

from control import interquartile_mean, interval, run, scored, seeded
from hone.control.behaviour_logs import PolicySnapshots, Quality, log_shares, record_log, train_snapshots
from hone.control.environments.make import GymConfig
from hone.control.finite.stitching import stitching_log
from hone.control.job import evaluate_returns
from hone.control.logs.parquet import BehaviourLog, write_log
from hone.core.episodes import Episodes
from hone.core.ragged import offsets_of
from hone.core.random import generator
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob

HERE = Path(__file__).resolve().parent
PEER = "d3rlpy"
BATCH, HIDDEN, TRANSITIONS = 256, [256, 256], 10_000
JUDGED = 100


def built(recipe: str, tables: dict[str, Any]) -> TrainingJob[Any]:
    entry = load_recipe(recipe)
    return entry.build(entry.config.model_validate({"recipe": recipe, "name": "bench", "steps": 1} | tables))


# ------------------------------------------------------------------------------------------------ speed


@dataclass(frozen=True, kw_only=True)
class Race:
    """One algorithm, here and there."""

    recipe: str
    peer: str
    """d3rlpy's name."""
    discrete: bool
    updates: int
    """Measured of each side."""
    bar: float | None = 4.0


RACES = [
    Race(recipe="cql", peer="DiscreteCQL", discrete=True, updates=400),
    Race(recipe="cql", peer="CQL", discrete=False, updates=20),
    Race(recipe="iql", peer="IQL", discrete=False, updates=200),
    Race(recipe="td3_bc", peer="TD3PlusBC", discrete=False, updates=200),
    Race(recipe="bear", peer="BEAR", discrete=False, updates=60, bar=None),
    Race(recipe="bcq", peer="BCQ", discrete=False, updates=20, bar=None),
]
SAME = {
    "cql": {"samples": 10, "tau": 0.005},
    "bcq": {"proposals": 100, "samples": 100},
    "bear": {"proposals": 10, "matched": 4},
}
"""d3rlpy's defaults where they decide how much is computed."""
PEER_PROGRAM = """
import logging, sys, time, warnings
warnings.filterwarnings("ignore")
import numpy as np, structlog, torch
torch.set_num_threads(1)
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
import d3rlpy
from d3rlpy.models.encoders import VectorEncoderFactory
name, discrete, updates, batch, steps = sys.argv[1], sys.argv[2] == "True", *map(int, sys.argv[3:6])
torch.set_float32_matmul_precision(sys.argv[6])
draws = np.random.default_rng(0)
seen = draws.normal(size=(steps, 4 if discrete else 3)).astype(np.float32)
chosen = draws.integers(0, 2, steps) if discrete else draws.uniform(-2, 2, (steps, 1)).astype(np.float32)
cut = (np.arange(steps) % 200 == 199).astype(np.float32)
paid = draws.normal(size=steps).astype(np.float32)
log = d3rlpy.dataset.MDPDataset(seen, chosen, paid, np.zeros(steps, np.float32), cut)
config = getattr(d3rlpy.algos, name + "Config")
shape = VectorEncoderFactory([256, 256])
shapes = {field: shape for field in config.__dataclass_fields__ if field.endswith("encoder_factory")}
algorithm = config(batch_size=batch, **shapes).create(device="cpu:0")
algorithm.build_with_dataset(log)
def run(count):
    for _ in range(count):
        algorithm.update(log.sample_transition_batch(batch))
run(5)
begin = time.process_time()
run(updates)
print(updates / (time.process_time() - begin))
"""


def noise_log(path: Path, *, discrete: bool) -> None:
    """Nothing to learn, of the size that the peer is given."""
    draws = generator(0, "offline bench")
    count = TRANSITIONS // 200
    seen = draws.standard_normal((TRANSITIONS, 4 if discrete else 3), np.float32)
    chosen = draws.integers(0, 2, TRANSITIONS) if discrete else draws.uniform(-2, 2, (TRANSITIONS, 1)).astype("f4")
    episodes = Episodes(
        offsets=offsets_of(np.full(count, 200)),
        seen=seen,
        chosen=chosen,
        logp=np.zeros(TRANSITIONS, np.float32),
        version=np.zeros(TRANSITIONS, np.int32),
        reward=draws.standard_normal(TRANSITIONS, np.float32),
        group=np.arange(count),
        terminated=np.zeros(count, np.bool_),
        truncated=np.ones(count, np.bool_),
        final=seen[:count],
        score=np.zeros(count),
        status=np.zeros(count, np.uint8),
    )
    action = spaces.Discrete(2) if discrete else spaces.Box(-2, 2, (1,), np.float32)
    observation = spaces.Box(-np.inf, np.inf, (seen.shape[1],), np.float32)
    write_log(path, BehaviourLog(episodes=episodes, observation_space=observation, action_space=action))


def hone_speed(race: Race, log: Path, updates: int) -> float:
    turns, minibatches = updates // 10, 10
    learner = {"lr": 3e-4, "updates_per_iteration": minibatches, "max_grad_norm": None}
    network = {"hidden": HIDDEN, "activation": "relu"}
    tables = {"log": str(log), "network": network, "batch": BATCH, "learner": learner, "steps": turns + 1}
    job = built(race.recipe, tables | {"algorithm": SAME.get(race.recipe, {})})
    run(job, 1)
    begin = time.process_time()
    run(job, turns)
    return turns * minibatches / (time.process_time() - begin)


def peer_speed(race: Race, updates: int, products: str) -> float:
    arguments = [race.peer, race.discrete, updates, BATCH, TRANSITIONS, PRODUCTS[products]]
    command = [str(require_peer(PEER)), "-c", PEER_PROGRAM, *map(str, arguments)]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return float(answer.stdout.split()[-1])


def speed_row(race: Race, folder: Path, products: str, *, quick: bool) -> Row:
    log = folder / f"{race.discrete}.parquet"
    if not log.exists():
        noise_log(log, discrete=race.discrete)
    repetitions = 1 if quick else 5
    torch.set_float32_matmul_precision(PRODUCTS[products])
    pairs = [
        (hone_speed(race, log, race.updates), peer_speed(race, race.updates // 2, products)) for _ in range(repetitions)
    ]
    torch.set_float32_matmul_precision(PRODUCTS["float32"])
    here, there = (float(np.median([pair[side] for pair in pairs])) for side in (0, 1))
    ratio = float(np.median([ours / theirs for ours, theirs in pairs]))
    return Row(
        row=f"{race.peer}, 256x256, batch {BATCH}" + ("" if products == "float32" else f", {products} products"),
        value=here,
        unit="updates per CPU second",
        seeds=repetitions,
        peer="d3rlpy 2.8.1",
        peer_value=there,
        ratio=ratio,
        bar=None if race.bar is None else f">= {race.bar:g} x peer",
        met=None if quick or race.bar is None else ratio >= race.bar,
    )


PRODUCTS = {"float32": "highest", "bfloat16": "medium"}
"""How numbers are multiplied; sums are float32. bfloat16 rounds factors to 8 bits: fast where the CPU has units for it
(AMX), and no faster elsewhere. The peer is given the same."""


def speed_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    del seeds  # of speeds, repetitions are what counts
    require_peer(PEER)
    with tempfile.TemporaryDirectory() as folder:
        for race in RACES:
            for products in PRODUCTS:
                yield speed_row(race, Path(folder), products, quick=quick)


# ------------------------------------------------------------------------------------------------ scores

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {"recipe": "ppo", "steps": 390, "env": {"id": "CartPole-v1", "num_envs": 8}}),
    "Pendulum": (
        "Pendulum-v1",
        {
            "recipe": "sac",
            "steps": 8000,
            "env": {"id": "Pendulum-v1"},
            "network": {"hidden": [64, 64], "activation": "relu"},
            "replay": {"batch": 128, "capacity": 10_000, "warmup": 100},
        },
    ),
}
"""Task -> environment, and whoever is caught at three stages of its training."""
ENTRANTS: dict[str, dict[str, dict[str, Any]]] = {
    "CartPole": {
        "bc": {},
        "cql": {},
        "iql": {"algorithm": {"tau": 0.05}},
    },
    "Pendulum": {
        "bc": {},
        "cql": {"algorithm": {"conservatism": 1.0, "samples": 4, "tau": 0.005}},
        "iql": {"algorithm": {"expectile": 0.8, "inverse_temperature": 3.0}},
        "td3_bc": {"algorithm": {"alpha": 40.0}},
    },
}
GENERATIVE: dict[str, dict[str, Any]] = {"bc": {}, "bcq": {}, "bear": {}}
"""Entrants of Pendulum that imitate by a network that draws actions: ten times the work of the others."""
UPDATES = {"CartPole": 15_000, "Pendulum": 8000}


def caught(task: str, seed: int, *, quick: bool) -> PolicySnapshots:
    env, tables = TASKS[task]
    steps = tables["steps"] // 10 if quick else tables["steps"]
    job = built(tables["recipe"], tables | {"seed": seed, "steps": steps})
    return train_snapshots(job, GymConfig(id=env), steps=steps, every=max(1, steps // 40), epsilon=0.1, seed=seed)


def trial(
    task: str, seed: int, entrants: dict[str, dict[str, Any]], *, quality: Quality = "mixed", quick: bool
) -> dict[str, tuple[float, float]]:
    """Score and CPU seconds of every entrant on one log, and the log's own mean return."""
    env = GymConfig(id=TASKS[task][0], num_envs=8)
    parts = log_shares(caught(task, seed, quick=quick), quality, decisions=3000 if quick else 30_000, epsilon=0.1)
    log = record_log(parts, env, seed=1000 + seed)
    ended = log.episodes.terminated | log.episodes.truncated
    found = {"log": (float(log.episodes.score[ended].mean()), 0.0)}
    turns = (200 if quick else UPDATES[task]) // 10
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, log)
        for recipe, own in entrants.items():
            network = {"hidden": [128, 128], "activation": "relu"}
            learner = {"lr": 1e-3, "updates_per_iteration": 10, "max_grad_norm": None, "lr_decay": "linear"}
            tables = {"seed": seed, "log": str(path), "steps": turns, "network": network, "learner": learner}
            begin = time.process_time()
            policy = run(built(recipe, tables | own), turns)
            took = time.process_time() - begin
            found[recipe] = (float(evaluate_returns(policy, env, episodes=JUDGED, seed=10_000 + seed).mean()), took)
    return found


def score_rows(task: str, entrants: dict[str, dict[str, Any]]) -> Callable[..., Iterator[Row]]:
    def rows(*, quick: bool, seeds: int) -> Iterator[Row]:
        found = seeded(lambda seed: trial(task, seed, entrants, quick=quick), 1 if quick else seeds, task)
        for recipe in ("log", *entrants):
            yield from entrant_rows(task, recipe, found, quick=quick)

    return rows


def stitching_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    returns = seeded(stitched, 1 if quick else seeds, "stitching")
    for recipe in STITCHERS:
        yield scored(f"{recipe}, stitching (best 2, logged 1)", "return", 2.0 if recipe != "bc" else 1.0,
                     [one[recipe] for one in returns], quick=quick)  # fmt: skip


def entrant_rows(task: str, recipe: str, found: list[dict[str, tuple[float, float]]], *, quick: bool) -> list[Row]:
    """Its score, and its gain over imitation, seed by seed."""
    scores = [one[recipe][0] for one in found]
    value, low, high = interval(scores)
    seconds = float(np.median([one[recipe][1] for one in found]))
    name = f"{recipe}, mixed {task} log" + (f", {seconds:.1f} CPU s" if seconds else "")
    rows = [Row(row=name, value=value, unit="return", low=low, high=high, seeds=len(scores))]
    if recipe in {"bc", "log"}:
        return rows
    gain, least, most = interval([one[recipe][0] - one["bc"][0] for one in found])
    cloned = interquartile_mean(np.array([one["bc"][0] for one in found]))
    return [
        *rows,
        Row(row=f"{recipe}, mixed {task} log: gain over imitation", value=gain, unit="return", low=least, high=most,
            seeds=len(scores), peer="imitation", peer_value=cloned, bar="> 0", met=None if quick else least > 0),
    ]  # fmt: skip


STITCHERS: dict[str, dict[str, Any]] = {
    "bc": {},
    "cql": {"algorithm": {"conservatism": 0.5, "tau": 0.05}},
    "iql": {"algorithm": {"expectile": 0.9, "inverse_temperature": 10.0, "tau": 0.05}},
    "bcq": {"algorithm": {"tau": 0.05}},
}


def stitched(seed: int) -> dict[str, float]:
    """Returns on the task that no logged episode solves."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, stitching_log(seed=seed))
        for recipe, own in STITCHERS.items():
            network, learner = {"hidden": [32], "activation": "relu"}, {"lr": 3e-3, "updates_per_iteration": 10}
            tables = {"seed": seed, "log": str(path), "steps": 60, "batch": 64, "network": network, "learner": learner}
            policy = run(built(recipe, tables | own), 60)
            found[recipe] = float(
                evaluate_returns(policy, GymConfig(id="hone/Stitching-v0"), episodes=1, seed=0).mean()
            )
    return found


PARTS = {
    "speed": speed_rows,
    "cartpole": score_rows("CartPole", ENTRANTS["CartPole"]),
    "pendulum": score_rows("Pendulum", ENTRANTS["Pendulum"]),
    "stitching": stitching_rows,
    "generative": score_rows("Pendulum", GENERATIVE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the offline recipes.")
    parser.add_argument("--quick", action="store_true", help="one seed and short runs, two minutes")
    parser.add_argument("--only", choices=list(PARTS), help="measure this part, and leave the others' tables alone")
    parser.add_argument("--seeds", type=int, default=10, help="of the scores")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for part, measure in PARTS.items():
        if asked.only in (None, part):
            found: Iterable[Row] = measure(quick=asked.quick, seeds=asked.seeds)
            rows += grow(f"Offline, {part}", "benchmarks/offline.py", found, threads=1, quick=asked.quick)
    tell(rows)


if __name__ == "__main__":
    main()
