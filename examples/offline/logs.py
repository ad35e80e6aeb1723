"""Records logs of four qualities to learn from: chance, a policy half-way through its training, at its end, a mixture.

    python examples/offline/logs.py cartpole            writes cartpole_random.parquet, _medium, _expert, _mixed
    python examples/offline/logs.py pendulum --only mixed --decisions 60000

Trains the policies that decide: PPO on CartPole (seconds), SAC on Pendulum (two minutes). The log-probability of every
decision is in the log, so that estimates of other policies can be made from it.
"""

import argparse
from pathlib import Path
from typing import Any

from hone.control.behaviour_logs import QUALITIES, PolicySnapshots, log_shares, record_log, train_snapshots
from hone.control.environments.make import GymConfig
from hone.control.logs.parquet import write_log
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob

TEACHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": (
        "CartPole-v1",
        {"recipe": "ppo", "name": "teacher", "steps": 390, "env": {"id": "CartPole-v1", "num_envs": 8}},
    ),
    "pendulum": (
        "Pendulum-v1",
        {
            "recipe": "sac",
            "name": "teacher",
            "steps": 8000,
            "env": {"id": "Pendulum-v1"},
            "network": {"hidden": [64, 64], "activation": "relu"},
            "replay": {"batch": 128, "capacity": 10_000, "warmup": 100},
        },
    ),
}


def teacher(name: str, seed: int, steps: int | None) -> tuple[TrainingJob[Any], int]:
    tables: dict[str, Any] = TEACHERS[name][1] | {"seed": seed}
    tables["steps"] = steps or tables["steps"]
    entry = load_recipe(tables["recipe"])
    return entry.build(entry.config.model_validate(tables)), tables["steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Record logs to learn from.")
    parser.add_argument("task", choices=list(TEACHERS))
    parser.add_argument("--only", choices=QUALITIES, help="this quality alone")
    parser.add_argument("--decisions", type=int, default=20_000, help="of a log")
    parser.add_argument("--epsilon", type=float, default=0.1, help="of a trained policy's decisions, left to chance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--teacher-steps", type=int, help="turns of the teacher's training")
    asked = parser.parse_args()
    env = GymConfig(id=TEACHERS[asked.task][0], num_envs=8)
    job, steps = teacher(asked.task, asked.seed, asked.teacher_steps)
    if asked.only == "random":
        fresh = job.recipe.learner.policy
        found = PolicySnapshots(random=fresh, medium=fresh, expert=fresh, scores=(0.0, 0.0, 0.0))
        job.close()
    else:
        found = train_snapshots(
            job, env, steps=steps, every=max(1, steps // 40), epsilon=asked.epsilon, seed=asked.seed
        )
    for quality in (asked.only,) if asked.only else QUALITIES:
        parts = log_shares(found, quality, decisions=asked.decisions, epsilon=asked.epsilon)
        log = record_log(parts, env, seed=1000 + asked.seed)
        path = Path(f"{asked.task}_{quality}.parquet")
        write_log(path, log)
        ended = log.episodes.terminated | log.episodes.truncated
        mean = f", mean return {log.episodes.score[ended].mean():.1f}" if ended.any() else ""
        print(f"{path}: {log.episodes.decisions} decisions, {ended.sum()} whole episodes{mean}")


if __name__ == "__main__":
    main()
