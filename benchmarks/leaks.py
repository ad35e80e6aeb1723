"""Hunts for leaks: 50,000 steps of tiny runs, whose memory, objects and step time must stay flat.

    python benchmarks/leaks.py FOLDER [--steps N] [--only NAME ...]    all steps: it rewrites its tables in RESULTS.md

Bounds, declared before the first run, on the second half of the steps: resident memory grows by at most 2 MiB over all
of it, tracked Python objects by at most 1% and 500, and the median processor time of a step in the last tenth is at
most 1.1 times that of the tenth after the first half.

The last step is not looked at: it also evaluates. A bandit's evaluation takes 16 MiB there, once: the bootstrap of its
interval holds a million numbers and as many picks at a time, and the process keeps memory that it has freed.
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from digest_runs import REWARDS
from tables import Row, grow, tell

import hone.api
from hone.run.profiling import resident_bytes

MOST_BYTES: Final = 2 << 20
MOST_SHARE, MOST_OBJECTS = 0.01, 500
MOST_RATIO: Final = 1.1
LONG_STEPS: Final = 50_000
LOOKS: Final = 20
"""Times at which objects are counted."""
QUIET: Final[dict[str, Any]] = {
    "threads": 1, "certify": False, "checkpoint_every": 0, "log_every": 10,
    "rollouts_every": 1000, "rollouts_keep_mb": 1,
}  # fmt: skip


def tiny_runs(steps: int) -> dict[str, dict[str, Any]]:
    """A bandit, PPO, and GRPO on a language model whose step takes some milliseconds."""
    shape = {
        "hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 32,
        "max_positions": 16, "alphabet": "0123456789+=",
    }  # fmt: skip
    arms = {"kind": "bernoulli", "rates": [0.2, 0.8]}
    return {
        "thompson": {"recipe": "thompson", "steps": steps, "arms": arms, "run": QUIET},
        "ppo": {
            "recipe": "ppo", "steps": steps, "env": {"id": "CartPole-v1", "num_envs": 1}, "rollout_steps": 8,
            "run": QUIET,
        },
        "grpo": {
            "recipe": "grpo", "steps": steps, "model": {"compute": "float32", "new": shape},
            "task": {"source": "sums.jsonl"}, "rewards": {"functions": [{"use": "rewards.py:close"}]},
            "user_code": {"workers": 1}, "learner": {"lr": 1e-3},
            "rollout": {"prompts_per_step": 2, "samples_per_prompt": 2, "max_tokens": 4, "max_concurrent": 4},
            "run": QUIET,
        },
    }  # fmt: skip


def hunt(name: str, settings: dict[str, Any]) -> Iterator[Row]:
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
    what = f"{name}, {steps:,} steps"
    figures = [
        ("resident memory, growth in the second half", grown / 2**20, "MiB", MOST_BYTES / 2**20),
        ("tracked objects, growth in the second half", more, "objects", most),
        ("CPU time of a step, last tenth over sixth tenth", late / early, "times", MOST_RATIO),
    ]
    for text, value, unit, bar in figures:
        yield Row(row=f"{what}: {text}", value=value, unit=unit, bar=f"<= {bar:.4g}", met=value <= bar)
    yield Row(row=f"{what}: a step", value=1e3 * (spent[-1] - spent[0]) / (len(spent) - 1), unit="CPU ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where runs are written; unset: a temporary folder")
    parser.add_argument("--steps", type=int, default=LONG_STEPS)
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
    Path("rewards.py").write_text(REWARDS, encoding="utf-8")
    rows = [f'{{"prompt": "{a}+{b}=", "answer": "{a + b}"}}\n' for a in range(10) for b in range(8)]
    Path("sums.jsonl").write_text("".join(rows), encoding="utf-8")
    for name, settings in tiny_runs(steps).items():
        if not only or name in only:
            tell(
                grow(
                    f"Leaks of {name}", "benchmarks/leaks.py", hunt(name, settings), threads=1, quick=steps < LONG_STEPS
                )
            )


if __name__ == "__main__":
    main()
