"""Memory and images: cart pole without velocities, a symbol to repeat, MinAtar; rows of `benchmarks/worlds.py`.

    python benchmarks/worlds_memory.py              every row, five fresh seeds
    python benchmarks/worlds_memory.py --quick      one seed a row
    python benchmarks/worlds_memory.py --only cue   rows of the functions whose names begin so

One JSON line a row, with `row`, `value`, `bar` and `met`, and the processor; exit code 1 if a bar is missed. A bar
holds for the worst seed. Seeds were not used to choose settings (those were chosen with seeds 1 and 2).
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tables import processor

from hone.recipes.registry import load_recipe
from hone.run.loop import train

FRESH_SEED = 4100
Line = dict[str, Any]


def scores_of(
    env: str, seeds: Sequence[int], *, steps: int, rollout_steps: int, **tables: object
) -> tuple[list[float], float]:
    """Mean return over 20 episodes of each seed's policy after `steps` iterations of PPO, and environment steps per CPU
    second of the training."""
    scores, spent, decisions = list[float](), 0.0, 0
    for seed in seeds:
        given: dict[str, Any] = {"recipe": "ppo", "name": "x", "seed": seed, "steps": steps, **tables}
        given["evaluation"] = {"episodes": 20}
        given["rollout_steps"] = rollout_steps
        given["env"] = {"id": env, "num_envs": 64}
        config = load_recipe("ppo").config.model_validate(given)
        job = config.open().build(config)
        try:
            begun = time.process_time()
            train(job.recipe, steps=steps, callback=lambda *_: None)
            spent += time.process_time() - begun
            decisions += steps * 64 * rollout_steps
            assert job.evaluate is not None
            scores.append(job.evaluate().metrics["eval/score"])
        finally:
            job.close()
    return scores, decisions / spent


def line_of(name: str, result: tuple[list[float], float], bar: float, *, below: bool = False) -> Line:
    """A row whose worst seed has to reach the bar, or of which none may come near it."""
    scores, rate = result
    worst = max(scores) if below else min(scores)
    met = worst <= bar if below else worst >= bar
    line: Line = {"row": name, "value": round(sum(scores) / len(scores), 3)}
    line |= {"bar": f"{'<=' if below else '>='} {bar:g}, worst seed", "met": met, "worst": round(worst, 3)}
    return {**line, "seeds": len(scores), "steps_per_cpu_s": round(rate)}


LEARNER = {"lr": 3e-3, "epochs": 6, "minibatches": 4, "lr_decay": "linear", "max_grad_norm": 0.5}
KINDS: dict[str, dict[str, Any] | None] = {
    "GRU": {"kind": "gru", "units": 32, "sequence": 32},
    "LSTM": {"kind": "lstm", "units": 32, "sequence": 32},
    "4 frames": {"kind": "frames", "count": 4},
    "no memory": None,
}


def velocities(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """Cart pole that shows no velocities: 475 of 500."""
    for kind, memory in KINDS.items():
        steps = 60 if kind in {"4 frames", "no memory"} else 40 if quick else 120
        network = {"hidden": [64], "memory": memory}
        algorithm = {"discount": 0.99, "gae_lambda": 0.9}
        result = scores_of(
            "hone/CartPoleNoVel-v1", seeds, steps=steps, rollout_steps=64, network=network, learner=LEARNER,
            algorithm=algorithm,
        )  # fmt: skip
        if memory is None:
            yield line_of(f"cart pole without velocities, {kind}", result, 200.0, below=True)
        else:
            yield line_of(f"cart pole without velocities, {kind}", result, 475.0)


def cue(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """A symbol that is shown first and repeated at every later step; without a memory -0.5 is chance."""
    del quick
    for kind in ("GRU", "LSTM", "no memory"):
        network = {"hidden": [64], "memory": KINDS[kind]}
        result = scores_of(
            "hone/RepeatFirst-v0", seeds, steps=90, rollout_steps=64, network=network, learner=LEARNER,
            algorithm={"discount": 0.99, "gae_lambda": 0.95, "entropy_weight": 0.01},
        )  # fmt: skip
        low = kind == "no memory"
        yield line_of(f"repeat the first symbol, {kind}", result, -0.3 if low else 0.95, below=low)


def minatar(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """MinAtar's Breakout by PPO with the small encoder, a few steps: more than random play's 0.4."""
    result = scores_of(
        "hone/MinAtarBreakout-v1", seeds[:1] if quick else seeds, steps=50, rollout_steps=32,
        network={"hidden": [], "activation": "relu"},
        learner={"lr": 1e-3, "epochs": 3, "minibatches": 8, "lr_decay": "linear", "max_grad_norm": 0.5},
        algorithm={"discount": 0.99, "gae_lambda": 0.95, "entropy_weight": 0.01},
    )  # fmt: skip
    yield line_of("MinAtar Breakout, PPO, 102,400 steps", result, 3.0)


ROWS: dict[str, Callable[..., Iterator[Line]]] = {"velocities": velocities, "cue": cue, "minatar": minatar}


def main() -> int:
    """Print the rows; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    seeds = [FRESH_SEED + number for number in range(1 if asked.quick else 5)]
    met = True
    for name, rows in ROWS.items():
        if name.startswith(asked.only):
            for line in rows(seeds, quick=asked.quick):
                met &= line["met"]
                print(json.dumps({**line, "processor": processor()}), flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
