"""Control where reward is rare, where steps are few and where tasks change: what a method adds to the same run without.

    python benchmarks/control_sparse.py                     ten seeds, forty minutes on one core
    python benchmarks/control_sparse.py --quick             one seed and short runs, under a minute: decides nothing
    python benchmarks/control_sparse.py --only hindsight    one part: hindsight, novelty, planning, trials, options

Every run is an example of `examples/control/` as it stands there; what differs is said in the row. The peer of a row is
the same run without the method (hindsight.share = 0, algorithm.novelty_weight = 0), another method with as many steps
of the world (SAC, flat learners), or Thompson sampling with the prior of the tasks. Runs that are there to show nothing
have five seeds at most. Values are interquartile means over seeds with a 95% bootstrap interval; behind a row's name
stand the worst seed and the CPU seconds of a run and its judgement. Policies are judged by their mode, over 100
episodes (5 where every decision is planned, 1,000 trials of bandits). In four rooms what counts is how soon the goal is
reached: the discounted return over 400 episodes, beside the best that there is. Ends with one JSON line per row, and
rewrites its tables in `benchmarks/RESULTS.md` after every row.
"""

import argparse
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from tables import Row, grow, tell

from control import FIRST_SEED, interval, run
from hone.control.environments.play import open_evaluation_envs
from hone.control.environments.world import GymConfig
from hone.control.evaluate.returns import evaluate_returns
from hone.control.finite.build import mdp_from_gymnasium
from hone.control.finite.solve import policy_iteration, start_value
from hone.control.networks.numpy_policies import HasNumpyPolicy
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "control"
SOLVED, NOTHING = 0.9, 0.1
"""Shares of a score: to be reached by every seed with a method, and not to be reached by the mean without it."""
STANDS = 170.0
"""Return of a swing-up that wastes little time: 200 steps, of which some thirty pass before the pole stands."""
WITHOUT = 5
"""Seeds at most of runs that are there to show nothing."""
ROOMS = "hone/FourRooms-v0"
NEAR = 0.95
"""Discount of four rooms."""
WORK = Path(__file__).resolve().parent / ".work"
Changes = Mapping[str, Any]


def settings(example: str, seed: int, changes: Changes) -> dict[str, Any]:
    """An example's tables with `changes`, one level deep; None takes a key away."""
    tables = tomllib.loads((EXAMPLES / f"{example}.toml").read_text(encoding="utf-8"))
    for key, value in changes.items():
        tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
    kept = {key: value for key, value in tables.items() if value is not None}
    return {**kept, "seed": seed, "name": "bench"}


def trained(tables: Mapping[str, Any], *, quick: bool) -> tuple[TrainingJob[Any], HasNumpyPolicy, GymConfig]:
    """A run to its end: the job, its policy, and the environment that it is judged in."""
    entry = load_recipe(tables["recipe"])
    config = entry.config.model_validate({**tables, "steps": 3 if quick else tables["steps"]})
    job = entry.build(config)
    return job, run(job, config.steps), GymConfig.model_validate(tables["env"])


def success(tables: Mapping[str, Any], seed: int, *, quick: bool) -> float:
    """Mean return of the mode over 100 episodes: where 1 is paid at the goal and the episode ends there, a rate."""
    _, policy, env = trained(tables, quick=quick)
    return float(evaluate_returns(policy, env, episodes=10 if quick else 100, seed=10_000 + seed).mean())


def swung(tables: Mapping[str, Any], seed: int, *, quick: bool) -> float:
    """Mean return of 5 episodes, of which a planner thinks ten seconds."""
    _, policy, env = trained(tables, quick=quick)
    env = env.model_copy(update={"max_episode_steps": 5}) if quick else env
    return float(evaluate_returns(policy, env, episodes=5, seed=10_000 + seed).mean())


def of_thompson(tables: Mapping[str, Any], seed: int, *, quick: bool) -> float:
    """Reward of trials that nobody trained on, as a share of Thompson sampling's with the same luck."""
    del seed
    job, _, _ = trained(tables, quick=quick)
    assert job.evaluate is not None
    return job.evaluate().metrics["eval/of_thompson"]


def arrival(tables: Mapping[str, Any], seed: int, *, quick: bool) -> float:
    """Mean discounted return of the mode: discount ** (steps to the goal - 1), 0 where it never gets there."""
    _, policy, env = trained(tables, quick=quick)
    episodes = 10 if quick else 400
    arena = open_evaluation_envs(env, episodes=episodes)
    seen, _ = arena.reset(seed=10_000 + seed)
    best, paid, running = policy.numpy_policy().best, np.zeros(episodes), np.ones(episodes, dtype=np.bool_)
    for number in range(2000):
        seen, reward, ended, cut, _ = arena.step(best(seen))
        paid += np.where(running, reward * NEAR**number, 0.0)
        running &= ~(ended | cut)
        if not running.any():
            break
    arena.close()
    return float(paid.mean())


# ------------------------------------------------------------------------------------------------ rows

Score = Callable[..., float]


def scores(
    name: str, score: Score, example: str, changes: Changes, *, seeds: int, quick: bool
) -> tuple[list[float], str]:
    """One score a seed, and what is to be read behind a name: the worst seed and the CPU seconds of a run."""
    found, seconds = list[float](), list[float]()
    for seed in range(FIRST_SEED, FIRST_SEED + (1 if quick else seeds)):
        begin = time.process_time()
        found.append(score(settings(example, seed, changes), seed, quick=quick))
        seconds.append(time.process_time() - begin)
        print(f"{name}, seed {seed}: {found[-1]:.4g} ({seconds[-1]:.0f} CPU s)", flush=True)
    return found, f"worst seed {min(found):.3g}, {np.median(seconds):.0f} CPU s"


def row_of(
    name: str,
    unit: str,
    with_it: tuple[list[float], str],
    without: tuple[str, list[float]],
    *,
    quick: bool,
    bar: tuple[float, float] | None = (SOLVED, NOTHING),
) -> Row:
    """A method beside what there was without it. `bar`: least of every seed with it, most of the mean without."""
    (found, said), (peer, others) = with_it, without
    value, low, high = interval(found)
    there = interval(others)[0]
    met = None if bar is None or quick else min(found) >= bar[0] and there <= bar[1]
    return Row(
        row=f"{name} ({said})", value=value, unit=unit, low=low, high=high, seeds=len(found),
        peer=peer if len(others) == len(found) else f"{peer} ({len(others)} seeds)",
        peer_value=there, bar=bar and f"every seed >= {bar[0]:g}, without <= {bar[1]:g}", met=met,
    )  # fmt: skip


def hindsight_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    names = {"her_dqn_bit_flip": "HER, DQN, 15 bits, 33,000 steps", "her_sac_reach": "HER, SAC, reach, 26,600 steps"}
    for example, name in names.items():
        found = scores(name, success, example, {}, seeds=seeds, quick=quick)
        plain = {"hindsight": {"share": 0.0}}
        few = min(seeds, WITHOUT)
        others, _ = scores(f"{name}, without", success, example, plain, seeds=few, quick=quick)
        yield row_of(name, "of episodes", found, ("share = 0", others), quick=quick)


def novelty_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    plain = {"algorithm": {"novelty_weight": 0.0}}
    others, _ = scores("PPO, maze", success, "ppo_rnd_maze", plain, seeds=min(seeds, WITHOUT), quick=quick)
    for short in ("rnd", "counts", "icm"):
        name = f"PPO with {short}, maze of 48 steps, 204,800 steps"
        found = scores(name, success, f"ppo_{short}_maze", {}, seeds=seeds, quick=quick)
        yield row_of(name, "of episodes", found, ("novelty_weight = 0", others), quick=quick)


def planning_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    """A score of 200 is a pole that stood from the first step; to swing it up takes some thirty."""
    free = {"recipe": "sac", "steps": 3050, "algorithm": None}
    few = min(seeds, WITHOUT)
    others, _ = scores("SAC, swing-up", swung, "pets_swing_up", free, seeds=few, quick=quick)
    name = "PETS, swing-up, 3,150 steps"
    found = scores(name, swung, "pets_swing_up", {}, seeds=seeds, quick=quick)
    bar = (SOLVED * STANDS, NOTHING * STANDS)
    yield row_of(name, "of 200", found, ("SAC, as many steps", others), quick=quick, bar=bar)


def trials_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    for pulls in (10, 50, 100):
        name = f"RL^2, trials of {pulls} pulls of 5 arms"
        changes = {"rollout_steps": pulls, "env": {"kwargs": {"arms": 5, "pulls": pulls}}}
        changes["env"] |= {"num_envs": 20} if quick else {"num_envs": 500 if pulls == 10 else 200}
        found, said = scores(name, of_thompson, "rl2_bandits", changes, seeds=seeds, quick=quick)
        value, low, high = interval(found)
        yield Row(
            row=f"{name} ({said})", value=value, unit="of Thompson's reward", low=low, high=high, seeds=len(found),
            bar=f"every seed >= {SOLVED}", met=None if quick else min(found) >= SOLVED,
        )  # fmt: skip


def options_rows(*, quick: bool, seeds: int) -> Iterator[Row]:
    """Early in a run and at its end."""
    rooms = mdp_from_gymnasium(ROOMS, discount=NEAR)
    best = start_value(rooms, policy_iteration(rooms).value)
    yield Row(row=f"Four rooms, discounted by {NEAR}: the best there is", value=best, unit="discounted return")
    nothing = WORK / "no_options.json"
    WORK.mkdir(exist_ok=True)
    nothing.write_text("[]\n", encoding="utf-8")
    single = {"options": {"file": str(nothing)}}
    credit = {"discount": 0.99, "gae_lambda": 0.95, "entropy_weight": 0.01}
    learner = {"lr": 1e-3, "epochs": 4, "minibatches": 4, "max_grad_norm": 0.5}
    ppo = {"recipe": "ppo", "rollout_steps": 64, "learner": learner, "algorithm": credit}
    pairs = [
        ("Q-learning over options", "option_q_learning_four_rooms", 128, (25, 200), "single moves alone", single),
        ("Option-critic", "option_critic_four_rooms", 1024, (20, 100), "PPO", ppo),
    ]
    for name, example, turn, lengths, peer, flat in pairs:
        for turns in lengths:
            said = f"{name}, four rooms, {turns * turn:,} steps"
            changes = {"steps": turns}
            others, _ = scores(f"{said}: {peer}", arrival, example, {**changes, **flat}, seeds=seeds, quick=quick)
            found = scores(said, arrival, example, changes, seeds=seeds, quick=quick)
            yield row_of(said, "discounted return", found, (peer, others), quick=quick, bar=None)


PARTS = {
    "hindsight": hindsight_rows,
    "novelty": novelty_rows,
    "planning": planning_rows,
    "trials": trials_rows,
    "options": options_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the recipes for rare reward, few steps and changing tasks.")
    parser.add_argument("--quick", action="store_true", help="one seed and short runs, under a minute")
    parser.add_argument("--only", choices=list(PARTS), help="measure this part, and leave the others' tables alone")
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for part, measure in PARTS.items():
        if asked.only in (None, part):
            rows = measure(quick=asked.quick, seeds=asked.seeds)
            tell(grow(f"Control, {part}", "benchmarks/control_sparse.py", rows, threads=1, quick=asked.quick))


if __name__ == "__main__":
    main()
