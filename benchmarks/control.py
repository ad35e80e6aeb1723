"""Control: what the recipes reach, and how fast PPO is beside Stable-Baselines3.

    python benchmarks/control.py            five seeds, about half an hour on two cores
    python benchmarks/control.py --quick    one seed and short runs, under a minute: decides nothing
    python benchmarks/control.py --only speed    the comparison with Stable-Baselines3 alone, two minutes

Measures PPO, SAC, CQL and Thompson sampling with their default settings. Each row is the interquartile mean over seeds
with a 95% bootstrap interval over seeds. Speeds are steps of the world per second of the process's own CPU time:
medians of interleaved repetitions, and the median of the ratios pair by pair; the first turn is left out.
The peer runs in an environment of its own, `benchmarks/.peers/sb3`, made on the first run.
Ends with one JSON line per row, and rewrites its table in `benchmarks/RESULTS.md`.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from peers import require_peer
from tables import Row, rewrite, tell

from hone.control.acting import NetworkActor
from hone.control.environments.world import GymConfig, open_world
from hone.control.job import evaluate_returns
from hone.control.logs.parquet import BehaviourLog, write_log
from hone.control.networks.actor_critic import ActorCritic, ControlPolicy
from hone.control.off_policy import ReplayConfig
from hone.core.episodes import Episodes, concatenate
from hone.core.random import generator
from hone.learner.config import LearnerConfig
from hone.native.build import keep_freed_memory
from hone.recipes.bandits import thompson
from hone.recipes.off_policy import sac
from hone.recipes.offline import bc, cql
from hone.recipes.on_policy import ppo
from hone.run.job import TrainingJob
from hone.run.loop import train

HERE = Path(__file__).resolve().parent
PEER = "sb3"
CARTPOLE = "CartPole-v1"
JUDGED = 100
FIRST_SEED = 10
"""Defaults were chosen while looking at seeds 0 and 1; these were not looked at."""
P = TypeVar("P")


# ------------------------------------------------------------------------------------------------ statistics


def interquartile_mean(values: np.ndarray) -> float:
    """Mean of the middle half; of five values, of the middle three."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def interval(values: list[float]) -> tuple[float, float, float]:
    """Interquartile mean and its 95% percentile bootstrap interval over seeds (one task, so one stratum)."""
    scores = np.array(values)
    rows = generator(0, "bench").integers(0, len(scores), (2000, len(scores)))
    low, high = np.quantile([interquartile_mean(scores[row]) for row in rows], [0.025, 0.975])
    return interquartile_mean(scores), float(low), float(high)


# ------------------------------------------------------------------------------------------------ runs


def silent(*_: object) -> None:
    """A report that says nothing."""


def run(job: TrainingJob[P], steps: int, report: Callable[..., None] = silent) -> P:
    keep_freed_memory()  # as the command `hone train` does
    policy = train(job.recipe, steps=steps, callback=report)
    job.close()
    return policy


def score(policy: ControlPolicy, name: str, seed: int) -> float:
    """Mean return of the policy's mode over fresh episodes."""
    return float(evaluate_returns(policy, GymConfig(id=name), episodes=JUDGED, seed=10_000 + seed).mean())


def ppo_config(
    seed: int,
    steps: int,
    *,
    envs: int = 8,
    rollout: int = 32,
    minibatches: int = 1,
    epochs: int = 20,
    world: str = CARTPOLE,
) -> ppo.PpoConfig:
    learner = LearnerConfig(lr=1e-3, lr_decay="linear", epochs=epochs, minibatches=minibatches, max_grad_norm=0.5)
    env = GymConfig(id=world, num_envs=envs)
    return ppo.PpoConfig(
        recipe="ppo", name="bench", seed=seed, steps=steps, env=env, rollout_steps=rollout, learner=learner
    )


def ppo_cartpole(seed: int, *, quick: bool) -> float:
    steps = 40 if quick else 100_000 // (8 * 32)
    return score(run(ppo.ENTRY.build(ppo_config(seed, steps)), steps), CARTPOLE, seed)


def sac_pendulum(seed: int, *, quick: bool) -> float:
    steps = 500 if quick else 20_000 - ReplayConfig().warmup
    config = sac.SacConfig(recipe="sac", name="bench", seed=seed, steps=steps, env=GymConfig(id="Pendulum-v1"))
    return score(run(sac.ENTRY.build(config), steps), "Pendulum-v1", seed)


def thompson_arms(seed: int, *, quick: bool) -> float:
    """Expected reward of the arms pulled in pulls 1501 to 2000, as a share of the best arm's."""
    del quick
    rates = [0.1, 0.3, 0.4, 0.55, 0.6]
    config = thompson.ThompsonConfig.model_validate(
        {"recipe": "t", "name": "bench", "seed": seed, "steps": 2000, "arms": {"kind": "bernoulli", "rates": rates}}
    )
    gained: list[float] = []

    def report(_: int, episodes: Episodes, *__: object) -> None:
        gained.append(rates[int(episodes.chosen[0])])

    run(thompson.ENTRY.build(config), 2000, report)
    return float(np.mean(gained[-500:])) / max(rates)


class HalfTrained(Exception):  # noqa: N818 - ends a run on purpose
    """The policy is as good as it should be."""


def half_trained(seed: int) -> ActorCritic:
    """PPO stopped when the last five turns' episodes reach half of the greatest return."""
    job = ppo.ENTRY.build(ppo_config(seed, 390))
    lately: list[float] = []

    def report(*_: object) -> None:
        lately.append(job.recipe.source.metrics().get("reward/mean", 0.0))
        if np.mean(lately[-5:]) > 250:
            raise HalfTrained

    try:
        return run(job, 390, report)
    except HalfTrained:
        return job.recipe.learner.policy


def mixed_log(path: Path, seed: int, decisions: int) -> float:
    """Half of the decisions by a fresh policy, half by a half-trained one; returns the log's mean return."""
    config = ppo_config(seed, 1).env
    trained = half_trained(seed)
    fresh = ActorCritic(trained.spaces, trained.network, seed=seed + 1)
    parts: list[Episodes] = []
    for number, policy in enumerate((fresh, trained)):
        world, had = open_world(config, steps=128, seed=2 * seed + number), 0
        while had < decisions // 2:
            parts.append(world.rollout(NetworkActor(policy.numpy_policy())))
            had += parts[-1].decisions
    episodes = concatenate(parts)
    space = world.envs
    write_log(
        path,
        BehaviourLog(
            episodes=episodes,
            observation_space=space.single_observation_space,
            action_space=space.single_action_space,
        ),
    )
    return float(episodes.score[episodes.terminated | episodes.truncated].mean())


def offline(seed: int, *, quick: bool) -> tuple[float, float, float]:
    """Scores of CQL, of behaviour cloning, and the log's own mean return."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        mean = mixed_log(path, seed, 4000 if quick else 30_000)
        common = {"recipe": "x", "name": "bench", "seed": seed, "log": str(path)}
        steps = 500 if quick else 6000
        conservative = run(cql.ENTRY.build(cql.CqlConfig.model_validate(common | {"steps": steps})), steps)
        cloning = run(bc.ENTRY.build(bc.BcConfig.model_validate(common | {"steps": steps // 3})), steps // 3)
    return score(conservative, CARTPOLE, seed), score(cloning, CARTPOLE, seed), mean


# ------------------------------------------------------------------------------------------------ speed

ENVS, MINIBATCHES, EPOCHS = 64, 4, 4
ROLLOUTS = (32, 128)
SPEED_BARS = {CARTPOLE: 5, "hone/CartPole-v1": 10}
"""Environments, Gymnasium's and the compiled one, and how many times the peer's speed is asked of them."""
PEER_PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
envs, rollout, batch, epochs, turns = map(int, sys.argv[1:])
model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=envs, seed=0), n_steps=rollout, batch_size=batch,
            n_epochs=epochs, learning_rate=1e-3, gamma=0.98, gae_lambda=0.8, ent_coef=0.0, device="cpu", seed=0)
model.learn(envs * rollout)
begin = time.process_time()
model.learn(turns * envs * rollout)
print(turns * envs * rollout / (time.process_time() - begin))
"""


def hone_speed(rollout: int, turns: int, world: str) -> float:
    config = ppo_config(0, turns + 1, envs=ENVS, rollout=rollout, minibatches=MINIBATCHES, epochs=EPOCHS, world=world)
    marks, decisions = [0.0], [0]

    def report(_: int, episodes: Episodes, *__: object) -> None:
        marks.append(time.process_time())
        decisions.append(episodes.decisions)

    run(ppo.ENTRY.build(config), turns + 1, report)
    return sum(decisions[2:]) / (marks[-1] - marks[1])


def peer_speed(rollout: int, turns: int) -> float:
    arguments = [ENVS, rollout, ENVS * rollout // MINIBATCHES, EPOCHS, turns]
    command = [str(require_peer(PEER)), "-c", PEER_PROGRAM, *map(str, arguments)]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return float(answer.stdout.split()[-1])


def speed_row(rollout: int, world: str, *, quick: bool) -> Row:
    turns, repetitions = (320 // rollout, 2) if quick else (1280 // rollout, 7)
    pairs = [(hone_speed(rollout, turns, world), peer_speed(rollout, turns)) for _ in range(repetitions)]
    here, there = (float(np.median([pair[side] for pair in pairs])) for side in (0, 1))
    ratio, bar = float(np.median([ours / theirs for ours, theirs in pairs])), SPEED_BARS[world]
    return Row(
        row=f"PPO, {world}, {ENVS} environments x {rollout} steps, 64x64 tanh, {MINIBATCHES} minibatches, "
        f"{EPOCHS} epochs",
        value=here,
        unit="steps per CPU second",
        seeds=repetitions,
        peer="Stable-Baselines3 2.9, CartPole-v1",
        peer_value=there,
        ratio=ratio,
        bar=f">= {bar} x peer",
        met=None if quick else ratio >= bar,
    )


def speed_rows(*, quick: bool) -> list[Row]:
    require_peer(PEER)
    return [speed_row(rollout, world, quick=quick) for world in SPEED_BARS for rollout in ROLLOUTS]


# ------------------------------------------------------------------------------------------------ rows


def seeded(work: Callable[[int], Any], seeds: int, name: str) -> list[Any]:
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        begin = time.process_time()
        found.append(work(seed))
        print(f"{name}, seed {seed}: {found[-1]} ({time.process_time() - begin:.0f} CPU s)", flush=True)
    return found


def scored(name: str, unit: str, bar: float, values: list[float], *, quick: bool) -> Row:
    value, low, high = interval(values)
    met = None if quick else value >= bar
    return Row(row=name, value=value, unit=unit, low=low, high=high, seeds=len(values), bar=f">= {bar}", met=met)


def offline_rows(triples: list[tuple[float, float, float]], *, quick: bool) -> list[Row]:
    ours, cloned, logged = (list(column) for column in zip(*triples, strict=True))
    gain, gain_low, gain_high = interval([one - other for one, other in zip(ours, cloned, strict=True)])
    value, low, high = interval(ours)
    base, mean = interquartile_mean(np.array(cloned)), interquartile_mean(np.array(logged))
    name = "CQL, mixed CartPole-v1 log"
    return [
        Row(
            row=name, value=value, unit="return", low=low, high=high, seeds=len(ours), peer="behaviour cloning",
            peer_value=base, ratio=value / base, bar="> log's mean return and > cloning",
            met=None if quick else low > mean and gain_low > 0,
        ),
        Row(row=f"{name}: gain over cloning, by seed", value=gain, unit="return", low=gain_low, high=gain_high,
            seeds=len(ours), bar="> 0", met=None if quick else gain_low > 0),
        Row(row=f"{name}: the log itself", value=mean, unit="return", seeds=len(ours)),
    ]  # fmt: skip


def learning_rows(*, quick: bool) -> list[Row]:
    seeds = 1 if quick else 5
    arms = seeded(lambda seed: thompson_arms(seed, quick=quick), seeds, "thompson")
    rows = [scored("Thompson, 5 Bernoulli arms, 2,000 pulls", "of the best arm", 0.95, arms, quick=quick)]
    returns = seeded(lambda seed: ppo_cartpole(seed, quick=quick), seeds, "ppo")
    rows.append(scored("PPO, CartPole-v1, 100k steps", "return", 475, returns, quick=quick))
    rows += offline_rows(seeded(lambda seed: offline(seed, quick=quick), seeds, "cql, bc, log"), quick=quick)
    returns = seeded(lambda seed: sac_pendulum(seed, quick=quick), seeds, "sac")
    rows.append(scored("SAC, Pendulum-v1, 20k steps", "return", -200, returns, quick=quick))
    return rows


PARTS = {"speed": speed_rows, "learning": learning_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the control recipes.")
    parser.add_argument("--quick", action="store_true", help="one seed and short runs, under a minute")
    parser.add_argument("--only", choices=list(PARTS), help="measure this part, and leave the other's table alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for part, measure in PARTS.items():
        if asked.only in (None, part):
            found = measure(quick=asked.quick)
            rewrite(f"Control, {part}", "benchmarks/control.py", found, threads=1, quick=asked.quick)
            rows += found
    tell(rows)


if __name__ == "__main__":
    main()
