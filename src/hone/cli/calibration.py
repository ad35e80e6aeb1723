"""This machine for plans: its processor, as its system names it, and its figures by `hone plan --calibrate`."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from hone.core.clock import SystemClock
from hone.core.errors import ResourceError
from hone.native.build import cache_folder, find_compiler, instruction_set_limit, is_disabled
from hone.planner.calibration import MachineCalibration, calibration_path, read_calibration, write_calibration
from hone.planner.run_settings import ProcessorTraits
from hone.run.memory_plan import readable_bytes

CPUINFO: Final = Path("/proc/cpuinfo")
_AVX512: Final = frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq"})
"""Flags that torch asks for before it multiplies bfloat16 by kernels of its own."""
_DEVICE: Final = "cpu"


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """Name of the processor, or of its architecture where the system has no other."""
    return next(_values(cpuinfo, ("model name",)), platform.processor() or platform.machine())


def processor_traits(cpuinfo: Path = CPUINFO) -> ProcessorTraits:
    """What this machine's processor can do, by the flags that its system names."""
    flags = set(next(_values(cpuinfo, ("flags", "Features")), "").split())
    limit, amd = instruction_set_limit(), next(_values(cpuinfo, ("vendor_id",)), "") == "AuthenticAMD"
    compiled = not is_disabled() and find_compiler() is not None
    return ProcessorTraits(
        compiled=compiled,
        bfloat16=bool(flags & {"amx_bf16", "avx512_bf16", "bf16"}),
        tiles=(tiles := compiled and "amx_bf16" in flags and limit in (None, "amx")),
        widens=platform.machine().lower() in {"x86_64", "amd64"} and not flags >= _AVX512,
        halves=tiles or (compiled and amd and "avx512_bf16" in flags and limit in (None, "amx", "avx512_bf16")),
    )


def _values(cpuinfo: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Values of the lines that begin with one of these names."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    yield from (line.partition(":")[2].strip() for line in lines if line.startswith(names))


def measure_machine() -> MachineCalibration:
    """Measure the CPU and keep the figures. Raises ResourceError where they cannot be kept, before it measures."""
    path = calibration_path(cache_folder(), _DEVICE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
        print("measuring this machine, for some seconds ...", file=sys.stderr, flush=True)
        from hone.text.calibrate import calibrate_cpu  # noqa: PLC0415 - torch

        measured = calibrate_cpu(SystemClock(), processor=processor_name())
        write_calibration(path, measured)
    except OSError as error:
        raise ResourceError(
            f"{path}: the calibration cannot be kept: {error}; set HONE_CACHE to a folder that can be written"
        ) from error
    return measured


def known_calibration() -> MachineCalibration | None:
    """The figures of this machine, if it was measured. Raises ConfigError for a damaged file."""
    return read_calibration(calibration_path(cache_folder(), _DEVICE), processor=processor_name())


def described_calibration(figures: MachineCalibration) -> str:
    """The figures for display, with the file that they are from."""
    path, flops, half = calibration_path(cache_folder(), _DEVICE), figures.float32_flops, figures.bfloat16_flops
    return (
        f"{figures.day}, {path}: libraries {readable_bytes(figures.context_bytes)}, "
        f"allocator {figures.allocator_ratio:.2f} x the tensors, products {flops / 1e9:.0f} GFLOP/s in "
        f"float32 and {half / 1e9:.0f} in bfloat16, memory {figures.bandwidth_bytes / 1e9:.1f} GB/s, a "
        f"step at {figures.step_share:.0%} of the products' rate"
    )
