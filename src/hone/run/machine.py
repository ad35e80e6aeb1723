"""Memory and disk of the machine while a run goes on: its own peak beside the plan, and readings for its lines.

Belongs here: what is asked of the system, and how often. What the readings mean is in `alarms.py`.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from hone.core.clock import Clock
from hone.core.credit import Metrics
from hone.planner.run_memory import run_memory
from hone.process.machine_memory import (
    memory_limit_bytes,
    peak_resident_bytes,
    reset_peak_resident,
    resident_bytes,
)
from hone.run.memory_plan import MemoryPlan
from hone.run.store.records import MemoryUse

READ_EVERY_S: Final = 1.0
"""Least time between two readings."""
UNPLANNED_BYTES: Final = 256 << 20
"""Memory that no plan counts: buffers of libraries, workers' pipes, tables of the interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWatch:
    """Memory before a run, on its device."""

    device: str
    before_bytes: int

    @classmethod
    def begin(cls, device: str) -> "MemoryWatch":
        """Begin to watch: what is held now is not the run's."""
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)
            return cls(device=device, before_bytes=torch.cuda.memory_allocated(device))
        reset_peak_resident()
        return cls(device=device, before_bytes=resident_bytes())

    def used(self, plan: MemoryPlan | None) -> MemoryUse:
        """Memory of the run so far, beside its plan."""
        on_gpu = self.device.startswith("cuda")
        peak = torch.cuda.max_memory_allocated(self.device) if on_gpu else peak_resident_bytes()
        planned = None if plan is None or plan.run is None else run_memory(plan.run)
        return MemoryUse(
            device=self.device,
            before_bytes=self.before_bytes,
            peak_bytes=max(peak, self.before_bytes),
            planned_bytes=0 if planned is None else planned.peak_bytes,
            components={} if planned is None else dict(planned.components),
            phases={} if planned is None else dict(planned.phases),
        )


def free_bytes(folder: Path) -> int | None:
    """Bytes that may still be written to the disk of a folder; None where the system does not tell."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


@dataclass(slots=True, kw_only=True)
class MachineReader:
    """Readings for a run's lines, at most one a second: `machine/...` metrics. What the system does not tell is left
    out."""

    folder: Path
    clock: Clock
    before_bytes: int = 0
    """Memory held before the run."""
    planned_bytes: int = 0
    """Memory planned for it; 0: not planned."""
    limit_bytes: int | None = None
    """Memory that the process may use; None: unknown."""
    resident: Callable[[], int] = resident_bytes
    free: Callable[[Path], int | None] = free_bytes
    every_s: float = READ_EVERY_S
    _read_s: float = -math.inf

    @classmethod
    def of_run(cls, folder: Path, clock: Clock, watch: MemoryWatch, plan: MemoryPlan | None) -> "MachineReader":
        """Reader of this process, which runs in `folder`; on a GPU the plan is of another memory."""
        use = watch.used(plan)
        on_cpu = not watch.device.startswith("cuda")
        return cls(
            folder=folder,
            clock=clock,
            before_bytes=use.before_bytes if on_cpu else 0,
            planned_bytes=use.planned_bytes if on_cpu else 0,
            limit_bytes=memory_limit_bytes(),
        )

    def read(self) -> Metrics:
        """A reading; empty less than `every_s` after the latest one."""
        now_s = self.clock.monotonic_s()
        if now_s - self._read_s < self.every_s:
            return {}
        self._read_s = now_s
        held, free = self.resident(), self.free(self.folder)
        metrics: Metrics = {}
        if held:
            metrics["machine/resident_bytes"] = float(held)
            if self.limit_bytes:
                metrics["machine/memory_share"] = held / self.limit_bytes
            if self.planned_bytes:
                taken = held - self.before_bytes
                metrics["machine/memory_to_plan"] = taken / (self.planned_bytes + UNPLANNED_BYTES)
        if free is not None:
            metrics["machine/disk_free_bytes"] = float(free)
        return metrics
