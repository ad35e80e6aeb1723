"""Hunts for leaks: 50,000 steps of tiny runs, whose memory, objects and step time must stay flat.

    python benchmarks/leaks.py FOLDER [--steps N] [--only NAME ...]

Bounds, declared before the first run, on the second half of the steps: resident memory grows by at most 2 MiB over all
of it, tracked Python objects by at most 1% and 500, and the median processor time of a step in the last tenth is at
most 1.1 times that of the tenth after the first half. Prints a JSON line for each figure.
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tables import processor

import hone.api
from hone.run.profiling import resident_bytes

MOST_BYTES: Final = 2 << 20
MOST_SHARE, MOST_OBJECTS = 0.01, 500
MOST_RATIO: Final = 1.1
LOOKS: Final = 20
"""Times at which objects are counted."""
QUIET: Final[dict[str, Any]] = {
    "threads": 1, "certify": False, "checkpoint_every": 0, "log_every": 10,
    "rollouts_every": 1000, "rollouts_keep_mb": 1,
}  # fmt: skip


def tiny_runs(steps: int) -> dict[str, dict[str, Any]]:
    """A bandit, a table, and a language model whose step takes some milliseconds."""
    shape = {
        "hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 32,
        "max_positions": 16, "alphabet": "0123456789+=",
    }  # fmt: skip
    arms = {"kind": "bernoulli", "rates": [0.2, 0.8]}
    return {
        "thompson": {"recipe": "thompson", "steps": steps, "arms": arms, "run": QUIET},
        "q_learning": {"recipe": "q_learning", "steps": steps, "env": {"id": "FrozenLake-v1"}, "run": QUIET},
        "sft": {
            "recipe": "sft", "steps": steps, "batch": 2, "model": {"compute": "float32", "new": shape},
            "task": {"source": "sums.jsonl"}, "learner": {"lr": 1e-3}, "run": QUIET,
        },
    }  # fmt: skip


def hunt(name: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Train, and judge what was measured."""
    steps = settings["steps"]
    sizes: list[int] = []
    objects: list[int] = []
    spent: list[float] = []

    def look(event: Any) -> None:  # noqa: ANN401 - the callback's event
        spent.append(time.process_time())
        if event.step % max(1, steps // LOOKS) == 0 and event.step < steps:  # the last step also ends the run
            gc.collect()
            sizes.append(resident_bytes())
            objects.append(len(gc.get_objects()))

    hone.api.train(settings | {"name": f"leaks_{name}"}, on_step=look)
    half, tenth = len(sizes) // 2, len(spent) // 10
    taken = [after - before for before, after in pairwise(spent)]
    early, late = (statistics.median(part) for part in (taken[len(taken) // 2 :][:tenth], taken[-tenth:]))
    grown, more = sizes[-1] - sizes[half], objects[-1] - objects[half]
    most = max(MOST_OBJECTS, MOST_SHARE * objects[half])
    rows = [
        ("resident memory, growth in the second half, bytes", grown, f"<= {MOST_BYTES}", grown <= MOST_BYTES),
        ("tracked objects, growth in the second half", more, f"<= {most:g}", more <= most),
        ("CPU time of a step, last tenth to sixth tenth", late / early, f"<= {MOST_RATIO}", late <= MOST_RATIO * early),
    ]
    return [
        {"row": f"{name}, {steps:,} steps: {what}", "value": value, "bar": bar, "met": met, "seed": 0,
         "cpu_s": round(spent[-1] - spent[0], 1), "cpu": processor()}
        for what, value, bar, met in rows
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where runs are written; unset: a temporary folder")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true", help="200 steps, which decide nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        _measure(200 if options.quick else options.steps, options.only)
        os.chdir("/")


def _measure(steps: int, only: list[str]) -> None:
    rows = [f'{{"prompt": "{a}+{b}=", "completion": "{a + b}"}}\n' for a in range(10) for b in range(8)]
    Path("sums.jsonl").write_text("".join(rows), encoding="utf-8")
    for name, settings in tiny_runs(steps).items():
        if not only or name in only:
            for row in hunt(name, settings):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
