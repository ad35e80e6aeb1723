"""Speed of matrix products on a run's machine, `speed.json`, as the reference for its updates.

Belongs here: the figures, their file, and the sentence about them. `hone.train.runner` measures.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hone.core.errors import DataError
from hone.store.durable import Json, read_json_object, replace_file, to_json
from hone.store.metrics import MetricColumns

SPEED: Final = "speed.json"
SPEED_FORMAT: Final = 1
_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRate:
    """Rate of large matrix products on the run's device."""

    dtype: str
    device: str
    threads: int
    flops_per_s: float
    """Floating-point operations per second; a multiplication and an addition are two."""


def write_matmul_rate(folder: Path, rate: MatmulRate) -> None:
    """Write `speed.json` atomically. Raises ResourceError."""
    document: dict[str, Json] = {
        "format": SPEED_FORMAT,
        "dtype": rate.dtype,
        "device": rate.device,
        "threads": rate.threads,
        "matmul_flops_per_s": rate.flops_per_s,
    }
    replace_file(folder / SPEED, to_json(document, indent=1))


def read_matmul_rate(folder: Path) -> MatmulRate | None:
    """Read `speed.json`; None without the file. Raises DataError for a damaged one."""
    path = folder / SPEED
    if not path.exists():
        return None
    match read_json_object(path):
        case {
            "dtype": str(dtype),
            "device": str(device),
            "threads": int(threads),
            "matmul_flops_per_s": (int() | float()) as rate,
        }:
            return MatmulRate(dtype=dtype, device=device, threads=threads, flops_per_s=float(rate))
        case _:
            raise DataError(f"{path} does not contain a machine's speed; remove it: the end of a run writes a new one")


def update_flops_per_s(metrics: MetricColumns) -> float | None:
    """Floating-point operations of all updates (`learner/flops`, a mean over the steps of each line) per second of
    update time (`time/update_s`, a total); None if they were not counted."""
    flops, seconds = metrics.values.get("learner/flops"), metrics.values.get("time/update_s")
    if flops is None or seconds is None:
        return None
    known = np.isfinite(flops) & np.isfinite(seconds)
    steps = np.diff(metrics.steps, prepend=0)[known]
    spent = float(seconds[known].sum())
    return float((flops[known] * steps).sum()) / spent if spent > 0 else None


def speed_line(metrics: MetricColumns, rate: MatmulRate | None) -> str:
    """Sentence about the speed of the updates; empty if it was not measured."""
    reached = update_flops_per_s(metrics)
    if reached is None:
        return ""
    line = f"updates computed at {format_flops(reached)}"
    if rate is None or not rate.flops_per_s > 0:
        return line
    return (
        f"{line}, {reached / rate.flops_per_s:.0%} of the {format_flops(rate.flops_per_s)} at which this machine "
        f"multiplies {rate.dtype} matrices ({rate.device}, {rate.threads} threads)"
    )


def format_flops(rate: float) -> str:
    """Format a rate: `4.12e10 -> '41.2 GFLOP/s'`."""
    for size, prefix in _PREFIXES:
        if rate >= size:
            return f"{rate / size:.3g} {prefix}FLOP/s"
    return f"{rate:.3g} FLOP/s"
