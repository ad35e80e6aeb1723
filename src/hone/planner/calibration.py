"""What a machine was measured to do, kept beside the user's cache and used by later plans.

A plan without it knows a processor's memory and none of its rates, and adds half a GiB for libraries.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from hone.core.errors import ConfigError
from hone.planner.devices import DeviceSpec
from hone.planner.run_memory import PASS_HOLES


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCalibration:
    """Measured figures of one device."""

    device: str
    """`cpu`, or the name that the driver gives a GPU."""
    processor: str
    """Name of the CPU."""
    day: str
    """Date of the measurement, `2026-01-31`."""
    context_bytes: int
    """Memory of the process before it has a model: interpreter and libraries; on a GPU the driver's."""
    allocator_ratio: float
    """Memory that a step took, over the tensors that a tracker counted in it; the larger of two sizes."""
    float32_flops: float
    """Floating-point operations a second of a large product."""
    bfloat16_flops: float
    bandwidth_bytes: float
    """Bytes a second, read and written, of a large copy."""
    step_share: float
    """Share of the product's rate that a step reached."""


def calibrated(spec: DeviceSpec, measured: MachineCalibration) -> DeviceSpec:
    """The device with its measured figures; its usable share is what the allocator leaves of it beyond the
    holes that are planned."""
    return replace(
        spec, context_bytes=measured.context_bytes, float32_flops=measured.float32_flops,
        bfloat16_flops=measured.bfloat16_flops, bandwidth_bytes=measured.bandwidth_bytes,
        usable=min(spec.usable, (1.0 + PASS_HOLES) / measured.allocator_ratio),
    )  # fmt: skip


def calibration_path(cache: Path, device: str) -> Path:
    """File of a device's calibration in the cache folder."""
    name = "".join(character if character.isalnum() else "-" for character in device.lower())
    return cache / "planner" / f"{name}.json"


def write_calibration(path: Path, calibration: MachineCalibration) -> None:
    """Write a calibration over an older one. Raises OSError where the folder cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(calibration), indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_calibration(path: Path, *, processor: str) -> MachineCalibration | None:
    """The calibration of a file; None where there is none, or that of another processor. Raises ConfigError for a file
    that is no calibration."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: the calibration cannot be read: {error}; {_AGAIN}") from None
    calibration = _checked(values)
    if calibration is None:
        raise ConfigError(f"{path}: not a calibration of this version of hone; {_AGAIN}")
    return calibration if calibration.processor == processor else None


_AGAIN = "remove the file, or measure again with hone plan --calibrate"
_LEAST: Mapping[str, float] = {"allocator_ratio": 0.5}
_MOST = 1e30
"""Beyond any figure of a machine; JSON of Python has an Infinity."""


def _checked(values: object) -> MachineCalibration | None:
    """The calibration that a JSON value holds; None for any other value."""
    types = {one.name: one.type for one in fields(MachineCalibration)}
    if not isinstance(values, dict):
        return None
    table = cast("dict[str, Any]", values)
    if set(table) != set(types):
        return None
    for name, kind in types.items():
        value = table[name]
        is_number = isinstance(value, int | float) and _LEAST.get(name, 0) <= value < _MOST
        if not (isinstance(value, str) if kind is str else is_number):
            return None
    table["context_bytes"] = int(table["context_bytes"])
    return MachineCalibration(**table)
