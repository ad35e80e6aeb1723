"""The allocator of a process that trains."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from hone.native.build import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        np.ones(12_000_000)  # 96 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
assert keep_freed_memory()
faults()
print(usual, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
def test_memory_is_not_touched_for_the_first_time_again() -> None:
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "src")], capture_output=True, text=True, check=True, timeout=300
    )
    usual, kept = map(int, said.stdout.split())
    assert kept < usual / 10
