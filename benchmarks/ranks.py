"""The learner over ranks against one process: every recipe with a gradient, and the bits of virtual ranks.

`python benchmarks/ranks.py out.json` trains the short runs of `run_digests.py` on one process and on 2 ranks (with
`--ranks 4`: on 4) and compares what the optimizer holds: the gradient, as the first moment tells it. A second part
trains GRPO with `run.virtual_ranks = 4` on 1, 2 and 4 ranks and compares bits. `--only NAME` takes some of the runs.

Each row has the largest difference of a moment as a share of the largest moment, and the CPU seconds of both runs.
"""

import argparse
import contextlib
import hashlib
import json
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from digest_runs import NEEDS, RUNS, lay_out
from numpy.typing import NDArray
from safetensors.numpy import load_file

from hone import api
from hone.core.errors import ConfigError, HoneError

BAR = 1e-6
"""Largest difference of a gradient in float32 that is rounding."""
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


def compare_recipe(name: str, ranks: int) -> Row:
    """One recipe on one process and on `ranks`."""
    steps = "steps=1" if any(key.startswith("rollout") or key == "batch" for key in RUNS[name][1]) else None
    settings = [] if steps is None else [steps]
    row: Row = {"run": name}
    try:
        alone, row["cpu_one_s"] = trained(name, f"{name}_1", *settings)
        shared, row["cpu_ranks_s"] = trained(name, f"{name}_{ranks}", *settings, f"run.ranks={ranks}")
    except ConfigError as fault:
        return {**row, "refused": str(fault)}
    except HoneError as fault:
        return {**row, "failed": str(fault)}
    row["gradient"] = largest_difference(alone, shared, "/exp_avg/")
    row["weights"] = largest_difference(alone, shared, "policy:")
    return row


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
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--ranks", type=int, default=2, help="ranks to compare with one process")
    parser.add_argument("--only", action="append", choices=RUNS, help="these runs")
    asked = parser.parse_args()
    out, names = asked.out.absolute(), asked.only or list(RUNS)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        lay_out(Path())
        for need in {NEEDS[name] for name in names if name in NEEDS}:
            api.train(f"{need}.toml")
        for name in names:
            rows.append(compare_recipe(name, asked.ranks))
            print(json.dumps(rows[-1]), flush=True)
            out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        rows.append(virtual_bits([1, 2] if asked.ranks == 2 else [1, 2, 4]))
        print(json.dumps(rows[-1]), flush=True)
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    beyond = [row["run"] for row in rows if row.get("gradient", 0) > BAR or "failed" in row or not row.get("equal", 1)]
    print(f"{len(rows)} rows, {cpu_seconds():.0f} s of CPU time; beyond {BAR:g}: {', '.join(beyond) or 'none'}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
