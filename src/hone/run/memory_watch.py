"""Most memory of a run, measured from its beginning to its end."""

from dataclasses import dataclass

import torch

from hone.planner.run_memory import run_memory
from hone.process.machine_memory import peak_resident_bytes, reset_peak_resident, resident_bytes
from hone.run.memory_plan import MemoryPlan
from hone.run.store.memory_use import MemoryUse


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
