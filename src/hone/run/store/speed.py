"""Speed of matrix products on a run's machine, `speed.json`, as the reference for its updates.

Belongs here: the figures, their file, and the sentence about them. `hone.run` measures.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hone.core.errors import DataError
from hone.run.store.durable import replace_file, to_json
from hone.run.store.metrics import MetricColumns
from hone.run.store.records import read_record, record_json

SPEED: Final = "speed.json"
SPEED_FORMAT: Final = 1
_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRate:
    """Rate of large matrix products on the run's device."""

    dtype: str
    device: str
    threads: int
    matmul_flops_per_s: float
    """Floating-point operations per second; a multiplication and an addition are two."""


def write_matmul_rate(folder: Path, rate: MatmulRate) -> None:
    """Write `speed.json` atomically. Raises ResourceError."""
    replace_file(folder / SPEED, to_json({"format": SPEED_FORMAT, **record_json(rate)}, indent=1))


def read_matmul_rate(folder: Path) -> MatmulRate | None:
    """Read `speed.json`; None without the file. Raises DataError for a damaged one."""
    try:
        return read_record(MatmulRate, folder / SPEED)
    except DataError as error:
        raise DataError(*error.messages, "remove the file: the end of a run writes a new one") from None


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
    if rate is None or not rate.matmul_flops_per_s > 0:
        return line
    share = reached / rate.matmul_flops_per_s
    return (
        f"{line}, {share:.0%} of the {format_flops(rate.matmul_flops_per_s)} at which this machine multiplies "
        f"{rate.dtype} matrices ({rate.device}, {rate.threads} threads)"
    )


def format_flops(rate: float) -> str:
    """Format a rate: `4.12e10 -> '41.2 GFLOP/s'`."""
    for size, prefix in _PREFIXES:
        if rate >= size:
            return f"{rate / size:.3g} {prefix}FLOP/s"
    return f"{rate:.3g} FLOP/s"
