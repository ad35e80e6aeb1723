"""Memory of a run before it begins: parameters, gradients, optimizer state and copies of the weights.

Activations, KV pages and replay buffers are not counted: what is refused here cannot fit whatever they take. A text
run's are in `MemoryPlan.run`, for `hone.planner`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

from hone.core.errors import ResourceError
from hone.planner.fixes import first_changes
from hone.planner.run_memory import RunDimensions, run_memory
from hone.process.machine_memory import memory_limit_bytes

_FLOAT_BYTES = 4
_SIZE_KEYS = ("model.new.hidden_size", "model.new.layers", "model.new.intermediate_size", "model.path")
_TRAINED_COPIES = 4
"""A weight, its gradient, and Adam's two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Resident memory of a run's networks on its device."""

    parameters: int
    """Number of parameters of the policy; 0: not known yet."""
    parts: Mapping[str, int]
    """Bytes by what holds them."""
    device: str = "cpu"
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further rows about the networks, by name."""
    run: RunDimensions | None = None
    """What the memory of the whole run depends on, activations and the engine's pages included; None: not known."""

    @property
    def total_bytes(self) -> int:
        """Sum of the parts."""
        return sum(self.parts.values())

    def rows(self) -> dict[str, str]:
        """The plan for display; empty for a model that is not known yet."""
        if not self.parameters:
            return {}
        parts = ", ".join(f"{name} {readable_bytes(size)}" for name, size in self.parts.items())
        memory = f"{readable_bytes(self.total_bytes)}: {parts}"
        return {"parameters": f"{self.parameters:,}", "memory": memory, **self.notes}


def readable_bytes(count: int) -> str:
    """Format bytes: `1536 -> '1.5 KiB'`."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def planned_words(plan: MemoryPlan | None) -> str:
    """The planned peak and the first two changes that lower it, for the message of a run whose memory ran out; empty
    for a run that was not planned."""
    if plan is None or plan.run is None:
        return ""
    memory = run_memory(plan.run)
    changes = [f"{fix.setting} ({readable_bytes(fix.memory.peak_bytes)})" for fix in first_changes(plan.run, 2)]
    peak = readable_bytes(memory.peak_bytes)
    words = f"planned were {peak} of tensors in {memory.peak_phase}, most of it {memory.largest}"
    return f"{words}; first try {', then '.join(changes)}" if changes else words


def require_fit(plan: MemoryPlan, settings: Mapping[str, object]) -> None:
    """Raise ResourceError, with the keys that lower it, for a plan that exceeds the memory of its device."""
    limit = device_memory_bytes(plan.device)
    if limit is None or plan.total_bytes <= limit:
        return
    sizes = [key for key in settings if key.endswith(".hidden") and settings[key]]
    sizes += [key for key in _SIZE_KEYS if settings.get(key) is not None]
    numbers = [f"{key} ({settings[key]})" for key in sizes if key != "model.path"]
    advice = [f"lower {', '.join(numbers)}"] if numbers else []
    if "model.path" in sizes:
        advice.append("take a smaller model than model.path")
    if settings.get("algorithm.kl"):
        advice.append("set algorithm.kl = 0, which needs no reference policy")
    place = f"{sizes[0]} = {settings[sizes[0]]}: " if sizes else ""
    raise ResourceError(
        f"{place}the run cannot fit: its networks take {plan.rows()['memory']}, and {plan.device} has "
        f"{readable_bytes(limit)} in all; {', or '.join(advice) or 'take smaller networks'}"
    )


def device_memory_bytes(device: str) -> int | None:
    """Memory of a device in all; None where it is not known."""
    if not device.startswith("cuda"):
        return memory_limit_bytes()
    import torch  # noqa: PLC0415 - takes seconds, and only a GPU needs it

    return torch.cuda.mem_get_info(device)[1] if torch.cuda.is_available() else None


def layers_plan(settings: Mapping[str, object]) -> MemoryPlan:
    """The least that the hidden layers of a config's networks take, of one copy each: known before they are made."""
    widths = [
        cast("list[int]", value)
        for key, value in settings.items()
        if key.endswith(".hidden") and isinstance(value, list)
    ]
    weights = sum(left * right for layers in widths for left, right in pairwise(layers))
    parts = {"the weights between hidden layers, with gradients and optimizer state,": weights * _FLOAT_BYTES}
    return MemoryPlan(
        parameters=weights, parts={name: size * _TRAINED_COPIES for name, size in parts.items()},
        device=str(settings.get("run.device", "cpu")),
    )  # fmt: skip
