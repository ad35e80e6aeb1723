"""Memory of a run: measured from its beginning, kept beside its plan, told, and drawn."""

import mmap
from pathlib import Path

import pytest

from hone.core.errors import DataError
from hone.process.machine_memory import peak_resident_bytes, reset_peak_resident, resident_bytes
from hone.run.machine import MemoryWatch
from hone.run.store.records import MEMORY, MemoryUse, memory_line

MIB = 1 << 20
USE = MemoryUse(
    device="cpu", before_bytes=100 * MIB, peak_bytes=150 * MIB, planned_bytes=40 * MIB,
    components={"weights": 30 * MIB, "activations": 10 * MIB}, phases={"learn": 40 * MIB, "update": 30 * MIB},
)  # fmt: skip


def fill(size: int) -> None:
    """Take memory that no allocator keeps, and give it back."""
    with mmap.mmap(-1, size) as held:
        for place in range(0, size, mmap.PAGESIZE):
            held[place] = 1


def test_a_run_is_measured_from_its_beginning() -> None:
    if not resident_bytes():
        pytest.skip("this system does not tell the size of a process")
    fill(64 * MIB)  # before the run, and given back
    watch = MemoryWatch.begin("cpu")
    fill(32 * MIB)
    use = watch.used(None)
    assert 25 * MIB < use.taken_bytes < 64 * MIB
    assert use.planned_bytes == 0
    assert peak_resident_bytes() >= resident_bytes() > 0
    reset_peak_resident()
    assert peak_resident_bytes() < use.peak_bytes


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert resident_bytes(tmp_path) == peak_resident_bytes(tmp_path) == 0
    reset_peak_resident(tmp_path)


def test_the_figures_are_kept_and_told(tmp_path: Path) -> None:
    assert MEMORY.read(tmp_path) is None
    MEMORY.write(tmp_path, USE)
    assert MEMORY.read(tmp_path) == USE
    assert memory_line(USE) == (
        "memory of cpu: at most 50.0 MiB beyond 100.0 MiB at the start; planned 40.0 MiB (in learn) for networks, "
        "activations and pages"
    )
    (tmp_path / "memory.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"memory\.json"):
        MEMORY.read(tmp_path)
