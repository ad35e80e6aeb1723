"""A whole GRPO step, beside TRL: the same model folder, the same problems, the same reward function, the same machine.

    python benchmarks/grpo_step.py            everything, about half an hour on two cores
    python benchmarks/grpo_step.py --quick    model S, few steps: decides nothing
    python benchmarks/grpo_step.py --only S   one model

A step is: generate, score, one update. TRL runs at the best of its settings that were tried (`VARIANTS`): each is
measured first, in its own process, and the fastest takes part in the pairs. hone and TRL alternate; the table has the
medians of seconds per step and the median of the ratios pair by pair. The first steps of a process are left out.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from chains import TASKS, cold_start, endless, problems
from peers import require_peer
from tables import Row, grow, tell

from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.models.native.library import widens_half_products
from hone.native.build import keep_freed_memory
from hone.recipes.text import grpo
from hone.run.loop import train

HERE = Path(__file__).resolve().parent
PEER = "trl"
THREADS = 2
CASES = {
    "S": [("short", 64, 8), ("chains", 16, 8)],
    "M": [("even", 16, 8)],
}
"""Task, prompts and samples of a step."""
BARS = {"S": 5.0, "M": 2.5}
VARIANTS = {
    "float32": [{"attention": "eager"}, {"attention": "sdpa"}],
    "bfloat16": [
        {"attention": "eager", "bf16": True},
        {"attention": "sdpa", "bf16": True},
        {"attention": "eager", "dtype": "bfloat16"},
    ],
}
"""What TRL is tried with: attention, autocast to bfloat16, or weights in bfloat16."""
if widens_half_products():
    VARIANTS["bfloat16"] = VARIANTS["float32"]
    """Its best where torch multiplies bfloat16 10 to 80 times slower than float32 (x86 without AVX-512)."""
PROGRAM = (HERE / "grpo_step_trl.py").read_text(encoding="utf-8")


def folder_of(shape: str, task: str) -> Path:
    """Where lengths are to be even, a model that never ends an answer by itself."""
    return endless(shape) if task == "even" else cold_start(shape, task)


def reward_of(task: str) -> str:
    """Answers of random weights are never right, and groups that are all alike cost no update: nothing to compare."""
    return "even" if task == "even" else "right"


def limit_of(task: str) -> int:
    return TASKS.get(task, 64)


def step_config(shape: str, case: tuple[str, int, int], kind: str, *, steps: int, threads: int) -> grpo.GrpoConfig:
    task, prompts, samples = case
    return grpo.GrpoConfig.model_validate(
        {
            "recipe": "grpo",
            "name": "bench",
            "steps": steps,
            "run": {"threads": threads},
            "model": {"path": str(folder_of(shape, task)), "compute": kind},
            "task": {"source": str(problems("chains" if task == "even" else task, count=2000, seed=2))},
            "rewards": {"functions": [{"use": f"{HERE / 'answers.py'}:{reward_of(task)}"}]},
            "user_code": {"workers": 1},
            "rollout": {
                "prompts_per_step": prompts,
                "samples_per_prompt": samples,
                "max_tokens": limit_of(task),
                "max_concurrent": prompts * samples,
                "runner": "native" if kind == "float32" else "native_bfloat16",
            },
            "learner": {"lr": 1e-6},
        }
    )


def hone_step(shape: str, case: tuple[str, int, int], kind: str, steps: int) -> dict[str, float]:
    config = step_config(shape, case, kind, steps=steps, threads=THREADS)
    torch.set_num_threads(THREADS)
    keep_freed_memory()  # as the command `hone train` does
    job = grpo.ENTRY.build(config)
    marks, tokens, told = [time.perf_counter()], [0], dict[str, list[float]]()

    def report(_step: int, episodes: Episodes, _credits: object, metrics: Metrics) -> None:
        marks.append(time.perf_counter())
        tokens.append(episodes.decisions)
        for name, value in metrics.items():
            told.setdefault(name, []).append(value)

    train(job.recipe, steps=steps, callback=report)
    job.close()
    return {
        "seconds": float(np.median(np.diff(marks)[2:])),
        "tokens": float(np.mean(tokens[3:])),
        "mismatch": float(np.mean(told["mismatch/mean"])),
    }


def in_a_process(shape: str, case: tuple[str, int, int], kind: str, steps: int) -> dict[str, float]:
    """A fresh process, as the peer's: caches of one measurement must not serve the next."""
    words = [sys.executable, __file__, "--hone", json.dumps([shape, case, kind, steps])]
    environment = {**os.environ, "GOMP_SPINCOUNT": "10000"}  # as the command `hone` sets it
    return _answer(subprocess.run(words, capture_output=True, text=True, check=False, env=environment))


def peer_step(shape: str, case: tuple[str, int, int], variant: dict[str, Any], steps: int) -> dict[str, float]:
    task, prompts, samples = case
    asked = {
        "model": str(folder_of(shape, task)),
        "problems": str(problems("chains" if task == "even" else task, count=2000, seed=2)),
        "rewards": str(HERE),
        "reward": reward_of(task),
        "prompts": prompts,
        "samples": samples,
        "max_tokens": limit_of(task),
        "steps": steps,
        "threads": THREADS,
        **variant,
    }
    words = [str(require_peer(PEER)), "-c", PROGRAM, json.dumps(asked)]
    return _answer(subprocess.run(words, capture_output=True, text=True, check=False))


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    if done.returncode:
        raise SystemExit(f"{done.args[:3]} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(shape: str, case: tuple[str, int, int], kind: str, *, quick: bool) -> Row:
    steps, pairs = (5, 1) if quick else (7, 3) if shape == "S" else (4, 2)
    tried = {json.dumps(variant): peer_step(shape, case, variant, 4)["seconds"] for variant in VARIANTS[kind]}
    best = min(tried, key=lambda name: tried[name])
    print(f"TRL, {shape} {case[0]} {kind}: {tried}", file=sys.stderr, flush=True)
    found = [
        (in_a_process(shape, case, kind, steps), peer_step(shape, case, json.loads(best), steps)) for _ in range(pairs)
    ]
    ours, theirs = (float(np.median([pair[side]["seconds"] for pair in found])) for side in (0, 1))
    ratio = float(np.median([theirs_["seconds"] / ours_["seconds"] for ours_, theirs_ in found]))
    tokens = [round(float(np.mean([pair[side]["tokens"] for pair in found]))) for side in (0, 1)]
    print(f"hone {found[0][0]}, TRL {found[0][1]}", file=sys.stderr, flush=True)
    if case[0] == "even" and tokens[0] != tokens[1]:
        raise SystemExit(f"unequal work: {tokens[0]:,} completion tokens, TRL {tokens[1]:,}")
    return Row(
        row=f"{shape}, {case[0]}, {case[1]} x {case[2]}, {kind} ({tokens[0]:,} completion tokens, TRL {tokens[1]:,})",
        value=ours,
        unit="s a step",
        seeds=pairs,
        peer=f"TRL 1.16, {best}",
        peer_value=theirs,
        ratio=ratio,
        bar=f">= {BARS[shape]} x TRL",
        met=None if quick else ratio >= BARS[shape],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a whole GRPO step beside TRL.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--hone", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.hone:
        shape, case, kind, steps = json.loads(asked.hone)
        print(json.dumps(hone_step(shape, tuple(case), kind, steps)))
        return
    require_peer(PEER)
    for shape, cases in CASES.items():
        if asked.only not in {None, shape} or (asked.quick and shape != "S"):
            continue
        rows = (measure(shape, case, kind, quick=asked.quick) for case in cases for kind in VARIANTS)
        title = f"GRPO step, model {shape}"
        tell(grow(title, "benchmarks/grpo_step.py", rows, threads=THREADS, quick=asked.quick))


if __name__ == "__main__":
    main()
