"""Many players: teams, self-play and poker on seeds that chose no setting; needs the extra `envs` and mpe2.

    python benchmarks/many_players.py                       every row, three seeds: about half an hour on one core
    python benchmarks/many_players.py --only two_step       rows whose names begin so
    python benchmarks/many_players.py --quick               one seed and short runs: decides nothing

One JSON line a row with `row`, `value` (mean over seeds), `worst`, `bar` and `met`, and the processor. `ROWS` is the
table: a row is a function of the seeds and of `quick` that yields lines. Scores count a win as 1 and a draw as 1/2, and
`low` is the lower end of the worst seed's 95% interval.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from tables import processor

from hone.control.seats.evaluation import open_arena
from hone.control.seats.players import RandomPlayer
from hone.control.seats.world import open_matches
from hone.recipes.registry import load_recipe
from hone.run.loop import train

HERE = Path(__file__).resolve().parent
FRESH_SEED, SEEDS = 4300, 3
"""Settings were chosen while looking at seeds below 20."""
Line = dict[str, Any]
RowFn = Callable[..., Iterator[Line]]
BOARD = {
    "network": {"hidden": [128, 128], "activation": "relu"},
    "learner": {"lr": 3e-3, "lr_decay": "linear", "epochs": 4, "minibatches": 4, "max_grad_norm": 0.5},
    "algorithm": {"discount": 1.0, "entropy_weight": 0.01},
    "opponents": {"kind": "past", "latest": 0.8},
}
TEAM = {"exploration": {"start": 1.0, "end": 1.0}, "evaluation": {"episodes": 4}}
POKER = {
    "rollout_steps": 32, "algorithm": {"discount": 1.0, "entropy_weight": 0.3},
    "opponents": {"kind": "past", "every": 2, "latest": 0.8},
    "evaluation": {"episodes": 10, "against": [], "sample": True, "nash_conv": True},
}  # fmt: skip
SPREAD = {
    "rollout_steps": 150, "learner": {"lr": 1e-3, "lr_decay": "linear", "epochs": 5, "minibatches": 4},
    "algorithm": {"entropy_weight": 0.01, "normalise": {"rewards": True}}, "evaluation": {"episodes": 200},
}  # fmt: skip


def scores_of(recipe: str, env: dict[str, Any], seed: int, *, steps: int, **settings: object) -> dict[str, float]:
    """Metrics of the evaluation of the policy that a run ends with."""
    tables = {"recipe": recipe, "name": "x", "seed": seed, "steps": steps, "env": env, **settings}
    job = load_recipe(recipe).build(load_recipe(recipe).config.model_validate(tables))
    try:
        with tempfile.TemporaryDirectory() as folder:
            job.open_folder(Path(folder))
            train(job.recipe, steps=steps, callback=lambda *_: None)
            assert job.evaluate is not None
            return job.evaluate().metrics
    finally:
        job.close()


def line_of(row: str, found: Sequence[float], bar: float, *, most: bool = False, **more: object) -> Line:
    """A row whose worst seed has to reach the bar: at least it, or at `most` it."""
    worst = max(found) if most else min(found)
    met = worst <= bar if most else worst >= bar
    mean = round(float(np.mean(found)), 4)
    sign = "<=" if most else ">="
    return {"row": row, "value": mean, "worst": round(worst, 4), "bar": f"{sign} {bar:g}, worst seed", "met": met,
            "seeds": len(found), **more}  # fmt: skip


def two_step(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """The two-step game of the QMIX paper: the optimum with a mixer, 7 without."""
    env = {"id": "hone.control.seats.matrix_games:TwoStepGame", "num_envs": 8}
    steps = 100 if quick else 300
    qmix, vdn = (
        [scores_of(name, env, seed, steps=steps, **TEAM)["eval/score"] for seed in seeds] for name in ("qmix", "vdn")
    )
    yield line_of("two-step game, QMIX", qmix, 8.0)
    yield line_of("two-step game, VDN", vdn, 7.0, most=True)


def board(game: str, steps: int, script: str, seeds: Sequence[int]) -> Iterator[Line]:
    """Self-play of a board game against a random and a scripted player, in both seats."""
    script = f"{HERE / 'board_players.py'}:{script}"
    settings = {**BOARD, "evaluation": {"episodes": 400, "against": ["random", script, "mcts:50"]}}
    env = {"id": f"openspiel:{game}", "num_envs": 32}
    found = [scores_of("ippo", env, seed, steps=steps, **settings) for seed in seeds]
    names = {"random": "random", "a scripted player": Path(script).name.replace(":", "_"), "MCTS-50": "mcts_50"}
    for title, name in names.items():
        key = f"eval/{name}"
        low = min(one[f"{key}/low"] for one in found)
        seats = [round(float(np.mean([one[f"{key}/seat{seat}/score"] for one in found])), 4) for seat in (0, 1)]
        scores = [one[f"{key}/score"] for one in found]
        line = line_of(f"{game}, self-play against {title}", scores, 0.5, low=round(low, 4), seats=seats)
        if title == "MCTS-50":  # told, without a bar
            yield {**line, "bar": "none", "met": True}
        else:
            yield {**line, "bar": "lower end of every seed's interval > 0.5", "met": low > 0.5}


def tic_tac_toe(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """300,000 plies of self-play."""
    yield from board("tic_tac_toe", 10 if quick else 150, "tic_tac_toe", seeds)


def connect_four(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """A million plies of self-play."""
    yield from board("connect_four", 10 if quick else 500, "connect_four", seeds)


def kuhn(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """NashConv in Kuhn poker after 200,000 decisions; that of uniform play is 0.9167."""
    env = {"id": "openspiel:kuhn_poker", "num_envs": 64}
    found = [scores_of("ippo", env, seed, steps=10 if quick else 100, **POKER) for seed in seeds]
    for title, name in (("last policy", "eval/nash_conv"), ("mean of the pool", "eval/nash_conv_mean")):
        yield line_of(f"Kuhn poker, NashConv, {title}", [one[name] for one in found], 0.3, most=True)


def spread(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """MPE simple_spread with three agents: mean return of an agent, beside that of random agents."""
    env = {"id": "mpe2.simple_spread_v3:parallel_env", "num_envs": 16, "kwargs": {"max_cycles": 25}}
    found = [scores_of("mappo", env, seed, steps=5 if quick else 200, **SPREAD) for seed in seeds]
    matches, _ = open_matches(load_recipe("mappo").config.model_validate(
        {"recipe": "mappo", "name": "x", "steps": 1, "env": env}).env, seeds[0])  # fmt: skip
    layout = matches[0].layout
    arena = open_arena(lambda: matches.pop().game, layout, matches=16, max_steps=100)
    random = arena.play([[RandomPlayer(layout)] * 3] * 200, seed=seeds[0]).mean(axis=1)
    high = float(random.mean() + 1.96 * random.std() / np.sqrt(len(random)))
    line = line_of(
        "MPE simple_spread, MAPPO", [one["eval/score"] for one in found], high, random=round(random.mean(), 3)
    )
    low = min(one["eval/low"] for one in found)
    yield {**line, "low": round(low, 3), "bar": "every seed's interval above that of random agents", "met": low > high}


ROWS: dict[str, RowFn] = {
    "two_step": two_step, "tic_tac_toe": tic_tac_toe, "kuhn": kuhn, "spread": spread, "connect_four": connect_four,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", default="", help="rows whose names begin so")
    parser.add_argument("--quick", action="store_true", help="one seed and short runs")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    args = parser.parse_args()
    seeds = range(FRESH_SEED, FRESH_SEED + (1 if args.quick else args.seeds))
    missed = 0
    for name, row in ROWS.items():
        if name.startswith(args.only):
            for line in row(list(seeds), quick=args.quick):
                print(json.dumps({**line, "processor": processor()}), flush=True)
                missed += not line["met"]
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
