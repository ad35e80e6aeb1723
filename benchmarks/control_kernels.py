"""Small networks of control: what compiled networks and PPO's written-out gradient are worth in whole runs.

    python benchmarks/control_kernels.py             about two minutes on one core
    python benchmarks/control_kernels.py --quick     half a minute: decides nothing
    python benchmarks/control_kernels.py --only ppo  one part: ppo, one_call, compiled, rounded

Both sides are the same recipe with the same seed in one process, in float32 on one thread: with the part, and in plain
torch with autograd; `one_call` compares PPO's minibatch in one compiled call with compiled networks around torch's
loss, and `rounded` products of bfloat16 numbers with those of float32. They take turns in slices of a few iterations; a
ratio is the CPU time of the plain side over that of the other, the median over pairs of slices, with a 95% bootstrap
interval. A part stays in hone where a whole recipe is at least 1.3 times as fast with it. The compiled networks need a
processor with AVX2, and their rows are left out elsewhere. For a lesser processor's figures on a better one, lower hone
and torch alike, as CONTRIBUTING.md says.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from control_policy import PENDULUM, ZOO, built, with_products
from offline import RACES, SAME, Race, noise_log
from offline import built as built_offline
from tables import Row, grow, tell

from control import run
from hone.control import ppo_backward
from hone.models.native import perceptron
from hone.native.build import SWITCH
from hone.run.job import TrainingJob

PPO_RUNS = {
    "PPO, CartPole-v1, 8 x 32, 20 epochs (rl-zoo)": (ZOO, 4),
    "PPO, CartPole-v1, 64 x 32, 4 epochs of 4 minibatches": (
        {
            "recipe": "ppo", "env": {"id": "CartPole-v1", "num_envs": 64}, "rollout_steps": 32,
            "learner": {"lr": 1e-3, "epochs": 4, "minibatches": 4},
        },
        8,
    ),
    "PPO, Pendulum-v1, 8 x 128, 10 epochs of 8 minibatches": (
        {
            "recipe": "ppo", "env": {"id": "Pendulum-v1", "num_envs": 8, "clip_actions": True}, "rollout_steps": 128,
            "learner": {"lr": 1e-3, "epochs": 10, "minibatches": 8},
        },
        3,
    ),
}  # fmt: skip
"""Settings, and iterations of a slice."""


def taken(job: TrainingJob[Any], iterations: int) -> float:
    """CPU seconds of some further iterations."""
    begin = time.process_time()
    run(job, iterations)
    return time.process_time() - begin


def paired_row(name: str, with_part: Callable[[], float], without: Callable[[], float], *, quick: bool) -> Row:
    pairs = 3 if quick else 20
    ratios: list[float] = []
    for pair in range(-1, pairs):  # the first pair warms up
        sides = (with_part, without) if pair % 2 else (without, with_part)
        times = {side: side() for side in sides}
        ratios += [times[without] / times[with_part]] if pair >= 0 else []
    draws = np.random.default_rng(0)
    medians = np.median(draws.choice(ratios, (2000, pairs)), axis=1)
    low, high = (float(edge) for edge in np.percentile(medians, (2.5, 97.5)))
    value = float(np.median(ratios))
    return Row(
        row=name, value=value, unit="times as fast", low=low, high=high, seeds=pairs,
        bar=">= 1.3", met=None if quick else value >= 1.3,
    )  # fmt: skip


def ppo_rows(*, quick: bool) -> Iterator[Row]:
    """PPO by its written-out gradient and by autograd."""
    for name, (settings, iterations) in PPO_RUNS.items():
        written, plain = (built(settings, seed=0, steps=10_000) for _ in range(2))
        plain.recipe.learner.phases[0].objective_with_backward = None  # pyright: ignore[reportAttributeAccessIssue]
        yield paired_row(
            name,
            lambda job=written, count=iterations: taken(job, count),
            lambda job=plain, count=iterations: taken(job, count),
            quick=quick,
        )
        written.close()
        plain.close()


ONE_CALL_RUNS = {
    **PPO_RUNS,
    "PPO, hone/CartPole-v1, 64 x 32, 4 epochs of 4 minibatches": (
        {
            "recipe": "ppo", "env": {"id": "hone/CartPole-v1", "num_envs": 64}, "rollout_steps": 32,
            "learner": {"lr": 1e-3, "epochs": 4, "minibatches": 4},
        },
        8,
    ),
    "PPO, hone/CartPole-v1, 16 x 128, 4 epochs of 32 minibatches": (
        {
            "recipe": "ppo", "env": {"id": "hone/CartPole-v1", "num_envs": 16}, "rollout_steps": 128,
            "learner": {"lr": 1e-3, "epochs": 4, "minibatches": 32},
        },
        3,
    ),
}  # fmt: skip


def one_call_rows(*, quick: bool) -> Iterator[Row]:
    """PPO's minibatch in one compiled call, and as compiled networks around a loss in torch."""
    if not perceptron.available_functions():
        print("no AVX2 here: the rows of the compiled minibatch are left out")
        return
    compiled = ppo_backward.loss_in_one_call

    def in_turns(job: TrainingJob[Any], iterations: int, *, one_call: bool) -> float:
        ppo_backward.loss_in_one_call = compiled if one_call else lambda *_: None
        return taken(job, iterations)

    for name, (settings, iterations) in ONE_CALL_RUNS.items():
        one, apart = (built(settings, seed=0, steps=10_000) for _ in range(2))
        yield paired_row(
            name,
            lambda job=one, count=iterations: in_turns(job, count, one_call=True),
            lambda job=apart, count=iterations: in_turns(job, count, one_call=False),
            quick=quick,
        )
        one.close()
        apart.close()
    ppo_backward.loss_in_one_call = compiled


def switched(job: TrainingJob[Any], iterations: int, *, on: bool) -> float:
    os.environ[SWITCH] = "1" if on else "0"
    return taken(job, iterations)


def compiled_rows(*, quick: bool) -> Iterator[Row]:
    """ReLU networks by compiled kernels and by torch."""
    if not perceptron.available_functions():
        print("no AVX2 here: the rows of the compiled networks are left out")
        return
    with tempfile.TemporaryDirectory() as folder:
        makers: dict[str, tuple[Callable[[], TrainingJob[Any]], int]] = {}
        for name, settings in PENDULUM.items():
            makers[f"{name.upper()}, Pendulum-v1"] = (lambda settings=settings: started(settings), 30)
        for race in RACES:
            log = Path(folder) / f"{race.discrete}.parquet"
            if not log.exists():
                noise_log(log, discrete=race.discrete)
            kind = "finite actions" if race.discrete else "a box"
            makers[f"{race.recipe}, {kind}"] = (lambda race=race, log=log: offline_job(race, log), 1)
        for name, (make, iterations) in makers.items():
            compiled, plain = make(), make()
            yield paired_row(
                name,
                lambda job=compiled, count=iterations: switched(job, count, on=True),
                lambda job=plain, count=iterations: switched(job, count, on=False),
                quick=quick,
            )
    os.environ[SWITCH] = "1"


def rounded_rows(*, quick: bool) -> Iterator[Row]:
    """SAC and TD3 with products of bfloat16 numbers and gradients written out, against float32 with and without."""
    if not perceptron.supports_bfloat16():
        print("no AVX-512 BF16 or AMX here: the rows of rounded products are left out")
        return
    for name, settings in PENDULUM.items():
        rounded, written, plain = (
            started(with_products(settings, products)) for products in ("bfloat16", "float32", "float32")
        )
        for phase in plain.recipe.learner.phases:  # pyright: ignore[reportAttributeAccessIssue]
            phase.objective_with_backward = None
        sides = {"float32": written, "float32 by autograd": plain}
        for other, job in sides.items():
            yield paired_row(
                f"{name.upper()}, Pendulum-v1: bfloat16, against {other}",
                lambda job=rounded: taken(job, 16),
                lambda job=job: taken(job, 16),
                quick=quick,
            )


def started(settings: dict[str, Any]) -> TrainingJob[Any]:
    """A job past its warm-up."""
    job = built(settings, seed=0, steps=10_000)
    run(job, 50)
    return job


def offline_job(race: Race, log: Path) -> TrainingJob[Any]:
    learner = {"lr": 3e-4, "updates_per_iteration": 10, "max_grad_norm": None}
    network = {"hidden": [256, 256], "activation": "relu"}
    tables = {"log": str(log), "network": network, "batch": 256, "learner": learner, "steps": 10_000}
    return built_offline(race.recipe, tables | {"algorithm": SAME.get(race.recipe, {})})


PARTS = {"compiled": compiled_rows, "ppo": ppo_rows, "one_call": one_call_rows, "rounded": rounded_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure compiled networks and written-out gradients.")
    parser.add_argument("--quick", action="store_true", help="few pairs, decides nothing")
    parser.add_argument("--only", choices=list(PARTS), help="measure this part, and leave the other's table alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for part, measure in PARTS.items():
        if asked.only in (None, part):
            title = f"Control, kernels, {part}"
            rows += grow(
                title, "benchmarks/control_kernels.py", measure(quick=asked.quick), threads=1, quick=asked.quick
            )
    tell(rows)


if __name__ == "__main__":
    main()
