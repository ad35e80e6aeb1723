"""The learner over ranks against one process: every recipe with a gradient, bits of virtual ranks, a killed rank.

`python benchmarks/ranks.py out.json` trains the short runs of `run_digests.py` on one process and on 2 ranks (with
`--ranks 4`: on 4) and compares what the optimizer holds: the gradient, as the first moment tells it. A second part
trains GRPO with `run.virtual_ranks = 4` on 1, 2 and 4 ranks and compares bits; a third kills a rank. With
`--tensor 2` two ranks hold each layer of a language model together, and the first part alone is done. `--only NAME`
takes some of the runs, `--part` one of the three parts, and `--quick` one run.

Each row has the largest difference of a moment as a share of the largest moment, and the CPU seconds of both runs.
"""

import argparse
import contextlib
import hashlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from numpy.typing import NDArray
from rank_runs import NEEDS, RUNS, lay_out
from safetensors.numpy import load_file

from hone import api
from hone.api import StepEvent
from hone.core.errors import ConfigError, HoneError

BAR = 1e-6
"""Largest difference of a gradient in float32 that is rounding."""
TENSOR_BAR = 5e-6
"""The same where layers are cut among ranks, which add parts of a product."""
PARTS = ("recipes", "virtual", "killed")
Row = dict[str, Any]


def cpu_seconds() -> float:
    """CPU seconds of this process and of those that have ended."""
    spent = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def trained(name: str, folder: str, *settings: str) -> tuple[dict[str, NDArray[np.generic]], float]:
    """State and weights of a run's last checkpoint, by file and name, and its CPU seconds."""
    begun = cpu_seconds()
    path = api.train(f"{name}.toml", [f"name={folder}", *settings]).folder
    last = sorted((path / "checkpoints").iterdir())[-1]
    found = {
        f"{file.parent.name}:{key}": value
        for file in sorted(last.rglob("*.safetensors"))
        for key, value in load_file(file).items()
    }
    return found, cpu_seconds() - begun


def largest_difference(one: dict[str, NDArray[np.generic]], other: dict[str, NDArray[np.generic]], part: str) -> float:
    """Largest difference of the arrays whose name contains `part`, as a share of the largest number among them."""
    names = [name for name in one if part in name]
    if not names or not all(name in other for name in names):
        return float("nan")
    size = max(float(np.abs(one[name].astype(np.float64)).max(initial=0.0)) for name in names)
    gaps = (np.abs(one[name].astype(np.float64) - other[name].astype(np.float64)).max(initial=0.0) for name in names)
    return float(max(gaps)) / size if size else 0.0


def compare_recipe(name: str, ranks: int, tensor: int) -> Row:
    """One recipe on one process and on `ranks`, of which `tensor` hold each layer together: after one step where the
    recipe can have a single one."""
    heads = [f"model.new.kv_heads={tensor}"] if tensor > 1 and "model.new" in RUNS[name][1] else []
    try:
        return compared(name, ranks, tensor, "steps=1", *heads)
    except ConfigError:
        pass
    try:
        return compared(name, ranks, tensor, *heads)
    except ConfigError as fault:
        return {"run": name, "refused": str(fault)}


def compared(name: str, ranks: int, tensor: int, *settings: str) -> Row:
    """Differences between one process and `ranks`."""
    row: Row = {"run": name, "settings": settings}
    try:
        place = f"{name}_{len(settings)}"
        alone, row["cpu_one_s"] = trained(name, f"{place}_one", *settings)
        ranked = (f"run.ranks={ranks}", f"run.tensor={tensor}")
        shared, row["cpu_ranks_s"] = trained(name, f"{place}_ranks", *settings, *ranked)
    except ConfigError:
        raise
    except HoneError as fault:
        return {**row, "failed": str(fault)}
    row["gradient"] = largest_difference(alone, shared, "/exp_avg/")
    row["weights"] = largest_difference(alone, shared, "policy:")
    return row


def rank_of(driver: int) -> int:
    """Process number of a rank among the children of `driver`."""
    for entry in (one for one in Path("/proc").iterdir() if one.name.isdigit()):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == driver and b"hone.recipes.rank_process" in words:
                return int(entry.name)
    raise LookupError("no rank is running")


def killed_rank() -> Row:
    """GRPO on 2 ranks, of which one is killed after step 3: seconds until the next step, and the weights at the end."""
    settings = ("run.ranks=2", "run.checkpoint_every=2", "steps=5")
    whole, _ = trained("grpo", "undisturbed", *settings)
    seen: list[tuple[int, float]] = []

    def on_step(event: StepEvent) -> None:
        seen.append((event.step, time.monotonic()))
        if [step for step, _ in seen] == [1, 2, 3]:
            os.kill(rank_of(os.getpid()), signal.SIGKILL)

    path = api.train("grpo.toml", ["name=killed", *settings], on_step=on_step).folder
    last = sorted((path / "checkpoints").iterdir())[-1]
    weights = load_file(last / "policy" / "model.safetensors")
    equal = all(np.array_equal(value, whole[f"policy:{name}"]) for name, value in weights.items())
    return {
        "run": "killed rank",
        "steps": [step for step, _ in seen],
        "goes_on_s": seen[3][1] - seen[2][1],
        "equal": equal,
    }


def virtual_bits(ranks: Sequence[int]) -> Row:
    """sha256 of weights and optimizer state of GRPO with virtual ranks, on each number of ranks."""
    digests: dict[str, str] = {}
    for count in ranks:
        found, _ = trained("grpo", f"virtual_{count}", "run.virtual_ranks=4", f"run.ranks={count}")
        kept = {name: value for name, value in found.items() if "/kept" not in name}
        digests[str(count)] = hashlib.sha256(b"".join(value.tobytes() for value in kept.values())).hexdigest()
    return {"run": "virtual ranks", "sha256": digests, "equal": len(set(digests.values())) == 1}


def main() -> int:
    parser = argparse.ArgumentParser(description="The learner over ranks against one process.")
    parser.add_argument("out", type=Path, nargs="?", default=Path("ranks.json"), help="JSON file to write")
    parser.add_argument("--quick", action="store_true", help="one recipe, and no file: decides nothing")
    parser.add_argument("--ranks", type=int, default=2, help="ranks to compare with one process")
    parser.add_argument("--tensor", type=int, default=1, help="ranks that hold each layer together")
    parser.add_argument("--only", action="append", choices=RUNS, help="these runs")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    asked = parser.parse_args()
    parts = (asked.part,) if asked.part else ("recipes",) if asked.tensor > 1 or asked.quick else PARTS
    out, names = asked.out.absolute(), ["sft"] if asked.quick else asked.only or list(RUNS)
    names = names if "recipes" in parts else []
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        lay_out(Path())
        for need in {NEEDS[name] for name in names if name in NEEDS}:
            api.train(f"{need}.toml")
        for name in names:
            rows.append(compare_recipe(name, asked.ranks, asked.tensor))
            print(json.dumps(rows[-1]), flush=True)
            if not asked.quick:
                out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        if "virtual" in parts:
            rows.append(virtual_bits([1, 2] if asked.ranks == 2 else [1, 2, 4]))
            print(json.dumps(rows[-1]), flush=True)
        if "killed" in parts:
            rows.append(killed_rank())
            print(json.dumps(rows[-1]), flush=True)
    if not asked.quick:
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    bar = BAR if asked.tensor == 1 else TENSOR_BAR
    beyond = [row["run"] for row in rows if row.get("gradient", 0) > bar or "failed" in row or not row.get("equal", 1)]
    print(f"{len(rows)} rows, {cpu_seconds():.0f} s of CPU time; beyond {bar:g}: {', '.join(beyond) or 'none'}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
