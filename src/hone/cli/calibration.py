"""Measured figures of this machine: written by `hone plan --calibrate`, read by every later plan."""

import sys
from tempfile import TemporaryFile

from hone.cli.processor import processor_name
from hone.core.clock import SystemClock
from hone.core.errors import ResourceError
from hone.native.build import cache_folder
from hone.planner.calibration import MachineCalibration, calibration_path, read_calibration, write_calibration
from hone.run.memory_plan import readable_bytes

_DEVICE = "cpu"


def measure_machine() -> MachineCalibration:
    """Measure the CPU and keep the figures. Raises ResourceError where they cannot be kept, before it measures."""
    path = calibration_path(cache_folder(), _DEVICE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
        print("measuring this machine, for some seconds ...", file=sys.stderr, flush=True)
        from hone.text.calibrate import calibrate_cpu  # noqa: PLC0415 - torch

        found = calibrate_cpu(SystemClock(), processor=processor_name())
        write_calibration(path, found)
    except OSError as error:
        raise ResourceError(
            f"{path}: the calibration cannot be kept: {error}; set HONE_CACHE to a folder that can be written"
        ) from error
    return found


def known_calibration() -> MachineCalibration | None:
    """The figures of this machine, if it was measured. Raises ConfigError for a damaged file."""
    return read_calibration(calibration_path(cache_folder(), _DEVICE), processor=processor_name())


def described_calibration(found: MachineCalibration) -> str:
    """The figures for display, with the file that they are from."""
    return (
        f"{found.day}, {calibration_path(cache_folder(), _DEVICE)}: libraries {readable_bytes(found.context_bytes)}, "
        f"allocator {found.allocator_ratio:.2f} x the tensors, products {found.float32_flops / 1e9:.0f} GFLOP/s in "
        f"float32 and {found.bfloat16_flops / 1e9:.0f} in bfloat16, memory {found.bandwidth_bytes / 1e9:.1f} GB/s, a "
        f"step at {found.step_share:.0%} of the products' rate"
    )
