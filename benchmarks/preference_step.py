"""Steps of DPO, reward models and fine-tuning, beside TRL: the same model folder, the same rows, the same machine.

    python benchmarks/preference_step.py            everything, about a quarter of an hour on two cores
    python benchmarks/preference_step.py --quick    few steps: decides nothing

A step is one update of model S, with random weights, on 64 pairs (or 64 examples) of chains of additions; answers are
ragged. Both libraries ask the reference before the first step (TRL: `precompute_ref_log_probs`), so that it is in no
step's time. TRL runs at the best of its settings that were tried (`VARIANTS`): each is measured first, in its own
process, and the fastest takes part in the pairs. hone and TRL alternate; the table has the medians of seconds per step
and the median of the ratios pair by pair. The first steps of a process are left out.
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
from chains import WORK, fresh, problem
from peers import require_peer
from tables import Row, grow, tell

from hone.core.random import generator
from hone.native.build import keep_freed_memory
from hone.recipes.registry import load_recipe
from hone.run.loop import train

HERE = Path(__file__).resolve().parent
PEER = "trl"
THREADS = 2
BATCH = 64
ROWS = 640
BAR = 3.0
COLUMNS = {
    "dpo": ["prompt", "chosen", "rejected"],
    "reward_pairs": ["prompt", "chosen", "rejected"],
    "sft": ["prompt", "completion"],
}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "float32": [
        {"attention": attention, "by_length": by_length}
        for attention in ("eager", "sdpa")
        for by_length in (False, True)
    ],
    "bfloat16": [
        {"attention": "sdpa", "bf16": True},
        {"attention": "sdpa", "bf16": True, "by_length": True},
        {"attention": "sdpa", "dtype": "bfloat16", "by_length": True},
    ],
}
"""What TRL is tried with: attention, batches of similar lengths, autocast to bfloat16, or weights in bfloat16."""
PROGRAM = (HERE / "preference_step_trl.py").read_text(encoding="utf-8")


def rows_file() -> Path:
    """Pairs of a worked solution and the same with a slip, and the solution as an example to imitate."""
    path = WORK / f"pairs_{ROWS}.jsonl"
    if path.exists():
        return path
    WORK.mkdir(exist_ok=True)
    lines: list[str] = []
    for number in range(ROWS):
        row = problem("chains", 3, number)
        right = row["completion"]
        place = int(generator(3, "slip", number).integers(len(right)))
        slip = str((int(right[place]) + 1) % 10) if right[place].isdigit() else right[place]
        wrong = right[:place] + slip + right[place + 1 :]
        wrong = wrong if wrong != right else right + "0"
        lines.append(json.dumps({"prompt": row["prompt"], "completion": right, "chosen": right, "rejected": wrong}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def columns_file(kind: str) -> Path:
    """The rows with the columns that a recipe reads."""
    path = WORK / f"{kind}_{ROWS}.jsonl"
    if not path.exists():
        rows = [json.loads(line) for line in rows_file().read_text(encoding="utf-8").splitlines()]
        lines = [json.dumps({name: row[name] for name in COLUMNS[kind]}) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def hone_step(kind: str, compute: str, steps: int) -> dict[str, float]:
    entry = load_recipe(kind)
    config = entry.config.model_validate(
        {
            "recipe": kind,
            "name": "bench",
            "steps": steps,
            "batch": BATCH,
            "run": {"threads": THREADS},
            "model": {"path": str(fresh("S")), "compute": compute},
            "task": {"source": str(columns_file(kind))},
            "learner": {"lr": 1e-6},
            **({"samples": {"prompts": 0}} if kind == "dpo" else {}),
        }
    )
    torch.set_num_threads(THREADS)
    keep_freed_memory()  # as the command `hone train` does
    job = entry.build(config)
    marks, cpu = [time.perf_counter()], [time.process_time()]

    def report(*_told: object) -> None:
        marks.append(time.perf_counter())
        cpu.append(time.process_time())

    train(job.recipe, steps=steps, callback=report)
    return {"seconds": float(np.median(np.diff(marks)[2:])), "cpu_s": float(np.median(np.diff(cpu)[2:]))}


def in_a_process(kind: str, compute: str, steps: int) -> dict[str, float]:
    """A fresh process, as the peer's: caches of one measurement must not serve the next."""
    words = [sys.executable, __file__, "--hone", json.dumps([kind, compute, steps])]
    environment = {**os.environ, "GOMP_SPINCOUNT": "10000"}  # as the command `hone` sets it
    return _answer(subprocess.run(words, capture_output=True, text=True, check=False, env=environment))


def peer_step(kind: str, variant: dict[str, Any], steps: int) -> dict[str, float]:
    asked = {
        "kind": kind,
        "model": str(fresh("S")),
        "rows": str(columns_file(kind)),
        "columns": COLUMNS[kind],
        "batch": BATCH,
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


def measure(kind: str, compute: str, *, quick: bool) -> Row:
    steps, pairs = (5, 1) if quick else (8, 3)
    tried = {json.dumps(variant): peer_step(kind, variant, 5)["seconds"] for variant in VARIANTS[compute]}
    best = min(tried, key=lambda name: tried[name])
    print(f"TRL, {kind} {compute}: {tried}", file=sys.stderr, flush=True)
    found = [(in_a_process(kind, compute, steps), peer_step(kind, json.loads(best), steps)) for _ in range(pairs)]
    print(f"hone, TRL: {found}", file=sys.stderr, flush=True)
    ratio = float(np.median([theirs["seconds"] / ours["seconds"] for ours, theirs in found]))
    return Row(
        row=f"{kind}, {BATCH} {'examples' if kind == 'sft' else 'pairs'}, {compute}",
        value=float(np.median([ours["seconds"] for ours, _ in found])),
        unit="s a step",
        seeds=pairs,
        peer=f"TRL 1.16, {best}",
        peer_value=float(np.median([theirs["seconds"] for _, theirs in found])),
        ratio=ratio,
        bar=f">= {BAR} x TRL",
        met=None if quick else ratio >= BAR,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure steps of DPO, reward models and fine-tuning beside TRL.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=list(COLUMNS))
    parser.add_argument("--hone", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.hone:
        print(json.dumps(hone_step(*json.loads(asked.hone))))
        return
    require_peer(PEER)
    kinds = [kind for kind in COLUMNS if asked.only in {None, kind}]
    for kind in kinds:
        rows = (measure(kind, compute, quick=asked.quick) for compute in VARIANTS)
        title = f"Step of {kind}, model S"
        tell(grow(title, "benchmarks/preference_step.py", rows, threads=THREADS, quick=asked.quick))


if __name__ == "__main__":
    main()
