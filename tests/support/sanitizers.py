"""Compiled code under the address and undefined-behaviour sanitizers, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hone.native.build import find_compiler

TESTS = Path(__file__).resolve().parents[1]
CPU_LIMIT_S = 240
"""Of the driver, and of each compiler that it starts; a busy machine takes longer by the clock."""


def check_with_sanitizers(driver: Path) -> None:
    """Run `driver`, which builds with checks and prints `ok` at its end; skips without a sanitizer to preload."""
    import resource  # not on every platform

    compiler = find_compiler()
    assert compiler is not None
    asked = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    sanitizer = Path(asked.stdout.strip())
    if not sanitizer.is_absolute():
        pytest.skip("no address sanitizer beside the compiler")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent / "src", TESTS / "support"))),
        "LD_PRELOAD": str(sanitizer.resolve()),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    answer = subprocess.run(
        [sys.executable, str(driver)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S)),
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert answer.stdout.split()[-1] == "ok"
