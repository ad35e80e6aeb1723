"""Speed of the control recipes beside Stable-Baselines3 on lesser processors: both sides lowered alike.

    python benchmarks/control_lowered.py             SAC, TD3 and DQN, AVX-512 and AVX2; ten minutes on one core
    python benchmarks/control_lowered.py --quick     one short pair of each: decides nothing

The switches of CONTRIBUTING.md lower torch, its libraries and hone to an instruction set, on both sides, as if the
processor had no better one. Otherwise as `control_policy.py --only speed` and `values.py --only speed`: environment
steps per second of the process's own CPU time, medians of interleaved repetitions, the median of the paired ratios.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from control_policy import PEER_NAME, PEER_PENDULUM, pendulum_speed
from peers import require_peer
from tables import Row, grow, tell
from values import PEER_PROGRAM, hone_speed

from control import PEER

LIMITS: Mapping[str, Mapping[str, str]] = {
    "avx512": {
        "HONE_NATIVE_ISA": "avx512", "ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
    "avx2": {
        "HONE_NATIVE_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}  # fmt: skip
BARS = {"sac": 2.0, "td3": 2.0, "dqn": 2.3}
TASKS = {
    "sac": "SAC, Pendulum-v1",
    "td3": "TD3, Pendulum-v1",
    "dqn": "DQN, CartPole-v1, 128 updates of 64 a turn",
}


def speed(recipe: str, amount: int) -> float:
    """Environment steps per CPU second of a recipe; `amount`: steps, or iterations of 256 steps of DQN."""
    return hone_speed(amount) if recipe == "dqn" else pendulum_speed(recipe, amount)


def lowered(limit: str, command: list[str]) -> float:
    """The last number that a program prints, run in a process with the limit."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **LIMITS[limit]}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])


def pair(limit: str, recipe: str, amount: int) -> tuple[float, float]:
    """Speeds of hone and of the peer."""
    here = [sys.executable, str(Path(__file__)), "--child", recipe, str(amount)]
    asked = [PEER_PROGRAM, str(amount)] if recipe == "dqn" else [PEER_PENDULUM, recipe, str(amount)]
    return lowered(limit, here), lowered(limit, [str(require_peer(PEER)), "-c", *asked])


def rows(*, quick: bool) -> Iterator[Row]:
    """A row for each instruction set and recipe."""
    for limit in LIMITS:
        for recipe, title in TASKS.items():
            amount = (100 if quick else 600) if recipe != "dqn" else 8 if quick else 30
            pairs = [pair(limit, recipe, amount) for _ in range(1 if quick else 5)]
            ours, theirs = (float(np.median([speeds[side] for speeds in pairs])) for side in (0, 1))
            ratio = float(np.median([one / other for one, other in pairs]))
            yield Row(
                row=f"{title}, lowered to {limit}", value=ours, unit="steps per CPU second", seeds=len(pairs),
                peer=PEER_NAME, peer_value=theirs, ratio=ratio, bar=f">= {BARS[recipe]:g} x peer",
                met=None if quick else ratio >= BARS[recipe],
            )  # fmt: skip


def main() -> None:
    """Measure all rows, or in a child process one speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short pair of each: decides nothing")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.child:
        print(speed(asked.child[0], int(asked.child[1])))
    else:
        script = "benchmarks/control_lowered.py"
        tell(grow("Control, lesser processors", script, rows(quick=asked.quick), threads=1, quick=asked.quick))


if __name__ == "__main__":
    main()
