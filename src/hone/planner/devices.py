"""Devices that a run is planned for: memory, rates of products, bandwidths.

The rates are the vendors' figures for dense products. Usable share and context are the only numbers that are not of the
device: what an allocator wastes, and what a driver keeps; both are printed with every plan.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hone.core.errors import ConfigError, did_you_mean

GIB: Final = 1 << 30
USABLE: Final = 0.95
"""Share of a GPU's memory that tensors may take, where nothing else is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device, or several of one kind."""

    name: str
    memory_bytes: int
    """Memory that torch sees on one device."""
    bfloat16_flops: float
    """Dense bfloat16 multiplications and additions per second; 0: not known."""
    float32_flops: float
    bandwidth_bytes: float
    """Bytes per second from memory; 0: not known."""
    link_bytes: float = 0.0
    """Bytes per second to the next device, one way."""
    usable: float = USABLE
    """Share of the memory that tensors may take."""
    context_bytes: int = 0
    """Memory that the driver and its libraries keep."""
    count: int = 1
    is_gpu: bool = True

    @property
    def usable_bytes(self) -> int:
        """Bytes for tensors on one device."""
        return int(self.memory_bytes * self.usable) - self.context_bytes


def _gpu(name: str, gib: float, half: float, single: float, bandwidth: float, link: float) -> DeviceSpec:
    """A GPU by GiB, TFLOP/s and GB/s."""
    return DeviceSpec(
        name=name, memory_bytes=int(gib * GIB), bfloat16_flops=half * 1e12, float32_flops=single * 1e12,
        bandwidth_bytes=bandwidth * 1e9, link_bytes=link * 1e9, context_bytes=int(1.5 * GIB),
    )  # fmt: skip


DEVICES: Final[Mapping[str, DeviceSpec]] = {
    spec.name: spec
    for spec in (
        _gpu("a100", 79.2, 312, 19.5, 2039, 300),
        _gpu("h100", 79.2, 989, 67, 3350, 450),
        _gpu("h200", 139.8, 989, 67, 4800, 450),
        _gpu("b200", 178.0, 2250, 80, 8000, 900),
        _gpu("l40s", 44.4, 362, 91.6, 864, 32),
        _gpu("rtx4090", 23.5, 165, 82.6, 1008, 32),
        _gpu("rtx5090", 31.4, 210, 104.8, 1792, 64),
    )
}
"""By name; the table of vendors' figures."""


def cpu_device(memory_bytes: int) -> DeviceSpec:
    """A machine without a GPU; its rates are not known before they are measured. A part of the
    memory is left to other processes, and to what a plan does not see."""
    return DeviceSpec(
        name="cpu", memory_bytes=memory_bytes, bfloat16_flops=0.0, float32_flops=0.0, bandwidth_bytes=0.0, is_gpu=False,
        context_bytes=GIB // 2, usable=0.8,
    )  # fmt: skip


_MOST_DIGITS: Final = 6
"""Digits of a number of devices."""


def find_device(text: str, *, cpu_bytes: int) -> DeviceSpec:
    """The device of a name (`h100`; eight with `x8` behind it; `cpu`) or of a TOML file. Raises ConfigError for
    any other."""
    if Path(text).suffix == ".toml":
        return _from_file(Path(text))
    wanted = text.lower()
    known = [*DEVICES, "cpu"]
    kind = next((name for name in known if wanted == name or wanted.startswith(f"{name}x")), None)
    if kind is None:
        raise ConfigError(
            f"--device {text}: no such device, and no TOML file with its figures{did_you_mean(wanted, known)}"
        )
    count = wanted.removeprefix(kind).removeprefix("x") or "1"
    if not count.isdigit() or len(count) > _MOST_DIGITS or int(count) < 1:
        raise ConfigError(f"--device {text}: {count!r} is no number of devices; for example {kind}x8")
    return replace(cpu_device(cpu_bytes) if kind == "cpu" else DEVICES[kind], count=int(count))


_FILE_NUMBERS: Final[Mapping[str, tuple[str, float]]] = {
    "memory_gib": ("memory_bytes", GIB), "bfloat16_tflops": ("bfloat16_flops", 1e12),
    "float32_tflops": ("float32_flops", 1e12), "bandwidth_gb_s": ("bandwidth_bytes", 1e9),
    "link_gb_s": ("link_bytes", 1e9), "usable": ("usable", 1), "context_gib": ("context_bytes", GIB),
    "count": ("count", 1),
}  # fmt: skip
"""Numbers of a file: the field of a `DeviceSpec` that each makes, and its unit."""
_FILE_KEYS: Final = (*_FILE_NUMBERS, "name", "gpu")
_WHOLE: Final = ("memory_bytes", "context_bytes", "count")
_RANGES: Final = (("memory_gib", 1e-4, 1e5), ("count", 1, 1e6), ("usable", 0.01, 1))


def _from_file(path: Path) -> DeviceSpec:
    """A device described by a file; `memory_gib` is needed."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--device {path}: cannot read the device: {error}") from None
    faults = [
        f"{path}: unknown key {key}{did_you_mean(key, list(_FILE_KEYS))}" for key in table if key not in _FILE_KEYS
    ]
    numbers: dict[str, float] = {}
    for key in _FILE_NUMBERS:
        value = table.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            numbers[key] = value
        elif value is not None:
            faults.append(f"{path}: {key} must be a number of at least 0, got {value!r}")
    name, is_gpu = table.get("name", path.stem), table.get("gpu", True)
    for key, word, kind, wanted in (("name", name, str, "text"), ("gpu", is_gpu, bool, "true or false")):
        if not isinstance(word, kind) or word == "":
            faults.append(f"{path}: {key} must be {wanted}, got {word!r}")
    faults += [f"{path}: {fault}" for fault in _number_faults(numbers)]
    if "memory_gib" not in table:
        faults.append(f"{path}: memory_gib is missing: the memory of one device")
    if faults:
        raise ConfigError(*faults)
    unknown = {"bfloat16_flops": 0.0, "float32_flops": 0.0, "bandwidth_bytes": 0.0}
    values: dict[str, Any] = unknown | {
        field: int(number * unit) if field in _WHOLE else float(number) * unit
        for key, number in numbers.items()
        for field, unit in [_FILE_NUMBERS[key]]
    }
    return DeviceSpec(name=name, is_gpu=is_gpu, **values)


def _number_faults(numbers: Mapping[str, float]) -> list[str]:
    """Figures of a device that cannot be."""
    faults = [
        f"{key} must be {least:g} to {most:g}, got {numbers[key]:g}"
        for key, least, most in _RANGES
        if key in numbers and not least <= numbers[key] <= most
    ]
    if numbers.get("count", 1) % 1:
        faults.append(f"count must be a whole number of devices, got {numbers['count']!r}")
    room, kept = numbers.get("memory_gib", math.inf) * numbers.get("usable", USABLE), numbers.get("context_gib", 0.0)
    if kept >= room > 0:
        faults.append(f"context_gib = {kept:g} leaves nothing of memory_gib x usable = {room:g}")
    return faults
